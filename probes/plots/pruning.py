"""What is left of a model as its heads go: several orders over a band of random ones."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from probes.ablation.metrics import get_metrics
from probes.plots.bars import of_metric
from probes.plots.canvas import (
    FAINT,
    HEAD_COLOURS,
    INK,
    MUTED,
    headline,
    legend_beside,
    own_axes,
    tidy,
)
from probes.pruning.curves import WITHIN, random_band, removable

Scale = Callable[..., np.ndarray]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FEW_STEPS = 40
"""Up to this many, steps of a curve are marked."""
TOLERANCES = ("-", (0, (6, 3)), (0, (2, 2)))
"""Dashes of the whole model's value, and of what is 1 % and 5 % worse."""
TALLEST = 100.0
"""Where values spread over more than this factor, and none is 0, the axis is logarithmic."""


def plot_pruning_curve(
    frame: pd.DataFrame, *, metric: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the held-out metric as heads go, one line an order, with what 1 % and 5 % would be.

    The band spans all random orders, the dotted line is their median; thin lines around an order
    are its 95 % interval. The legend says how many heads each order can spare at 1 %, the scale
    above how many are kept.

    Args:
        frame: The table of pruning_curve.
        metric: One of its metrics, or "perplexity", which is exp(loss); None: the one that the
            order was chosen by.
        ax: Where to draw; None: a new figure.
    """
    shown = str(frame.attrs["chosen_by"]) if metric is None else metric
    wanted = "loss" if shown == "perplexity" else shown
    rows = of_metric(frame, wanted)
    rows.attrs = frame.attrs
    # Perplexity is only drawn: intervals and tolerances stay those of the loss.
    scale = np.exp if shown == "perplexity" else np.asarray
    ax = own_axes(ax, 8.6, 4.6)
    spared = removable(frame, WITHIN[0], wanted).set_index(["order", "normalise"])["removable"]
    if (rows["order"] == "random").any():
        band = random_band(rows).sort_values("n_removed")
        n = int(band["n_orders"].max())
        ax.fill_between(
            band["n_removed"], scale(band["low"]), scale(band["high"]), color=FAINT, zorder=1,
            label=f"{n} random orders: all of them", gid="band",
        )  # fmt: skip
        ax.plot(
            band["n_removed"], scale(band["median"]), color=MUTED, linewidth=1.6,
            linestyle=(0, (1, 1.5)),
            label=f"random, median ({spared.get(('random', ''), 0):g} removable at 1 %)", zorder=2,
        )  # fmt: skip
    chosen = rows[rows["order"] != "random"]
    few = chosen["n_removed"].nunique() <= FEW_STEPS
    for place, ((order, normalise), own) in enumerate(
        chosen.groupby(["order", "normalise"], sort=False)
    ):
        own = own.sort_values("n_removed")
        colour = HEAD_COLOURS[place % len(HEAD_COLOURS)]
        name = str(order) if normalise in ("", "none") else f"{order}, by {normalise}"
        ax.plot(
            own["n_removed"], scale(own["held_out"]), color=colour,
            linewidth=max(1.4, 3.8 - 0.6 * place),  # where lines meet, the first ones show around
            marker=MARKERS[place % len(MARKERS)] if few else "", markersize=5,
            label=f"{name} ({spared.get((order, normalise), 0):g} removable at 1 %)", zorder=4,
        )  # fmt: skip
        for end in ("ci_low", "ci_high"):
            ax.plot(
                own["n_removed"], scale(own[end]), color=colour, linewidth=0.7, alpha=0.6, zorder=3,
                label="its 95 % interval" if end == "ci_low" else "",
            )  # fmt: skip
    baseline = float((rows["held_out"] - rows["delta"]).iloc[0])
    draw_tolerances(ax, wanted, baseline, scale)
    values = scale(rows["held_out"].to_numpy(dtype=float))
    if values.min() > 0 and values.max() / values.min() > TALLEST:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    n_heads = int((rows["n_removed"] + rows["n_kept"]).max())
    ax.set_xlim(0, max(1, int(rows["n_removed"].max())))
    ax.set_xlabel(f"heads removed, of {n_heads}", color=INK)
    other = partial(np.subtract, n_heads)
    kept = ax.secondary_xaxis("top", functions=(other, other))
    kept.set_xlabel("heads kept", color=INK)
    kept.xaxis.set_major_locator(MaxNLocator(integer=True))
    kept.tick_params(colors=INK)
    kept.spines["top"].set_color(FAINT)
    said = shown.replace("_", " ")
    unit = ", exp(loss)," if shown == "perplexity" else f" ({rows['unit'].iloc[0]})"
    ax.set_ylabel(f"{said}{unit} on held-out sequences", color=INK)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    headline(ax, f"{said.capitalize()} as heads go")
    tidy(ax)
    legend_beside(ax)
    return ax


def draw_tolerances(ax: Axes, metric: str, baseline: float, scale: Scale) -> None:
    """Draw the whole model's value, and what would be 1 % and 5 % worse, each in its dashes."""
    (better,) = (each.better for each in get_metrics([metric]))
    way = -1.0 if better == "higher" else 1.0
    levels = scale(baseline + way * np.array([0.0, *WITHIN]) * abs(baseline))
    of_loss = "" if scale is np.asarray else " in loss"
    names = ["the whole model", *(f"{100 * share:g} % worse{of_loss}" for share in WITHIN)]
    for name, level, dashes in zip(names, levels, TOLERANCES, strict=True):
        ax.axhline(
            level, color=INK, linewidth=0.9, linestyle=dashes, gid="within", label=name, zorder=2
        )
