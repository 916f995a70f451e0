"""Bars: what each ablation changes, and the rungs of a ladder of probes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.naming import head_label, unknown_name
from probes.ablation.metrics import METRICS
from probes.head_classes import LADDER
from probes.number_text import FLAT, short_change
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
from probes.registry import SOURCE_PROBES, get_probe

FEW_BARS = 16
"""Up to this many, bars have room for their numbers."""

MANY_BARS = 60
"""Beyond this many, their names are small print."""

WIDEST = 24.0
"""Inches that no chart of bars is wider than."""

RUNG_COLOURS = ("#56b4e9", "#e69f00", "#0b5c94")


def change_label(metric: str, unit: str, worse: str = "") -> str:
    """Return what an axis of changes says: of which metric, in which unit, and which way is worse.

    >>> change_label("loss", "nats", "orange"), change_label("exact_match", "share")
    ('change in loss (nats; orange is worse)', 'change in exact match')
    """
    notes = ["" if unit == "share" else unit, f"{worse} is worse" if worse else ""]
    said = "; ".join(note for note in notes if note)
    return f"change in {metric.replace('_', ' ')}" + (f" ({said})" if said else "")


def better_way(metric: str) -> str | None:
    """Return which way of a metric is better: lower, higher, or None of an unknown one."""
    return {known.name: known.better for known in METRICS}.get(metric)


def change_axis(metric: str, unit: str) -> str:
    """Return the name of an axis along which a metric's changes are drawn upwards."""
    worse = {"lower": "up", "higher": "down", None: ""}[better_way(metric)]
    return change_label(metric, unit, worse)


def of_metric(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows of one metric.

    Raises:
        ValueError: The table has none.
    """
    rows = frame[frame["metric"] == metric]
    if rows.empty:
        raise ValueError(unknown_name("metric of this table", metric, frame["metric"].unique()))
    return rows


def plot_ablation(frame: pd.DataFrame, *, metric: str = "loss", ax: Axes | None = None) -> Axes:
    """Draw what each ablation changes: heads in blue, sets of them in orange, with 95 % intervals.

    Args:
        frame: The table of ablation_sweep.
        metric: One of its metrics.
        ax: Where to draw; None: a new figure.
    """
    rows = of_metric(frame, metric)
    ax = own_axes(ax, min(1.8 + 0.62 * len(rows), WIDEST), 3.8)
    whole = rows["head"].isna().to_numpy()
    layers = rows[~whole].groupby("layer")["heads"].agg(",".join)
    names = [
        set_name(heads, layer, layers.get(layer)) if several else heads
        for layer, heads, several in zip(rows["layer"], rows["heads"], whole, strict=True)
    ]
    delta = rows["delta"].to_numpy()
    places = np.arange(len(rows))
    ax.bar(places, delta, width=0.72, color=np.where(whole, ORANGE, BLUE).tolist(), zorder=2)
    ends = np.stack([delta - rows["ci_low"], rows["ci_high"] - delta]).clip(min=0)
    ax.errorbar(places, delta, ends, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, zorder=3)
    ax.axhline(0.0, color=MUTED, linewidth=1)
    ax.set_xticks(places, names, rotation=0 if len(rows) <= FEW_BARS else 90)
    if len(rows) > MANY_BARS:
        ax.tick_params(axis="x", labelsize=5)
    mode = str(rows["mode"].iloc[0])
    gap = {"zero": "zeros", "mean": "its mean", "resample": "another sequence's"}[mode]
    headline(ax, f"Without a head ({gap} instead)")
    if len(rows) <= FEW_BARS:
        label_bars(ax, delta, rows["ci_low"].fillna(0).tolist(), rows["ci_high"].fillna(0).tolist())
    unit = str(rows["unit"].iloc[0])
    ax.set_ylabel(change_axis(metric, unit), color=INK)
    if unit == "share":
        ax.set_ylim(-1.15, 0.15 + max(0.0, delta.max()))
    else:
        ax.margins(y=0.12)
    ax.grid(axis="y", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    tidy(ax)
    ax.tick_params(axis="x", length=0)
    return ax


def set_name(heads: str, layer: int, all_heads: str | None) -> str:
    """Return what a bar of several heads is called: its layer, if they are all that it has."""
    if heads == all_heads:
        return f"all of\nlayer {layer}"
    named = heads.split(",")
    return "\n".join([*named[:3], "..."] if len(named) > 4 else named)


def label_bars(ax: Axes, delta: np.ndarray, low: Sequence[float], high: Sequence[float]) -> None:
    """Write each change beyond the end of its bar and whisker: a flat bar is a number too."""
    for place, (change, bottom, top) in enumerate(zip(delta, low, high, strict=True)):
        up = abs(change) < FLAT or change > 0
        ax.annotate(
            short_change(change),
            (place, max(change, top) if up else min(change, bottom)),
            xytext=(0, 4 if up else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if up else "top",
            fontsize=9,
            color=INK,
        )


def plot_ladder(
    frame: pd.DataFrame,
    *,
    probes: Sequence[str] = LADDER,
    most: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Draw neighbouring probes side by side, so that an off-by-one shows: a bar a rung, by head.

    The dark line across a bar is what a head spread evenly would have. Whiskers are 95 % intervals;
    of a table of evidence, diamonds are the controls instead.

    Args:
        frame: The table of score_heads, or of evidence.
        probes: The rungs: LADDER, or SOURCE_PROBES for a task's batch.
        most: How many heads to draw: those with a rung furthest above chance.
        ax: Where to draw; None: a new figure.
    """
    for name in probes:
        if name not in set(frame["probe"]):
            raise ValueError(unknown_name("probe of this table", name, frame["probe"].unique()))
    rows = frame[frame["probe"].isin(list(probes))]
    above = (rows["score"] - rows["chance"]).groupby([rows["layer"], rows["head"]]).max()
    heads = sorted(above.dropna().nlargest(most).index.tolist())
    ax = own_axes(ax, 4.4 + 0.75 * len(heads), 4.2)
    width = 0.8 / len(probes)
    indexed = rows.set_index(["probe", "layer", "head"])
    for rung, name in enumerate(probes):
        own = indexed.loc[name].loc[heads]
        places = np.arange(len(heads)) + (rung - (len(probes) - 1) / 2) * width
        score = own["score"].to_numpy()
        ax.bar(
            places,
            score,
            width=0.92 * width,
            color=RUNG_COLOURS[rung % len(RUNG_COLOURS)],
            label=get_probe(name).rung or name,
            zorder=2,
        )
        if "control" in own and own["control"].notna().any():
            ax.scatter(
                places, own["control"], s=42, marker="D", facecolor="white", edgecolor=INK,
                label="control: no repeat" if rung == 0 else None, gid="control", zorder=5,
            )  # fmt: skip
        else:
            ends = np.stack([score - own["ci_low"], own["ci_high"] - score]).clip(min=0)
            ax.errorbar(
                places, score, ends, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5, zorder=3
            )
        ax.hlines(
            own["chance"], places - width / 2, places + width / 2, color=INK, linewidth=1.6,
            label="chance: all keys alike" if rung == 0 else "", gid="chance", zorder=4,
        )  # fmt: skip
    ax.set_xticks(np.arange(len(heads)), [head_label(layer, head) for layer, head in heads])
    ax.set_ylim(0, 1.05)
    ax.set_ylabel("score (mean probability)", color=INK)
    headline(
        ax,
        "On the answer's source, or late"
        if probes[0] in SOURCE_PROBES
        else "Before, on or after the earlier copy",
    )
    ax.grid(axis="y", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    tidy(ax)
    ax.tick_params(axis="x", length=0)
    legend_beside(ax)
    return ax
