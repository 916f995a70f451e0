"""Who feeds an induction head: what it loses without each earlier head, beside controls."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lab.naming import head_label, unknown_name
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

VALUES = {
    "drop": ("drop of the induction score", "ci_low", "ci_high", "control"),
    "loss_delta": (
        "rise of the second copy's loss (nats)",
        "loss_ci_low",
        "loss_ci_high",
        "loss_control",
    ),
}
"""What can be drawn: its axis, its interval and its control."""


def plot_feeders(
    frame: pd.DataFrame,
    *,
    target: tuple[int, int] | None = None,
    value: str = "drop",
    most: int = 12,
    ax: Axes | None = None,
) -> Axes:
    """Draw what one induction head loses without each earlier head, the largest losses on top.

    Orange bars are heads that feed it, pale ones may or may not, diamonds the mean of the controls,
    whiskers 95 % intervals; the dotted line is all that the head has to lose.

    Args:
        frame: The table of feeder_scores.
        target: The induction head, as (layer, head); None: the one of the highest score.
        value: "drop" of its score, or "loss_delta" of the second copy.
        most: How many single heads to draw.
        ax: Where to draw; None: a new figure.
    """
    if value not in VALUES:
        raise ValueError(unknown_name("value of feeders", value, VALUES))
    said, low, high, control = VALUES[value]
    known = frame[["target_layer", "target_head", "baseline"]].drop_duplicates()
    known = known.sort_values("baseline", ascending=False)
    pairs = list(zip(known["target_layer"].tolist(), known["target_head"].tolist(), strict=True))
    target = pairs[0] if target is None else target
    if target not in pairs:
        names = [head_label(*pair) for pair in pairs]
        raise ValueError(unknown_name("target of this table", head_label(*target), names))
    rows = frame[(frame["target_layer"] == target[0]) & (frame["target_head"] == target[1])]
    joint = rows[rows["head"].isna()]
    single = rows[rows["head"].notna()].nlargest(most, value)
    drawn = pd.concat([joint, single]).reset_index(drop=True)
    names = [
        f"{heads.count(',') + 1} heads together" if pd.isna(head) else heads
        for head, heads in zip(drawn["head"], drawn["heads"], strict=True)
    ]
    ax = own_axes(ax, 7.6, 1.5 + 0.34 * len(drawn))
    places, lost = np.arange(len(drawn)), drawn[value].to_numpy(dtype=float)
    ends = np.stack([lost - drawn[low], drawn[high] - lost]).clip(min=0)
    for feeds, colour, label in (
        (1.0, ORANGE, "feeds it"),
        (0.0, BLUE, "does not feed it"),
        (0.5, FAINT, "cannot be told"),
    ):
        some = drawn["feeds"].astype("Float64").fillna(0.5).to_numpy(dtype=float) == feeds
        if some.any():
            ax.barh(places[some], lost[some], height=0.68, color=colour, label=label, zorder=2)
    ax.errorbar(
        lost, places, xerr=ends, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5, zorder=3
    )
    if drawn[control].notna().any():
        ax.scatter(
            drawn[control], places, s=42, marker="D", facecolor="white", edgecolor=INK, zorder=4,
            label="the same for controls, mean", gid="control",
        )  # fmt: skip
    if value == "drop":
        ax.axvline(
            float(rows["baseline"].iloc[0]), color=INK, linewidth=1.4, linestyle=(0, (1, 1.5)),
            label="its whole score", zorder=1,
        )  # fmt: skip
    ax.axvline(0, color=MUTED, linewidth=1)
    ax.set_yticks(places, names)
    ax.set_ylim(len(drawn) - 0.4, -0.6)
    ax.set_xlabel(said, color=INK)
    ax.grid(axis="x", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    headline(ax, f"What {head_label(*target)} loses without earlier heads")
    tidy(ax)
    ax.tick_params(axis="y", length=0)
    legend_beside(ax)
    return ax
