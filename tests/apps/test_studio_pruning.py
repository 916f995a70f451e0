"""The pruning curve that the studio reads from a report, and draws."""

import pytest

from apps.studio.pruning import curve_chart, curve_of

ROWS = [
    {"order": "greedy", "n_removed": "0", "removed": "", "held_out": "1"},
    {"order": "greedy", "n_removed": "1", "removed": "L1H0", "held_out": "1"},
    {"order": "greedy", "n_removed": "3", "removed": "L0H1,L1H1", "held_out": "0.25"},
    {"order": "random", "n_removed": "0", "removed": "", "held_out": "1"},
    {"order": "random", "n_removed": "1", "removed": "L0H0", "held_out": "0.5"},
    {"order": "random", "n_removed": "1", "removed": "L1H0", "held_out": "1"},
]


def test_heads_that_are_gone_add_up_and_the_band_spans_random_orders():
    curve = curve_of(ROWS)
    assert curve.gone == ((), ("L1H0",), ("L1H0", "L0H1", "L1H1"))
    assert [step["held_out"] for step in curve.steps] == [1.0, 1.0, 0.25]
    assert (curve.steps[1]["low"], curve.steps[1]["high"]) == (0.5, 1.0)
    assert curve.n_orders == 2
    assert curve_of(ROWS[3:]) is None


def test_the_chosen_step_differs_by_data():
    spec = curve_chart(curve_of(ROWS), chosen=1).to_dict()
    (rows,) = spec["datasets"].values()
    assert [row["chosen"] for row in rows] == [False, True, False]
    assert rows[2]["low"] is None  # no random order has that step: a gap, not a zero
    assert spec["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 1]
    assert "heads removed, of 3" in str(spec)


@pytest.mark.parametrize("step", [0, 2])
def test_every_step_can_be_chosen(step):
    assert curve_chart(curve_of(ROWS), step).to_dict()["layer"]
