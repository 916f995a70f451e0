"""What each head is called, and how often a label is right."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from probes.head_classes import (
    CLASSES,
    CLASSES_BY_NAME,
    HEAD_CLASSES,
    OTHER_LABELS,
    OTHERS,
    HeadClass,
    OtherLabel,
)
from probes.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PROBABILITY,
    headline,
    ink_on,
    own_axes,
    tint,
)
from probes.plots.grids import FEW_COLUMNS, number_axes

ENTRIES: Mapping[str, HeadClass | OtherLabel] = MappingProxyType(
    {entry.name: entry for entry in (*HEAD_CLASSES, *OTHER_LABELS)}
)
"""Every label. One that is not here is another name of the sources, such as reversal."""

WEAK_TINT = 0.35
"""How much colour the cell of a weak label has."""


def label_colour(label: str) -> str:
    """Return the colour of a label in every chart."""
    return ENTRIES.get(label, CLASSES_BY_NAME["sources"]).colour


def plot_labels(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw what each head is called: layers down, heads across, a colour a label.

    A weak label is pale in a frame of its colour. A head whose output is next to nothing is struck
    through, whatever it attends to.

    Args:
        frame: The table of label_heads.
        ax: Where to draw; None: a new figure.
    """
    layers, heads = (sorted(set(frame[axis].tolist())) for axis in ("layer", "head"))
    few = len(heads) <= FEW_COLUMNS
    side = 0.66 if few else 0.3
    handles = legend_of(frame)
    height = max(0.9 + side * len(layers), 0.6 + 0.25 * len(handles))
    ax = own_axes(ax, 3.0 + side * len(heads), height)
    columns = ("layer", "head", "label", "strength", "score", "silent")
    for layer, head, label, strength, score, silent in zip(
        *(frame[name].tolist() for name in columns), strict=True
    ):
        place = heads.index(head), layers.index(layer)
        # A head that is no class has no number of its own: its nearest class has.
        draw_label(ax, place, label, strength, score if strength else math.nan, named=few)
        if silent:
            x, y = place
            ax.plot([x + 0.08, x + 0.92], [y + 0.92, y + 0.08], color=INK, linewidth=1.2, zorder=4)
    ax.set_xlim(0, len(heads))
    ax.set_ylim(len(layers), 0)
    ax.set_facecolor("white")
    number_axes(ax, layers, heads)
    headline(ax, "What each head does" + (", and its score" if few else ""))
    ax.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        frameon=False,
        fontsize=10,
    )
    return ax


def legend_of(frame: pd.DataFrame) -> list[Patch | Line2D]:
    """Return what the colours and marks of a table's labels mean, with how many heads have them."""
    counts = frame["label"].value_counts()
    # A task's own heads come first, and of the labels that are no class the mixed one.
    known = [label for label in counts.index if label not in ENTRIES or label == "sources"]
    known += dict.fromkeys((*(name for name in CLASSES if name != "sources"), "mixed", *OTHERS))
    handles: list[Patch | Line2D] = [
        Patch(
            facecolor=label_colour(label), edgecolor=MUTED, linewidth=0.6,
            label=f"{label} ({counts[label]})",
        )
        for label in known
        if label in counts
    ]  # fmt: skip
    if frame["silent"].any():
        count = int(frame["silent"].sum())
        handles.append(Line2D([], [], color=INK, linewidth=1.2, label=f"silent ({count})"))
    if (frame["strength"] == "weak").any():
        handles.append(Patch(facecolor=tint(MUTED, 0.2), edgecolor=MUTED, label="pale: weak"))
    return handles


def draw_label(
    ax: Axes,
    place: tuple[int, int],
    label: str,
    strength: str,
    score: float,
    *,
    named: bool,
) -> None:
    """Draw one head's cell."""
    x, y = place
    colour = label_colour(label)
    weak = strength == "weak"
    ground = tint(colour, WEAK_TINT) if weak else colour
    ax.add_patch(
        Rectangle(
            (x + 0.04, y + 0.04),
            0.92,
            0.92,
            facecolor=ground,
            edgecolor=colour if weak else FAINT,
            linewidth=2.0 if weak else 0.8,
            zorder=2,
            gid=label,
        )
    )
    if not named:
        return
    ink = ink_on(ground)
    name = ENTRIES[label].short if label in ENTRIES else label[:3]
    ax.text(
        x + 0.5, y + (0.38 if not math.isnan(score) else 0.5), name,
        ha="center", va="center", color=ink, fontsize=11, fontweight="bold", zorder=5,
    )  # fmt: skip
    if not math.isnan(score):
        ax.text(
            x + 0.5, y + 0.72, f"{score:.2f}",
            ha="center", va="center", color=ink, fontsize=9, zorder=5,
        )  # fmt: skip


def plot_confusion(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how heads of each known kind were labelled: truth down, label across.

    Colour is the share of a row, numbers are heads; right answers are framed.

    Args:
        frame: Rows of truth, label and n_heads.
        ax: Where to draw; None: a new figure.
    """
    counts = frame.pivot_table(
        index="truth", columns="label", values="n_heads", aggfunc="sum", fill_value=0
    )
    truths = list(dict.fromkeys(frame["truth"]))
    labels = [name for name in truths if name in counts] + [
        name for name in dict.fromkeys(frame["label"]) if name not in truths
    ]
    counts = counts.loc[truths, labels]
    shares = counts.div(counts.sum(axis=1), axis=0)
    ax = own_axes(ax, 2.6 + 0.72 * len(labels), 1.9 + 0.5 * len(truths))
    ax.pcolormesh(
        shares.to_numpy(dtype=float), cmap=PROBABILITY, vmin=0.0, vmax=1.0, edgecolors=FAINT,
        linewidth=0.8,
    )  # fmt: skip
    for y, truth in enumerate(truths):
        for x, label in enumerate(labels):
            count, share = int(counts.to_numpy()[y, x]), float(shares.to_numpy()[y, x])
            if count:
                ax.text(
                    x + 0.5, y + 0.5, str(count), ha="center", va="center", fontsize=11,
                    color="white" if share > 0.55 else INK,
                )  # fmt: skip
            if truth == label:
                ax.add_patch(
                    Rectangle((x, y), 1, 1, fill=False, edgecolor=INK, linewidth=1.6, zorder=3)
                )
    ax.set_xlim(0, len(labels))
    ax.set_ylim(len(truths), 0)
    ax.tick_params(length=0, colors=INK)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_xticks(np.arange(len(labels)) + 0.5, labels, rotation=40, ha="right", fontsize=10)
    ax.set_yticks(np.arange(len(truths)) + 0.5, truths, fontsize=10)
    ax.set_xlabel("label given", color=INK)
    ax.set_ylabel("what the head was built to be", color=INK)
    headline(ax, "Known heads and their labels")
    return ax
