"""The pictures of docs/probes.md show what they say: each probe on a head that it scores high."""

import pytest

from probes.catalogue_pictures import SHOWN, planted_model, probe_table
from probes.measures import MEASURES, get_measure, load_measure
from probes.registry import PROBES, get_probe
from probes.tables import get_schema


@pytest.fixture(scope="module")
def planted():
    return planted_model()


@pytest.mark.parametrize("name", [entry.name for entry in PROBES])
def test_the_framed_cells_hold_the_head_s_attention(planted, name):
    frame = probe_table(planted, get_probe(name))
    framed = frame[frame["is_source"]]
    assert len(framed) >= 4
    assert (framed["probability"] > 0.99).all()
    _, layer, head = SHOWN[name]
    assert set(zip(frame["layer"], frame["head"], strict=True)) == {(layer, head)}


def test_every_measure_is_there_with_its_table():
    for entry in MEASURES:
        assert callable(load_measure(entry))
        assert get_schema(entry.table).name == entry.table
    with pytest.raises(
        ValueError, match=r"unknown measure 'entropy'; choose from .*\(did you mean"
    ):
        get_measure("entropy")
