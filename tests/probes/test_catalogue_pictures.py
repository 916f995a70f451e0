"""The pictures of docs/probes.md show what they say: each probe on a head that it scores high."""

from importlib import import_module

import pytest

from probes.catalogue_pictures import planted_example, planted_model, probe_table
from probes.measures import MEASURES
from probes.registry import PROBES, get_probe
from probes.tables import SCHEMAS


@pytest.fixture(scope="module")
def planted():
    return planted_model()


@pytest.mark.parametrize("name", [entry.name for entry in PROBES])
def test_the_framed_cells_hold_the_head_s_attention(planted, name):
    frame = probe_table(planted, get_probe(name))
    framed = frame[frame["is_source"]]
    assert len(framed) >= 4
    assert (framed["probability"] > 0.99).all()
    _, layer, head = planted_example(planted, get_probe(name).example)
    assert set(zip(frame["layer"], frame["head"], strict=True)) == {(layer, head)}


def test_every_measure_is_there_with_its_table():
    for entry in MEASURES:
        module, name = entry.where.split(":")
        assert callable(getattr(import_module(module), name))
        assert entry.table in [schema.name for schema in SCHEMAS]
