"""First-order estimates of every head beside what its ablation really changes."""

import numpy as np
import pandas as pd
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from lab.naming import unknown_name
from probes.plots.bars import change_label
from probes.plots.canvas import BLUE, FAINT, INK, MUTED, headline, own_axes, tidy
from probes.plots.effects import head_names

ESTIMATORS = {
    "estimate": "attribution patching",
    "importance": "importance by example",
    "importance_token": "importance by token",
    "importance_batch": "importance by batch",
    "grad_drop": "GradDrop",
}
"""Columns of estimates, and what the table of agreement calls them."""

DOT, NAME = 0.02, (0.1, 0.05)
"""What a dot, and a name of four letters, take of a figure of this size."""
HALO = withStroke(linewidth=2.5, foreground="white")
"""Keeps names apart from lines that they lie on."""


def plot_first_order(
    frame: pd.DataFrame,
    agreement: pd.DataFrame,
    *,
    column: str = "estimate",
    named: int = 6,
    ax: Axes | None = None,
) -> Axes:
    """Draw an estimate of every head against its exact ablation, with how well their ranks agree.

    On the line the two are equal. Importance and GradDrop have no sign: they are compared with the
    size of the change.

    Args:
        frame: The heads of first_order_study.
        agreement: Its table of agreement.
        column: Which estimate: estimate, importance, importance_token, importance_batch, grad_drop.
        named: How many heads of the largest change, and of the largest estimate, are named.
        ax: Where to draw; None: a new figure.
    """
    if column not in ESTIMATORS:
        raise ValueError(unknown_name("estimate", column, ESTIMATORS))
    estimate = frame[column].to_numpy(dtype=float)
    exact, low, high = (
        frame[name].to_numpy(dtype=float) for name in ("delta", "ci_low", "ci_high")
    )
    signed = column == "estimate"
    if not signed:
        exact, low, high = np.abs(exact), np.full_like(exact, np.nan), np.full_like(exact, np.nan)
    ax = own_axes(ax, 6.6, 5.0)
    ends = np.stack([exact - low, high - exact]).clip(min=0)
    ax.errorbar(
        exact, estimate, xerr=ends, fmt="none", ecolor=FAINT, elinewidth=1.2, capsize=0, zorder=1
    )
    ax.scatter(
        exact, estimate, s=42, color=BLUE, edgecolor="white", linewidth=0.6, gid="heads", zorder=3
    )
    ax.axline(
        (0, 0), slope=1, color=MUTED, linewidth=1.2, linestyle=(0, (4, 2)), zorder=2,
        label="equal to the exact change",
    )  # fmt: skip
    ax.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    ax.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
    most = {int(i) for values in (exact, estimate) for i in np.argsort(-np.abs(values))[:named]}
    names, points = head_names(frame), np.stack([exact, estimate], axis=1)
    for near, on_the_left in named_spots(points, sorted(most)):
        ax.annotate(
            "\n".join(names[place] for place in near), tuple(points[near[0]]),
            xytext=(-5 if on_the_left else 5, 3), ha="right" if on_the_left else "left",
            textcoords="offset points", fontsize=8, color=INK, path_effects=[HALO],
        )  # fmt: skip
    row = agreement[agreement["estimator"] == ESTIMATORS[column]].iloc[0]
    headline(
        ax,
        f"{ESTIMATORS[column].capitalize()} against exact ablation\n"
        f"Spearman {row['spearman']:.2f} (95 %: {row['ci_low']:.2f} to {row['ci_high']:.2f}), "
        f"{row['shared']} of the top {row['top']} shared",
    )
    metric, unit = str(frame["metric"].iloc[0]), str(frame["unit"].iloc[0])
    exactly = change_label(metric, unit)
    ax.set_xlabel(f"exact {exactly}" if signed else f"size of the exact {exactly}", color=INK)
    ax.set_ylabel(f"estimated {exactly}" if signed else f"|d {metric} / d gate|", color=INK)
    # Numbers in full: a power of ten in the corner of an axis is overlooked.
    ax.xaxis.set_major_formatter("{x:.3g}")
    ax.yaxis.set_major_formatter("{x:.3g}")
    ax.legend(loc="best", fontsize=8, frameon=False)
    ax.margins(0.12)
    tidy(ax)
    return ax


def named_spots(
    points: Float64[np.ndarray, "head 2"], places: list[int]
) -> list[tuple[list[int], bool]]:
    """Return points that are named, those together that lie on one spot, and on which side.

    The name goes to the left where another point lies close on the right.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    shares = (points - low) / np.where(high > low, high - low, 1.0)
    found: list[list[int]] = []
    for place in places:
        same = [near for near in found if np.abs(shares[place] - shares[near[0]]).max() < DOT]
        if same:
            same[0].append(place)
        else:
            found.append([place])
    firsts = shares[[near[0] for near in found]]
    spots = []
    for near, (x, y) in zip(found, firsts, strict=True):
        beside = (firsts[:, 0] > x) & (firsts[:, 0] < x + NAME[0])
        spots.append((near, bool((beside & (np.abs(firsts[:, 1] - y) < NAME[1])).any())))
    return spots
