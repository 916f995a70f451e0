"""Curves are the held-out column, over a band of all random orders, with what 1 % would be."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from probes import plots
from probes.plots.canvas import figure_of
from probes.schemas.cause import PRUNING
from probes.tables import make_table


def curve() -> pd.DataFrame:
    """Return four heads: greedy spares two at 1 %, the random orders none and one."""
    orders = {
        ("greedy", None): [2.0, 2.0, 2.015, 2.6, 9.0],
        ("random", 0): [2.0, 2.3, 3.0, 5.0, 9.0],
        ("random", 1): [2.0, 2.01, 2.5, 6.0, 9.0],
    }
    rows = [
        {
            "order": order,
            "seed": seed,
            "n_removed": step,
            "n_kept": 4 - step,
            "metric": metric,
            "held_out": value if metric == "loss" else -value,
            "delta": (value - 2.0) * (1 if metric == "loss" else -1),
            "ci_low": value - 0.1,
            "ci_high": value + 0.1,
        }
        for (order, seed), values in orders.items()
        for step, value in enumerate(values)
        for metric in ("loss", "margin")
    ]
    frame = pd.DataFrame(rows)
    columns = {
        column.name: frame[column.name].tolist()
        if column.name in frame
        else ["nats" if column.name == "unit" else "" if column.kind == "text" else 1] * len(frame)
        for column in PRUNING.columns
    } | {"normalise": [""] * len(frame)}
    return make_table(columns, PRUNING, {"chosen_by": "loss"})


def named(ax, words: str):
    """Return the line whose legend begins with some words."""
    return next(line for line in ax.lines if str(line.get_label()).startswith(words))


def test_lines_are_held_out_and_the_band_is_all_random_orders():
    ax = plots.plot_pruning_curve(curve())
    greedy = named(ax, "greedy")
    np.testing.assert_array_equal(greedy.get_xdata(), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(greedy.get_ydata(), [2.0, 2.0, 2.015, 2.6, 9.0])
    assert greedy.get_label() == "greedy (2 removable at 1 %)"
    figure_of(ax).draw_without_rendering()
    (kept,) = ax.child_axes
    assert ax.get_xlabel() == "heads removed, of 4"
    assert kept.get_xlabel() == "heads kept"
    for n_kept in range(5):  # stands where 4 - n_kept are removed
        above, below = (
            kept.transData.transform((n_kept, 0)),
            ax.transData.transform((4 - n_kept, 1)),
        )
        assert above[0] == pytest.approx(below[0])
    median = named(ax, "random, median")
    np.testing.assert_allclose(np.asarray(median.get_ydata()), [2.0, 2.155, 2.75, 5.5, 9.0])
    assert median.get_label() == "random, median (0.5 removable at 1 %)"
    (band,) = (c for c in ax.collections if c.get_gid() == "band")
    assert band.get_label() == "2 random orders: all of them"
    corners = {
        tuple(corner) for corner in np.asarray(band.get_paths()[0].vertices).round(6).tolist()
    }
    assert {(1, 2.01), (1, 2.3), (3, 5.0), (3, 6.0)} <= corners


@pytest.mark.parametrize(
    ("metric", "levels"), [("loss", [2.0, 2.02, 2.1]), ("margin", [-2.0, -2.02, -2.1])]
)
def test_tolerances_are_on_the_worse_side_of_the_whole_model(metric, levels):
    ax = plots.plot_pruning_curve(curve(), metric=metric)
    found = [np.asarray(line.get_ydata())[0] for line in ax.lines if line.get_gid() == "within"]
    np.testing.assert_allclose(found, levels)
    lines = [line for line in ax.lines if line.get_gid() == "within"]
    assert [line.get_label() for line in lines] == ["the whole model", "1 % worse", "5 % worse"]
    assert len({line.get_linestyle() + str(line._dash_pattern) for line in lines}) == 3
    assert not ax.texts  # nothing is written across the lines


def test_only_a_normalisation_is_named():
    for normalise, name in (
        ("none", "greedy (2 removable at 1 %)"),
        ("layer", "greedy, by layer ("),
    ):
        frame = curve()
        frame.loc[frame["order"] == "greedy", "normalise"] = normalise
        assert str(named(plots.plot_pruning_curve(frame), "greedy").get_label()).startswith(name)


def test_perplexity_is_the_exponential_of_the_loss():
    ax = plots.plot_pruning_curve(curve(), metric="perplexity")
    drawn = np.asarray(named(ax, "greedy").get_ydata())
    np.testing.assert_allclose(drawn, np.exp([2, 2, 2.015, 2.6, 9]))
    assert ax.get_yscale() == "log"
    assert ax.yaxis.get_major_formatter()(10_000) == "10,000"
    assert ax.get_ylabel() == "perplexity, exp(loss), on held-out sequences"
    assert ax.get_title(loc="left") == "Perplexity as heads go"
    assert plots.plot_pruning_curve(curve()).get_yscale() == "linear"


def test_curve_without_random_orders_has_no_band():
    frame = curve()
    alone = frame[frame["order"] == "greedy"]
    alone.attrs = frame.attrs
    ax = plots.plot_pruning_curve(alone)
    assert not [c for c in ax.collections if isinstance(c, matplotlib.collections.PolyCollection)]
    with pytest.raises(ValueError, match="unknown metric of this table 'los'"):
        plots.plot_pruning_curve(frame, metric="los")
