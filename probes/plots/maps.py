"""One head's map, cell by cell, with its tokens along both sides."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from lab.naming import head_label
from probes.plots.canvas import FAINT, HIDDEN, INK, ORANGE, drawable, headline, own_axes
from probes.plots.grids import draw_cells

LONGEST_TOKEN = 16
"""Characters of a token that a map has room for."""


def plot_attention(
    frame: pd.DataFrame, *, framed: str = "holds the answer", ax: Axes | None = None
) -> Axes:
    """Draw one head's map, queries down and keys across, with the cells of is_source framed.

    Args:
        frame: The table of attention_map.
        framed: What the framed cells, is_source of the table, are called.
        ax: Where to draw; None: a new figure.
    """
    grid = frame.pivot(index="query_pos", columns="key_pos", values="probability")
    n_pos = len(grid)
    labels = frame[frame["key_pos"] == frame["query_pos"]].sort_values("query_pos")["query_token"]
    ax = own_axes(ax, 1.9 + 0.27 * n_pos, 1.1 + 0.27 * n_pos)
    mesh = draw_cells(ax, grid)
    bar = ax.figure.colorbar(mesh, ax=ax, shrink=0.5, ticks=[0, 0.5, 1])
    bar.set_label("attention probability", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=INK)
    sources = frame[frame["is_source"]]
    for row, key in zip(sources["query_pos"], sources["key_pos"], strict=True):
        ax.add_patch(
            Rectangle((key, row), 1, 1, fill=False, edgecolor=ORANGE, linewidth=1.8, zorder=3)
        )
    draw_tokens(ax, [str(label) for label in labels])
    layer, head = int(frame["layer"].iloc[0]), int(frame["head"].iloc[0])
    headline(ax, f"Where head {head_label(layer, head)} looks")
    ax.set_xlabel("key: the token looked at", color=INK)
    ax.set_ylabel("query: the token that looks", color=INK)
    handles, hidden = [], bool(grid.isna().to_numpy().any())
    if len(sources):
        handles.append(Patch(facecolor="none", edgecolor=ORANGE, linewidth=1.8, label=framed))
    if hidden:
        handles.append(Patch(facecolor=HIDDEN, edgecolor=FAINT, label="not visible yet"))
    if handles:
        # A head that sees every key leaves no corner of its map to a legend: it goes below the
        # tokens, which take up to a twelfth of an inch a character.
        longest = min(LONGEST_TOKEN, max(len(drawable(str(label))) for label in labels))
        below = (0.5 + 0.085 * longest) / (0.27 * n_pos)
        ax.legend(
            handles=handles,
            loc="upper right",
            bbox_to_anchor=(1.0, 1.0 if hidden else -below),
            frameon=hidden,
            edgecolor=FAINT,
            fontsize=9,
        )
    return ax


def draw_tokens(ax: Axes, labels: Sequence[str]) -> None:
    """Write the tokens along both axes, every one of them, as plain text."""
    labels = [shortened(drawable(label)) for label in labels]
    places = np.arange(len(labels)) + 0.5
    size = 10 if len(labels) <= 32 else 6
    ax.set_xticks(places, labels, rotation=90, fontsize=size, family="monospace")
    ax.set_yticks(places, labels, rotation=0, fontsize=size, family="monospace")
    ax.tick_params(length=0, colors=INK)
    for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        # A dollar sign in a token is a dollar sign.
        text.set_parse_math(False)


def shortened(text: str) -> str:
    """Return a text, or the beginning of a long one and three dots."""
    return text if len(text) <= LONGEST_TOKEN else text[: LONGEST_TOKEN - 3] + "..."
