"""What heads do for each other: pairs that cost more than their sum, and losses made up for."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.naming import head_label, unknown_name
from probes.plots.bars import better_way, change_label, of_metric
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


def plot_pairs(
    frame: pd.DataFrame, *, most: int = 16, least: float = 0.01, ax: Axes | None = None
) -> Axes:
    """Draw what each pair of heads costs beyond the sum of the two, as a triangle of heads.

    Orange: worse together than added up, so one replaces the other. Grey numbers are of pairs
    whose 95 % interval holds 0. Pairs of heads that are left out are counted below.

    Args:
        frame: The table of pair_effects.
        most: How many heads to draw: those with the largest interaction.
        least: Share of the largest interaction that a head must reach with another, to be drawn.
        ax: Where to draw; None: a new figure.
    """
    metric, unit = str(frame["metric"].iloc[0]), str(frame["unit"].iloc[0])
    ends = [
        list(zip(frame[layer].tolist(), frame[head].tolist(), strict=True))
        for layer, head in (("layer", "head"), ("other_layer", "other_head"))
    ]
    sizes: dict[tuple[int, int], float] = {}
    for pair, size in zip(zip(*ends, strict=True), frame["interaction"].abs(), strict=True):
        for head in pair:
            sizes[head] = max(sizes.get(head, 0.0), size)
    enough = least * max(sizes.values())
    heads = sorted(sorted(sizes, key=lambda head: -sizes[head])[:most])
    heads = [head for head in heads if sizes[head] >= enough]
    names = [head_label(*head) for head in heads]
    values, doubtful = (np.full((len(heads), len(heads)), np.nan) for _ in range(2))
    for one, other, row in zip(*ends, frame.itertuples(), strict=True):
        if one in heads and other in heads:
            low, high = sorted((heads.index(one), heads.index(other)))
            values[high, low] = row.interaction
            doubtful[high, low] = row.ci_low <= 0 <= row.ci_high
    grid = pd.DataFrame(values[1:, :-1], index=names[1:], columns=names[:-1])
    ax = own_axes(ax, 3.4 + 0.62 * grid.shape[1], 1.6 + 0.42 * len(grid))
    better = better_way(metric)
    label = change_label(metric, unit, "" if better is None else "orange").replace(" (", "\n(")
    draw_signed(ax, grid, label, flip=better == "higher", doubtful=doubtful[1:, :-1] == 1)
    number_axes(ax, names[1:], names[:-1])
    ax.set_aspect("auto")
    ax.set_facecolor("white")
    ax.set_ylabel("")
    left_out = frame[
        [one not in heads or other not in heads for one, other in zip(*ends, strict=True)]
    ]
    largest = float(left_out["interaction"].abs().max())
    ax.set_xlabel(
        f"not drawn: {len(left_out)} of {len(frame)} pairs, at most {largest:.1e} either way"
        if len(left_out)
        else "",
        color=INK,
    )
    headline(ax, "What two heads cost beyond the sum")
    return ax


def plot_repair(
    frame: pd.DataFrame,
    *,
    metric: str = "margin",
    norm: str = "free",
    most: int = 14,
    ax: Axes | None = None,
) -> Axes:
    """Draw what each head's loss costs directly, and in all once the later layers have reacted.

    A line to the left is what others make up for; a line to the right, what fails with the head.

    Args:
        frame: The table of repair_split.
        metric: One of its metrics.
        norm: The last norm's scale, "free" or "frozen".
        most: How many heads to draw: those of the largest effect of either kind.
        ax: Where to draw; None: a new figure.
    """
    rows = of_metric(frame, metric)
    if norm not in set(rows["norm"]):
        raise ValueError(unknown_name("norm of this table", norm, rows["norm"].unique()))
    rows = rows[rows["norm"] == norm]
    size = rows[["direct", "total"]].abs().max(axis=1)
    own = rows.loc[size.sort_values(ascending=False).index[:most]]
    places = np.arange(len(own))
    ax = own_axes(ax, 7.6, 1.5 + 0.34 * len(own))
    ax.hlines(
        places, own["direct"], own["total"], color=MUTED, linewidth=2.2, zorder=2, gid="repair"
    )
    for name, marker, colour, said in (
        ("direct", "o", BLUE, "directly: its own writing"),
        ("total", "D", ORANGE, "in all: later layers react"),
    ):
        ax.scatter(
            own[name], places, s=56, marker=marker, color=colour, edgecolor=INK, linewidth=0.7,
            label=said, gid=name, zorder=3,
        )  # fmt: skip
    ax.axvline(0, color=MUTED, linewidth=1)
    ax.set_yticks(places, own["heads"])
    ax.set_ylim(len(own) - 0.4, -0.6)
    unit = str(own["unit"].iloc[0])
    ax.set_xlabel(f"how much worse {metric.replace('_', ' ')} gets ({unit})", color=INK)
    ax.grid(axis="x", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    headline(ax, "What a head is worth, and what others make up for")
    tidy(ax)
    ax.tick_params(axis="y", length=0)
    legend_beside(ax)
    return ax
