"""Sums drawn: what each part adds to an answer's logit, and the strongest edges between parts."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.naming import head_label
from probes.plots.canvas import BLUE, FAINT, INK, MUTED, ORANGE, headline, own_axes, tidy


def part_name(part: str, layer: Any, head: Any) -> str:
    """Return what one part of a model is called: L0H3, L1 MLP, embed.

    >>> part_name("head", 0, 3), part_name("mlp", 1, None), part_name("embed", None, None)
    ('L0H3', 'L1 MLP', 'embed')
    """
    if pd.isna(layer):
        return part
    if pd.isna(head):
        return f"L{int(layer)} {part.upper() if part == 'mlp' else part}"
    return head_label(int(layer), int(head))


def plot_attribution(frame: pd.DataFrame, *, most: int = 14, ax: Axes | None = None) -> Axes:
    """Draw what the parts of the model add to the answer's logit, the largest first.

    The rest is one bar, so that all bars sum to the logit in the title.

    Args:
        frame: The table of logit_attribution.
        most: How many parts have a bar of their own.
        ax: Where to draw; None: a new figure.
    """
    most = len(frame) if len(frame) == most + 1 else most  # one other has a name
    order = frame["attribution"].abs().sort_values(ascending=False).index
    own, rest = frame.loc[order[:most]], frame.loc[order[most:]]
    names = [part_name(*row) for row in own[["part", "layer", "head"]].itertuples(index=False)]
    values, low, high = (own[name].tolist() for name in ("attribution", "ci_low", "ci_high"))
    if len(rest):
        names.append(f"{len(rest)} others")
        values.append(float(rest["attribution"].sum()))
        low.append(np.nan)
        high.append(np.nan)
    total = float(frame["attribution"].sum())
    ax = signed_bars(ax, names, np.array(values), np.array(low), np.array(high))
    ax.set_xlabel("added to the answer's logit (mean)", color=INK)
    headline(ax, f"Who makes the logit of {total:.2f}")
    return ax


def plot_edges(frame: pd.DataFrame, *, most: int = 16, ax: Axes | None = None) -> Axes:
    """Draw the edges of the largest estimated effect, from writer to reader.

    Args:
        frame: The table of edge_attribution.
        most: How many edges to draw.
        ax: Where to draw; None: a new figure.
    """
    own = frame.loc[frame["score"].abs().sort_values(ascending=False).index[:most]]
    names = []
    for edge in own.itertuples():
        reader = part_name(str(edge.reader), edge.reader_layer, edge.reader_head)
        inlet = f" {edge.reader}" if edge.reader in ("q", "k", "v") else ""
        writer = part_name(str(edge.writer), edge.writer_layer, edge.writer_head)
        names.append(f"{writer} > {reader}{inlet}")
    columns = (own[name].to_numpy() for name in ("score", "ci_low", "ci_high"))
    ax = signed_bars(ax, names, *columns)
    ax.set_xlabel("brought back of the clean answer (logits, first order)", color=INK)
    headline(ax, "The strongest edges")
    return ax


def signed_bars(
    ax: Axes | None, names: list[str], values: np.ndarray, low: np.ndarray, high: np.ndarray
) -> Axes:
    """Draw lying bars, the first on top: blue to the right of 0, orange to the left."""
    ax = own_axes(ax, 6.6, 1.4 + 0.32 * len(names))
    places = np.arange(len(names))
    ax.barh(places, values, height=0.7, color=np.where(values < 0, ORANGE, BLUE).tolist(), zorder=2)
    ends = np.stack([values - low, high - values]).clip(min=0)
    ax.errorbar(
        values, places, xerr=ends, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5, zorder=3
    )
    ax.axvline(0, color=MUTED, linewidth=1)
    ax.set_yticks(places, names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="x", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    tidy(ax)
    ax.tick_params(axis="y", length=0)
    return ax
