"""What the list of probes lets through, and what it says otherwise."""

import subprocess
import sys

import pytest

from probes.registry import PROBES, SOURCE_PROBES, choose_probes, get_probe, probe_names


def test_without_sources_the_probes_that_need_them_are_left_out():
    chosen = choose_probes(None, has_sources=False)
    left_out = {entry.name for entry in PROBES} - {entry.name for entry in chosen}
    assert left_out == {entry.name for entry in PROBES if entry.needs_sources}
    assert set(SOURCE_PROBES) <= left_out


def test_probes_come_in_the_order_asked_for():
    assert [e.name for e in choose_probes(["first", "sources"], has_sources=True)] == [
        "first",
        "sources",
    ]


def test_unknown_probe_is_answered_with_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown probe 'indution'.*did you mean 'induction'"):
        get_probe("indution")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "probes must be at least one of sources, .*, got none"),
        (["first", "first"], r"probes must be different names, got \['first', 'first'\]"),
        ("first", r"probes must be a list of names, got 'first'; write \['first'\]"),
    ],
)
def test_wrong_lists_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        choose_probes(names, has_sources=True)


def test_list_of_probes_is_read_without_torch_or_pandas():
    code = (
        "import sys, probes, probes.registry\n"
        "assert probes.probe_names()\n"
        "assert not {'torch', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_entry_says_all_that_a_report_prints():
    for entry in PROBES:
        texts = (entry.title, entry.rows, entry.source, entry.caveat, entry.head_kind, entry.target)
        assert all(texts)
        assert entry.low < entry.high
    assert len(probe_names()) == len(PROBES)
