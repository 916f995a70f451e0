"""Grids of heads coloured by a number: layers down, heads across; white is 0."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from lab.naming import unknown_name
from probes.plots.canvas import FAINT, HIDDEN, INK, MUTED, PROBABILITY, SIGNED, ink_on, own_axes
from probes.registry import get_probe

FEW_COLUMNS = 16
"""Up to this many heads, cells have room for their numbers."""
PALE = "#c9ced6"
"""Grey that can be read on a dark ground."""
MANY_CELLS = 64
"""Beyond this many, a signed scale ends before the largest number."""


def plot_head_grid(frame: pd.DataFrame, *, probe: str, ax: Axes | None = None) -> Axes:
    """Draw one probe's scores of all heads: layers down, heads across, white 0 to dark 1.

    Args:
        frame: The table of score_heads.
        probe: Which probe of the table.
        ax: Where to draw; None: a new figure.
    """
    rows = frame[frame["probe"] == probe]
    if rows.empty:
        raise ValueError(unknown_name("probe of this table", probe, frame["probe"].unique()))
    grid = rows.pivot(index="layer", columns="head", values="score")
    ax = own_axes(ax, 1.2 + 0.75 * grid.shape[1], 0.9 + 0.7 * grid.shape[0])
    draw_cells(ax, grid, edge=FAINT)
    if grid.shape[1] <= FEW_COLUMNS:
        write_scores(ax, grid)
    number_axes(ax, grid.index.tolist(), grid.columns.tolist())
    ax.set_title(get_probe(probe).title, loc="left", fontsize=11, color=INK, fontweight="bold")
    return ax


def number_axes(ax: Axes, layers: Sequence[object], heads: Sequence[object]) -> None:
    """Write the numbers of layers and heads, which have gaps in a pruned model, along a grid."""
    ax.set_xticks(np.arange(len(heads)) + 0.5, [str(head) for head in heads])
    ax.set_yticks(np.arange(len(layers)) + 0.5, [str(layer) for layer in layers])
    ax.set_xlabel("head", color=INK)
    ax.set_ylabel("layer", color=INK, labelpad=8)
    ax.set_aspect("equal")
    ax.tick_params(length=0, colors=INK)
    for spine in ax.spines.values():
        spine.set_visible(False)


def draw_cells(ax: Axes, grid: pd.DataFrame, *, edge: str | None = None) -> QuadMesh:
    """Draw a grid of probabilities, first row on top; a missing one stays the ground's colour.

    seaborn's heatmap draws the whole figure once a call, to see whether labels overlap: eight grids
    of one figure would take eight times as long.
    """
    mesh = ax.pcolormesh(
        grid.to_numpy(dtype=float),
        cmap=PROBABILITY,
        vmin=0.0,
        vmax=1.0,
        edgecolors=edge or "none",
        linewidth=0.8 if edge else 0.0,
    )
    ax.set_facecolor(HIDDEN)
    ax.set_xlim(0, grid.shape[1])
    ax.set_ylim(grid.shape[0], 0)
    ax.set_aspect("equal")
    ax.tick_params(length=0, colors=INK)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return mesh


def write_scores(ax: Axes, grid: pd.DataFrame) -> None:
    """Write each score into its cell, light on dark."""
    for row, scores in enumerate(grid.to_numpy(dtype=float)):
        for column, score in enumerate(scores):
            if not np.isnan(score):
                ax.text(
                    column + 0.5,
                    row + 0.5,
                    f"{score:.2f}",
                    ha="center",
                    va="center",
                    fontsize=11 if grid.shape[1] <= 8 else 7,
                    color="white" if score > 0.55 else INK,
                )


def draw_signed(
    ax: Axes,
    grid: pd.DataFrame,
    label: str,
    *,
    most: float | None = None,
    flip: bool = False,
    doubtful: Any = None,
) -> None:
    """Draw a grid of numbers around 0 with its scale: orange above, white 0, blue below.

    Args:
        ax: Where to draw.
        grid: The numbers, first row on top; a missing one stays the ground's colour.
        label: What the numbers are, with their unit.
        most: Size at which colours end; None: the largest, or of more than 64 cells one that 1 %
            of them exceed, so that a single cell does not make all others white.
        flip: Orange below 0 and blue above it.
        doubtful: Cells of the same shape whose numbers are written in grey; None: none.
    """
    values = grid.to_numpy(dtype=float)
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max(initial=0.0))
    if most is None:
        most = float(np.quantile(sizes, 0.99)) if sizes.size > MANY_CELLS else largest
    most = most or 1.0
    colours = SIGNED.reversed() if flip else SIGNED
    edges = np.where(np.isfinite(values), FAINT, "none").ravel().tolist()
    mesh = ax.pcolormesh(
        values, cmap=colours, vmin=-most, vmax=most, edgecolors=edges, linewidth=0.8
    )
    ax.set_facecolor(HIDDEN)
    ax.set_xlim(0, grid.shape[1])
    ax.set_ylim(grid.shape[0], 0)
    bar = ax.figure.colorbar(
        mesh, ax=ax, shrink=0.8, extend="both" if largest > most else "neither"
    )
    written = grid.shape[1] <= FEW_COLUMNS
    if written and doubtful is not None and bool(np.any(doubtful)):
        label += "\ngrey numbers: the interval holds 0"
    bar.set_label(label, color=INK)
    bar.ax.tick_params(length=0, colors=INK)
    if not written:
        return
    form = ".2f" if largest >= 0.095 else ".3f" if largest >= 0.0095 else ".0e"
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            ground = colours(0.5 + 0.5 * float(np.clip(value / most, -1, 1)))
            faint = doubtful is not None and bool(doubtful[row, column])
            ax.text(
                column + 0.5,
                row + 0.5,
                f"{value:z{form}}",
                ha="center",
                va="center",
                fontsize=10 if grid.shape[1] <= 9 else 7,
                color=(MUTED if ink_on(ground) == INK else PALE) if faint else ink_on(ground),
            )
