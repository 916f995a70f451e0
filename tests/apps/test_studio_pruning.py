"""The pruning curve that the studio reads from a report, and draws."""

import pytest

from apps.studio.pruning import curve_chart, curve_of, spare_rows, step_words


def row(order: str, n_removed: str, removed: str, held_out: str) -> dict[str, str]:
    ends = {"ci_low": "0.2", "ci_high": "1", "n_sequences": "40", "metric": "exact_match"}
    return {
        "order": order,
        "n_removed": n_removed,
        "removed": removed,
        "held_out": held_out,
        **ends,
    }


ROWS = [
    row("greedy", "0", "", "1"),
    row("greedy", "1", "L1H0", "1"),
    row("greedy", "3", "L0H1,L1H1", "0.25"),
    row("random", "0", "", "1"),
    row("random", "1", "L0H0", "0.5"),
    row("random", "1", "L1H0", "1"),
]
SPARE = [
    {"order": order, "metric": metric, "within": "0.01", "removable": n, "low": low, "high": high}
    for order, metric, n, low, high in (
        ("greedy", "exact_match", "1", "1", "1"),
        ("greedy", "margin", "0", "0", "0"),
        ("random", "exact_match", "0.5", "0", "1"),
    )
]


def test_heads_that_are_gone_add_up_and_the_band_spans_random_orders():
    curve = curve_of([*ROWS, {**ROWS[1], "metric": "margin"}], SPARE)
    assert curve.gone == ((), ("L1H0",), ("L1H0", "L0H1", "L1H1"))
    assert [step["held_out"] for step in curve.steps] == [1.0, 1.0, 0.25]
    assert (curve.steps[1]["low"], curve.steps[1]["high"]) == (0.5, 1.0)
    assert curve.n_orders == 2
    assert curve_of(ROWS[3:], SPARE) is None


def test_a_step_is_said_with_its_interval_and_how_many_heads_can_go():
    curve = curve_of(ROWS, SPARE)
    assert step_words(curve, 1) == (
        "1 head removed: exact match 100.0 % (95 % interval 20.0 % to 100.0 %) on 40 held-out "
        "sequences."
    )
    assert spare_rows(curve) == [
        ["greedy order", "1", "0"],  # a share without a row: no head can go
        ["random orders: median (range)", "0.5 (0 to 1)", "0"],
    ]


def test_the_chosen_step_differs_by_data():
    spec = curve_chart(curve_of(ROWS, SPARE), chosen=1).to_dict()
    (rows,) = spec["datasets"].values()
    assert [row["chosen"] for row in rows] == [False, True, False]
    assert rows[2]["low"] is None  # no random order has that step: a gap, not a zero
    assert spec["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 1]
    assert "heads removed, of 3" in str(spec)


@pytest.mark.parametrize("step", [0, 2])
def test_every_step_can_be_chosen(step):
    assert curve_chart(curve_of(ROWS, SPARE), step).to_dict()["layer"]
