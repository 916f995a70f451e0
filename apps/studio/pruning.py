"""The pruning curve of a run's report: rows of its file in, plain data and a chart out.

No Streamlit, and no number is computed: the curve was measured when the report was written.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from apps.studio.charts import BASELINE, INK, LINE, styled

FILE = "pruning.csv"
"""Name of the curve among the files of a run's report."""
METRIC = "exact_match"
"""What the page shows of it."""
ORDER = "greedy"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What is left of a run as heads go, in the greedy order, beside random orders."""

    steps: tuple[Mapping[str, float], ...]
    """Of each step n_removed, held_out, and low and high of the random orders."""
    gone: tuple[tuple[str, ...], ...]
    """Labels of all heads that are gone at each step."""
    n_orders: int
    """Random orders."""


def read_curve(path: Path) -> Curve | None:
    """Read the curve of a report; None: it has none of the greedy order."""
    with path.open(newline="", encoding="ascii") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == METRIC]
    return curve_of(rows)


def curve_of(rows: Iterable[Mapping[str, str]]) -> Curve | None:
    """Return the curve in rows of one metric."""
    known = list(rows)
    own = [row for row in known if row["order"] == ORDER]
    if not own:
        return None
    drawn: dict[str, list[float]] = {}
    for row in known:
        if row["order"] == "random":
            drawn.setdefault(row["n_removed"], []).append(float(row["held_out"]))
    gone: list[tuple[str, ...]] = []
    for row in own:
        before = gone[-1] if gone else ()
        gone.append((*before, *(label for label in row["removed"].split(",") if label)))
    return Curve(
        steps=tuple(
            {
                "n_removed": float(row["n_removed"]),
                "held_out": float(row["held_out"]),
                "low": min(drawn.get(row["n_removed"], [float("nan")])),
                "high": max(drawn.get(row["n_removed"], [float("nan")])),
            }
            for row in own
        ),
        gone=tuple(gone),
        n_orders=max(map(len, drawn.values()), default=0),
    )


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
