"""Other people's tools drawn: what a patch brings back, and what each layer would say."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lab.naming import head_label
from probes.plots.canvas import BLUE, FAINT, INK, ORANGE, headline, legend_beside, own_axes, tidy
from probes.plots.grids import FEW_COLUMNS, draw_cells, draw_signed, number_axes, write_scores

WHAT = {
    "resid_pre": "the stream before the layer",
    "resid_mid": "the stream after attention",
    "attn_out": "what attention adds",
    "mlp_out": "what the MLP adds",
    "z": "a head's output",
    "q": "a head's queries",
    "k": "a key head's keys",
    "v": "a key head's values",
    "pattern": "a head's attention",
}
"""What each activation is called in a title."""
NARROWEST = 5.6
"""Inches that a title needs."""


def plot_patching(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how much of the answer each patch brings back: white nothing, the darker the more.

    Layers or heads down; positions across where they were patched one by one, else heads.

    Args:
        frame: The table of patch_activations.
        ax: Where to draw; None: a new figure.
    """
    by_position, by_head = frame["pos"].notna().all(), frame["head"].notna().all()
    named = frame.assign(
        row=[
            head_label(layer, int(head)) if by_position and by_head else str(layer)
            for layer, head in zip(frame["layer"].tolist(), frame["head"], strict=True)
        ],
        column=frame["pos"] if by_position else frame["head"].fillna(0),
    )
    grid = named.pivot(index="row", columns="column", values="share")
    ordered = named.sort_values(["layer", "head"])["row"].drop_duplicates()
    grid = grid.loc[ordered]
    ax = own_axes(ax, max(NARROWEST, 2.8 + 0.5 * grid.shape[1]), 1.6 + 0.36 * len(grid))
    draw_signed(ax, grid, "share brought back\n(1: all of it)")
    number_axes(ax, grid.index.tolist(), grid.columns.tolist())
    ax.set_aspect("auto")
    ax.set_xlabel("position" if by_position else "head" if by_head else "", color=INK)
    ax.set_ylabel("head" if by_position and by_head else "layer", color=INK)
    if not (by_position or by_head):
        ax.set_xticks([])
    elif grid.shape[1] > 2 * FEW_COLUMNS:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    headline(ax, f"What comes back with {WHAT[str(frame['activation'].iloc[0])]}")
    return ax


def plot_lens(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw how likely the answer would be if the model stopped after each layer.

    The last point is the model itself. With positions, cells are the geometric mean of the answer's
    probability: white 0, dark 1.

    Args:
        frame: The table of logit_lens.
        ax: Where to draw; None: a new figure.
    """
    if frame["pos"].notna().all():
        likely = frame.assign(probability=np.exp(frame["log_prob"]))
        grid = likely.pivot(index="layer", columns="pos", values="probability")
        ax = own_axes(ax, max(NARROWEST, 1.6 + 0.5 * grid.shape[1]), 1.4 + 0.36 * len(grid))
        draw_cells(ax, grid, edge=FAINT)
        if grid.shape[1] <= FEW_COLUMNS:
            write_scores(ax, grid)
        number_axes(ax, grid.index.tolist(), grid.columns.tolist())
        ax.set_aspect("auto")
        ax.set_xlabel("position", color=INK)
        ax.set_ylabel("layers that have acted", color=INK)
    else:
        ax = own_axes(ax, 7.2, 4.0)
        ax.fill_between(
            frame["layer"], frame["ci_low"], frame["ci_high"], color=FAINT, zorder=1,
            label="95 % interval",
        )  # fmt: skip
        ax.plot(
            frame["layer"], frame["log_prob"], color=BLUE, linewidth=2.2, marker="o", zorder=3,
            label="the answer",
        )  # fmt: skip
        ax.plot(
            frame["layer"], -frame["entropy"], color=ORANGE, linewidth=1.6, marker="s",
            linestyle=(0, (4, 1.5)), zorder=2, label="- entropy: how sure it is",
        )  # fmt: skip
        ax.set_xlabel("layers that have acted", color=INK)
        ax.set_ylabel("ln p(answer) (nats)", color=INK)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.margins(y=0.08)
        tidy(ax)
        legend_beside(ax)
    headline(ax, "What the model would say after each layer")
    return ax
