"""What ablations change: a grid of all heads, a group's heads one by one and together."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.naming import counted, head_label, unknown_name
from probes.number_text import short_change
from probes.plots.bars import (
    FEW_BARS,
    WIDEST,
    better_way,
    change_axis,
    change_label,
    of_metric,
)
from probes.plots.canvas import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    ORANGE,
    headline,
    legend_beside,
    own_axes,
    tidy,
)
from probes.plots.grids import draw_signed, number_axes

SKY = "#56b4e9"
"""Okabe and Ito's light blue, beside BLUE and ORANGE."""


def plot_effects(frame: pd.DataFrame, *, metric: str = "loss", ax: Axes | None = None) -> Axes:
    """Draw what each head's ablation changes: layers down, heads across, white where it is nothing.

    Orange is worse, blue better, of a metric that is known. Grey numbers are of heads whose 95 %
    interval holds 0.

    Args:
        frame: The table of ablation_sweep.
        metric: One of its metrics.
        ax: Where to draw; None: a new figure.
    """
    rows = of_metric(frame, metric)
    rows = rows[rows["head"].notna()]
    if rows.empty:
        raise ValueError("a table must have rows of single heads to be a grid, got sets only")
    grid, low, high = (
        rows.pivot(index="layer", columns="head", values=name)
        for name in ("delta", "ci_low", "ci_high")
    )
    many = grid.shape[0] > 16
    ax = own_axes(
        ax, 2.4 + (0.5 if many else 0.75) * grid.shape[1], 1.0 + (0.3 if many else 0.7) * len(grid)
    )
    better, unit = better_way(metric), str(rows["unit"].iloc[0])
    doubtful = (low.to_numpy(dtype=float) <= 0) & (high.to_numpy(dtype=float) >= 0)
    label = change_label(metric, unit, "" if better is None else "orange").replace(" (", "\n(")
    draw_signed(ax, grid, label, flip=better == "higher", doubtful=doubtful)
    number_axes(ax, grid.index.tolist(), grid.columns.tolist())
    if many:
        ax.set_aspect("auto")
    headline(ax, "What breaks without one head")
    return ax


def plot_joint(frame: pd.DataFrame, *, group: str, ax: Axes | None = None) -> Axes:
    """Draw a group's heads, ablated one by one and added up, beside all of them together.

    Where the last bar is larger than the one before it, the heads replace each other. Of the
    controls, as many other heads, the bar is the mean and the whisker the range; the other whiskers
    are 95 % intervals.

    Args:
        frame: The table of head_redundancy.
        group: One of its groups.
        ax: Where to draw; None: a new figure.
    """
    rows = frame[frame["group"] == group]
    if rows.empty:
        raise ValueError(unknown_name("group of this table", group, frame["group"].unique()))
    whole = rows[rows["head"].isna()].iloc[0]
    heads = rows[rows["head"].notna()]
    n = len(heads)
    singles, joint = (
        np.stack([part[name].to_numpy(dtype=float) for name in ("delta", "ci_low", "ci_high")])
        for part in (heads, rows[rows["head"].isna()])
    )
    control = whole[["control", "control_low", "control_high"]].to_numpy(dtype=float)
    added = np.array([whole["singles"], np.nan, np.nan], dtype=float)
    # One column a bar: its height and the ends of its whisker.
    bars = np.concatenate([singles, added[:, None], joint, control[:, None]], axis=1)
    bottoms = np.append(np.cumsum([0.0, *singles[0]])[:-1], np.zeros(3))
    places, few = np.arange(n + 3), n <= FEW_BARS
    ax = own_axes(ax, min(4.4 + 0.7 * len(rows), WIDEST / 2), 4.2)
    ax.bar(
        places, bars[0], bottom=bottoms, width=0.7, zorder=2,
        color=[*[BLUE] * n, SKY, ORANGE, FAINT],
    )  # fmt: skip
    whiskers(ax, places, *(bottoms + bars))
    ax.hlines(
        (bottoms + bars[0])[:n], places[:n] + 0.35, places[1 : n + 1], color=MUTED, linewidth=1
    )
    for place in places if few else places[n:]:
        value, low, high = bars[:, place]
        if np.isfinite(value):
            end = np.nanmax([value, high]) if value >= 0 else np.nanmin([value, low])
            ax.annotate(
                short_change(value), (place, bottoms[place] + end),
                xytext=(0, 4 if value >= 0 else -4),
                textcoords="offset points", ha="center", va="bottom" if value >= 0 else "top",
                fontsize=9, color=INK,
            )  # fmt: skip
    labels = [
        "sum of\nsingles",
        "all\ntogether",
        f"as many others,\nmean of {counted(int(whole['n_controls']), 'set')}",
    ]
    ax.set_xticks(places, [*head_names(heads), *labels], rotation=0 if few else 90)
    if not few:
        ax.tick_params(axis="x", labelsize=7)
    ax.axhline(0.0, color=MUTED, linewidth=1)
    ax.set_ylabel(change_axis(whole["metric"], whole["unit"]), color=INK)
    ax.margins(y=0.15)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0.0), max(high, 0.0))  # from a hair above 0 the axis has no 0
    ax.grid(axis="y", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    headline(ax, f"Heads of {group}: one by one, and together")
    tidy(ax)
    ax.tick_params(axis="x", length=0)
    return ax


def plot_shapley(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw each head's Shapley value, between what it costs alone and what it costs last.

    Args:
        frame: The table of shapley_values.
        ax: Where to draw; None: a new figure.
    """
    names = head_names(frame)
    places = np.arange(len(frame))
    ax = own_axes(ax, 4.4 + 0.62 * len(frame), 4.2)
    ax.bar(
        places, frame["value"], width=0.7, color=BLUE, zorder=2, label="Shapley value", gid="value"
    )
    whiskers(ax, places, *(frame[name].to_numpy() for name in ("value", "ci_low", "ci_high")))
    # The circle shows around a diamond on the same spot.
    for name, marker, size, colour, said in (
        ("alone", "o", 110, SKY, "alone: the others stay"),
        ("last", "D", 42, ORANGE, "last: the others are gone"),
    ):
        ax.scatter(
            places, frame[name], s=size, marker=marker, color=colour, edgecolor=INK, linewidth=0.8,
            label=said, gid=name, zorder=4,
        )  # fmt: skip
    ax.set_xticks(places, names)
    ax.axhline(0.0, color=MUTED, linewidth=1)
    ax.set_ylabel(change_axis(frame["metric"].iloc[0], frame["unit"].iloc[0]), color=INK)
    ax.margins(y=0.12)
    ax.grid(axis="y", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    joint, unit = float(frame["joint"].iloc[0]), str(frame["unit"].iloc[0])
    headline(
        ax, f"Each head's share of {joint:+.2f}{'' if unit == 'share' else f' {unit}'} together"
    )
    tidy(ax)
    ax.tick_params(axis="x", length=0)
    legend_beside(ax)
    return ax


def head_names(frame: pd.DataFrame) -> list[str]:
    """Return the names of the heads of a table's rows: L0H3."""
    pairs = zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True)
    return [head_label(layer, head) for layer, head in pairs]


def whiskers(
    ax: Axes, places: np.ndarray, values: np.ndarray, low: np.ndarray, high: np.ndarray
) -> None:
    """Draw intervals on the ends of bars; one that is missing is left out."""
    ends = np.stack([values - low, high - values]).clip(min=0)
    bars = ax.errorbar(
        places, values, ends, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, zorder=3
    )
    bars.lines[2][0].set_gid("whiskers")
