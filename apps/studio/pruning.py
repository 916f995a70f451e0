"""The pruning curve of a run: rows of its tables in, plain data, a sentence and a chart out.

No Streamlit. `probes.pruning` measured the curve, now or when the run's report was written.
"""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from apps.studio.charts import BASELINE, INK, LINE, styled
from lab.naming import counted
from probes.number_text import interval, per_cent, read_number, with_range

Row = Mapping[str, Any]

share = partial(per_cent, digits=1)

FILE = "pruning.csv"
"""Name of the curve among the files of a run's report."""
SPARE_FILE = "removable.csv"
"""Name of the table of removable heads."""
WITHIN = (0.01, 0.05)
"""Allowed losses of the metric, as shares."""
METRIC = "exact_match"
"""The metric that the page shows."""
ORDER = "greedy"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Exact match of a run as heads are removed, in the greedy and in random orders."""

    steps: tuple[Mapping[str, float], ...]
    """For each step: n_removed, held_out, ci_low, ci_high; low and high of the random orders."""
    gone: tuple[tuple[str, ...], ...]
    """Labels of all heads removed at each step."""
    n_orders: int
    """Random orders."""
    n_sequences: int
    """Held-out sequences."""
    spare: Mapping[tuple[str, float], Mapping[str, float]]
    """Number of removable heads (removable, low, high), by order and allowed loss."""


def read_curve(path: Path, spare: Path) -> Curve | None:
    """Read the curve and the removable heads of a report; None without a greedy order."""
    return curve_of(read_rows(path), read_rows(spare))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a table of a report."""
    with path.open(newline="", encoding="ascii") as file:
        return list(csv.DictReader(file))


def curve_of(rows: Iterable[Row], spare: Iterable[Row]) -> Curve | None:
    """Return the curve in rows of the pruning and the removable table, as texts or as numbers."""
    known = [row for row in rows if row["metric"] == METRIC]
    own = [row for row in known if row["order"] == ORDER]
    if not own:
        return None
    drawn: dict[int, list[float]] = {}
    for row in known:
        if row["order"] == "random":
            drawn.setdefault(int(row["n_removed"]), []).append(float(row["held_out"]))
    gone: list[tuple[str, ...]] = []
    for row in own:
        before = gone[-1] if gone else ()
        gone.append((*before, *(label for label in row["removed"].split(",") if label)))
    return Curve(
        steps=tuple(
            {
                "n_removed": float(row["n_removed"]),
                **{name: read_number(row[name]) for name in ("held_out", "ci_low", "ci_high")},
                "low": min(drawn.get(int(row["n_removed"]), [math.nan])),
                "high": max(drawn.get(int(row["n_removed"]), [math.nan])),
            }
            for row in own
        ),
        gone=tuple(gone),
        n_orders=max(map(len, drawn.values()), default=0),
        n_sequences=int(own[0]["n_sequences"]),
        spare={
            (row["order"], float(row["within"])): {
                name: read_number(row[name]) for name in ("removable", "low", "high")
            }
            for row in spare
            if row["metric"] == METRIC
        },
    )


def step_words(curve: Curve, step: int) -> str:
    """Describe a step of the curve."""
    at = curve.steps[step]
    gone = counted(len(curve.gone[step]), "head")
    ends = interval(at["ci_low"], at["ci_high"], share)
    return (
        f"{gone} removed: exact match {share(at['held_out'])} (95 % interval {ends}) on "
        f"{counted(curve.n_sequences, 'held-out sequence')}."
    )


def spare_rows(curve: Curve) -> list[list[str]]:
    """Return the number of removable heads as cells: a row per order, a column per share."""
    rows = []
    for order, title in ((ORDER, "greedy order"), ("random", "random orders: median (range)")):
        own = [curve.spare.get((order, within)) for within in WITHIN]
        if any(own):
            rows.append([title, *(spare_words(order, at) for at in own)])
    return rows


def spare_words(order: str, at: Mapping[str, float] | None) -> str:
    """Write the number of removable heads; for random orders the median and the range."""
    if at is None:
        return "0"
    if order == ORDER:
        return f"{at['removable']:g}"
    return with_range(at["removable"], at["low"], at["high"])


def curve_chart(curve: Curve, chosen: int) -> Any:
    """Draw the curve over the band of random orders, and the step that is chosen.

    Args:
        curve: The curve.
        chosen: Index of a step.
    """
    frame = pd.DataFrame(list(curve.steps))
    frame["chosen"] = [i == chosen for i in range(len(frame))]
    x = alt.X(
        "n_removed:Q",
        title=f"heads removed, of {int(frame['n_removed'].max())}",
        axis=alt.Axis(tickMinStep=1, format="d"),
        scale=alt.Scale(nice=False, padding=12),  # no point on the other axis's labels
    )
    scale = alt.Scale(domain=[0, 1])
    axis = alt.Axis(format="%", tickCount=5, grid=True, gridColor=LINE)
    base = alt.Chart(frame).encode(x=x)
    band = base.mark_area(color=LINE).encode(
        y=alt.Y("low:Q", scale=scale, axis=axis, title="exact match, held out"), y2="high:Q"
    )
    line = base.mark_line(color=BASELINE, strokeWidth=3).encode(y=alt.Y("held_out:Q", scale=scale))
    points = base.mark_point(filled=True, color=BASELINE, opacity=1).encode(
        y=alt.Y("held_out:Q", scale=scale),
        size=alt.condition("datum.chosen", alt.value(220), alt.value(50)),
        stroke=alt.condition("datum.chosen", alt.value(INK), alt.value(BASELINE)),
        tooltip=[
            alt.Tooltip("n_removed:Q", title="heads removed"),
            alt.Tooltip("held_out:Q", title="greedy order", format=".4f"),
            alt.Tooltip("low:Q", title="worst random order", format=".4f"),
            alt.Tooltip("high:Q", title="best random order", format=".4f"),
        ],
    )
    return styled(alt.layer(band, line, points), 420, 220)
