"""Curves: a number of each head along positions, distances or training steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lab.naming import head_label, unknown_name
from probes.plots.canvas import (
    DASHES,
    FAINT,
    HEAD_COLOURS,
    HIDDEN,
    INK,
    MUTED,
    headline,
    legend_beside,
    own_axes,
    tidy,
)
from probes.registry import get_probe

NORMALISED = {"entropy": "normalised", "sink_free": "sink_free_normalised"}
"""Columns of entropies, and of the same as shares of the largest possible one."""

MOST_NAMED = 8
"""Up to this many heads have a colour and a name of their own in a chart; the others are faint."""

FEW_POINTS = 40
"""Up to this many, points of a curve are dots."""

HeadKey = tuple[int, int]


def plot_entropy(frame: pd.DataFrame, *, value: str = "entropy", ax: Axes | None = None) -> Axes:
    """Draw each head's entropy by position, under the ceiling that a head spread evenly reaches.

    The ceiling is log(q + 1) in a causal model and flat in a bidirectional one.

    Args:
        frame: The table of entropy_profile.
        value: "entropy", or "sink_free" with key 0 hidden.
        ax: Where to draw; None: a new figure.
    """
    ceiling = entropy_ceiling(frame, value)
    ax = own_axes(ax, 8.0, 4.2)
    ax.plot(ceiling.index, ceiling, color=MUTED, linewidth=1, label="all keys alike")
    ax.fill_between(ceiling.index, ceiling, color=HIDDEN, zorder=0)
    pairs = heads_of(frame)
    names = [head_label(layer, head) for layer, head in pairs]
    heads = [head_label(*pair) for pair in zip(frame["layer"], frame["head"], strict=True)]
    dashes: Any = [DASHES[layer % len(DASHES)] for layer, _ in pairs]
    sns.lineplot(
        x=frame["query_pos"],
        y=frame[value],
        hue=heads,
        style=heads,
        hue_order=names,
        style_order=names,
        palette=[HEAD_COLOURS[head % len(HEAD_COLOURS)] for _, head in pairs],
        dashes=dashes,
        errorbar=None,
        estimator=None,
        linewidth=2,
        ax=ax,
    )
    headline(ax, "Spread of attention" if value == "entropy" else "Spread without the first key")
    ax.set_xlabel("query position", color=INK)
    ax.set_ylabel("entropy (nats)", color=INK)
    ax.set_xlim(0, max(1, int(frame["query_pos"].max())))
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(ax)
    legend_beside(ax)
    return ax


def entropy_ceiling(frame: pd.DataFrame, value: str = "entropy") -> pd.Series:
    """Return the largest possible entropy of each row: the log of the keys it sees, by query_pos.

    It is read from the table, whose normalised entropies are shares of it, so that padding and
    bidirectional attention are what they were measured to be. Where all heads are perfectly sharp a
    share of 0 says nothing, and the row is taken to see what its neighbours suggest: one key more a
    row in a causal model, all of them in another.

    Raises:
        ValueError: There is no such column.
    """
    if value not in NORMALISED:
        raise ValueError(unknown_name("entropy column", value, NORMALISED))
    share = frame[NORMALISED[value]]
    logs = (frame[value] / share).where(share > 0).groupby(frame["query_pos"]).max()
    whole = frame.groupby("query_pos")[["entropy", "normalised"]].max()
    real = whole["entropy"].notna()
    first = whole[real].head(1)
    # The first row of a causal model sees itself only: it has an entropy, and no share of log 1.
    if len(first) and first["normalised"].isna().all():
        seen = whole.index.to_numpy() - int(first.index[0]) + (1 if value == "entropy" else 0)
        keys = pd.Series(seen, index=whole.index)
        logs = logs.fillna(pd.Series(np.log(keys.where(keys > 0)), index=whole.index))
    else:
        logs = logs.fillna(logs.max())
    return logs[real].dropna()


def plot_spectrum(
    frame: pd.DataFrame,
    *,
    heads: Sequence[HeadKey] | None = None,
    most: int = 6,
    ax: Axes | None = None,
) -> Axes:
    """Draw how much heads attend to each distance, beside a head that spreads evenly.

    Args:
        frame: The table of offset_spectrum.
        heads: The heads to name, as (layer, head); None: those furthest above chance.
        most: How many to name where none are given.
        ax: Where to draw; None: a new figure.
    """
    above = (frame["mass"] - frame["chance"]).groupby([frame["layer"], frame["head"]]).max()
    named = named_heads(above, heads, most)
    ax = own_axes(ax, 8.0, 4.2)
    even = frame.groupby("offset")["chance"].mean()
    marker = "o" if len(even) <= FEW_POINTS else ""
    for pair, own in frame.groupby(["layer", "head"]):
        if pair in named:
            continue
        ax.plot(own["offset"], own["mass"], color=FAINT, linewidth=1, zorder=1)
    for place, (layer, head) in enumerate(named):
        own = frame[(frame["layer"] == layer) & (frame["head"] == head)]
        colour = HEAD_COLOURS[place % len(HEAD_COLOURS)]
        ax.plot(
            own["offset"],
            own["mass"],
            color=colour,
            linewidth=2.2,
            marker=marker,
            markersize=5,
            linestyle=(0, DASHES[place // len(HEAD_COLOURS)] or ()),
            label=head_label(layer, head),
            zorder=3,
        )
    ax.plot(
        even.index,
        even,
        color=INK,
        linewidth=1.4,
        linestyle=(0, (1, 1.5)),
        label="chance: all keys alike",
        zorder=4,
    )
    headline(ax, "How far back heads look")
    ax.set_xlabel("distance: query position - key position (tokens)", color=INK)
    ax.set_ylabel("attention at that distance (mean)", color=INK)
    ax.set_ylim(0, min(1.02, max(0.25, 1.15 * frame["mass"].max())))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(ax)
    legend_beside(ax)
    return ax


def plot_dynamics(
    frame: pd.DataFrame,
    *,
    probe: str,
    onsets: pd.DataFrame | None = None,
    heads: Sequence[HeadKey] | None = None,
    most: int = MOST_NAMED,
    ax: Axes | None = None,
) -> Axes:
    """Draw one probe's score of each head over training, with a mark where it sets in.

    A head whose score is missing at a step has a gap there.

    Args:
        frame: The table of a film: one row per step, layer, head and probe.
        probe: Which probe of the table.
        onsets: The table of find_onsets; a triangle marks the onset of each head that has one.
        heads: The heads to name, as (layer, head); None: those that come furthest above chance.
        most: How many to name where none are given.
        ax: Where to draw; None: a new figure.
    """
    rows = frame[frame["probe"] == probe]
    if rows.empty:
        raise ValueError(unknown_name("probe of this table", probe, frame["probe"].unique()))
    above = (rows["score"] - rows["chance"]).groupby([rows["layer"], rows["head"]]).max()
    named = named_heads(above, heads, most)
    ax = own_axes(ax, 8.0, 4.2)
    for pair, own in rows.groupby(["layer", "head"]):
        if pair not in named:
            ax.plot(own["step"], own["score"], color=FAINT, linewidth=1, zorder=1)
    few = rows["step"].nunique() <= FEW_POINTS
    for place, (layer, head) in enumerate(named):
        own = rows[(rows["layer"] == layer) & (rows["head"] == head)].sort_values("step")
        colour = HEAD_COLOURS[place % len(HEAD_COLOURS)]
        ax.plot(
            own["step"],
            own["score"],
            color=colour,
            linewidth=2.2,
            marker="o" if few else "",
            markersize=4,
            linestyle=(0, DASHES[layer % len(DASHES)] or ()),
            label=head_label(layer, head),
            zorder=3,
            clip_on=False,  # the first and the last step are whole dots
        )
    if onsets is not None:
        mark_onsets(ax, onsets[onsets["probe"] == probe], named)
    even = rows.groupby("step")["chance"].mean()
    ax.plot(
        even.index,
        even,
        color=INK,
        linewidth=1.4,
        linestyle=(0, (1, 1.5)),
        label="chance: all keys alike",
        zorder=2,
    )
    headline(ax, f"{get_probe(probe).title}: how heads form")
    ax.set_xlabel("training step", color=INK)
    ax.set_ylabel("score (mean probability)", color=INK)
    ax.set_ylim(0, 1.02)
    ax.set_xlim(int(rows["step"].min()), max(1, int(rows["step"].max())))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(ax)
    legend_beside(ax)
    return ax


def mark_onsets(ax: Axes, onsets: pd.DataFrame, named: Sequence[HeadKey]) -> None:
    """Put a triangle where each named head sets in; the legend says what it means once."""
    own = onsets[[pair in named for pair in zip(onsets["layer"], onsets["head"], strict=True)]]
    if own.empty:
        return
    places = [named.index(pair) for pair in zip(own["layer"], own["head"], strict=True)]
    ax.scatter(
        own["step"],
        own["score"],
        c=[HEAD_COLOURS[place % len(HEAD_COLOURS)] for place in places],
        marker="^",
        s=110,
        edgecolors=INK,
        linewidths=1.2,
        zorder=5,
    )
    first, last = int(own["step"].min()), int(own["step"].max())
    when = f"step {first}" if first == last else f"steps {first} to {last}"
    ax.scatter([], [], c="white", marker="^", s=110, edgecolors=INK, label=f"sets in ({when})")


def heads_of(frame: pd.DataFrame) -> list[HeadKey]:
    """Return the heads of a table, in its order."""
    return list(dict.fromkeys(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True)))


def named_heads(above: pd.Series, heads: Sequence[HeadKey] | None, most: int) -> list[HeadKey]:
    """Return the heads to name: those given, or the highest of a series by layer and head."""
    if heads is None:
        return sorted(above.dropna().nlargest(most).index.tolist())
    known = above.index.tolist()
    for layer, head in heads:
        if (layer, head) not in known:
            names = [head_label(*pair) for pair in known]
            raise ValueError(unknown_name("head of this table", head_label(layer, head), names))
    return [(layer, head) for layer, head in heads]
