"""The studio's charts: plain data in, Altair chart out. No Streamlit, and no number is computed.

Every scale is fixed, so that two charts can be compared. Ablated and wrong items differ in shape as
well as in colour. Tokens are data of a chart, never part of an expression or of markdown.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import altair as alt
import pandas as pd

from lab.naming import head_label
from probes.number_text import decimals, per_cent

INK = "#16212e"
MUTED = "#45525f"
LINE = "#d5dce4"
BASELINE = "#0072b2"
ABLATED = "#d55e00"
RAMP = ("#f6f9fc", "#c9dcef", "#8fbbdd", "#4a8fc4", "#1c5f9f", "#0b2f5f")
"""White to dark blue: one hue, so that it reads the same to colour-blind eyes and in print."""

NO_LABELS: Mapping[str, str] = MappingProxyType({})
WORD_WIDTH = 60
"""Pixels that a cell needs for a label such as "induction"."""

WORD_SIZE = 12
"""Font size of a label in a cell."""

CROSS = "M-1,-1L1,1M1,-1L-1,1"
FONT = "Source Sans, sans-serif"


def styled(chart: Any, width: float, height: float) -> Any:
    """Give a chart its size, which does not follow the window, and the studio's fonts."""
    return (
        chart.properties(
            width=width, height=height, autosize=alt.AutoSizeParams(type="pad", contains="content")
        )
        .configure(font=FONT, background="transparent", padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=INK,
            titleColor=MUTED,
            titleFontWeight="normal",
            labelFontSize=13,
            titleFontSize=13,
            titlePadding=8,
            domain=False,
            ticks=False,
            grid=False,
            labelPadding=6,
        )
        .configure_legend(
            labelColor=INK,
            titleColor=MUTED,
            labelFontSize=12,
            titleFontSize=13,
            titleFontWeight="normal",
            gradientThickness=12,
        )
    )


def spaced(values: Sequence[str]) -> alt.Scale:
    """Return a scale of cells with a gap between them."""
    return alt.Scale(domain=list(values), paddingInner=0.1, paddingOuter=0.05)


def head_grid(
    scores: Sequence[Mapping[str, Any]],
    *,
    shape: tuple[int, int],
    ablated: Sequence[str],
    chosen: str | None,
    low: float,
    high: float,
    title: str,
    labels: Mapping[str, str] = NO_LABELS,
) -> alt.LayerChart:
    """Draw a cell per head: y is the layer, x the head, colour the score on a fixed scale.

    Args:
        scores: Rows with layer, head and score (None where it has no meaning).
        shape: Layers and heads of the grid; heads without a row stay blank.
        ablated: Labels of the heads to cross out.
        chosen: Label of the head whose map is shown; it is framed. None: no frame.
        low: Score of the palest colour.
        high: Score of the darkest colour.
        title: Name of the score.
        labels: Label of each head by its id; it is written below the score.
    """
    rows = []
    for row in scores:
        name, score = head_label(row["layer"], row["head"]), row["score"]
        rows.append(
            {
                "name": name,
                "layer": str(row["layer"]),
                "head": str(row["head"]),
                "score": score,
                "text": decimals(score, missing="n/a"),
                "label": labels.get(name, ""),
                "dark": score is not None and (score - low) > 0.55 * (high - low),
                "state": "ablated" if name in ablated else "intact",
                "chosen": name == chosen,
            }
        )
    layers, heads = ([str(i) for i in range(count)] for count in shape)
    cell = max(24, min(84, 400 // len(heads)))
    height = min(cell, 66)
    base = alt.Chart(pd.DataFrame(rows)).encode(
        x=alt.X(
            "head:O",
            sort=heads,
            title="head",
            scale=spaced(heads),
            axis=alt.Axis(labelAngle=0, orient="top"),
        ),
        y=alt.Y("layer:O", sort=layers, title="layer", scale=spaced(layers)),
    )
    tooltip = [
        alt.Tooltip("name:N", title="head"),
        alt.Tooltip("score:Q", title=title, format=".3f"),
        *([alt.Tooltip("label:N", title="label")] if labels else []),
        alt.Tooltip("state:N", title="state"),
    ]
    pick = alt.selection_point(name="pick", fields=["name"], toggle=False)
    cells = base.mark_rect(cornerRadius=4, cursor="pointer").encode(
        color=alt.Color(
            "score:Q",
            title=None,
            scale=alt.Scale(domain=[low, high], range=list(RAMP), clamp=True),
            legend=alt.Legend(
                orient="bottom",
                direction="horizontal",
                gradientLength=cell * len(heads),
                tickCount=5,
                offset=10,
            ),
        ),
        tooltip=tooltip,
    )
    frame = (
        base.transform_filter("datum.chosen")
        .mark_rect(cornerRadius=4, filled=False, stroke=INK, strokeWidth=6, cursor="pointer")
        .encode(tooltip=tooltip)
    )
    inner = frame.mark_rect(
        cornerRadius=4, filled=False, stroke="white", strokeWidth=1.5, cursor="pointer"
    )
    crosses = (
        base.transform_filter("datum.state == 'ablated'")
        .mark_point(
            shape=CROSS,
            size=(height * 0.78) ** 2,
            stroke=ABLATED,
            strokeWidth=4,
            opacity=1,
            cursor="pointer",
        )
        .encode(tooltip=tooltip)
    )
    marks: list[alt.Chart] = [cells.add_params(pick), frame, inner, crosses]
    if cell >= 44:
        named = bool(labels) and cell >= WORD_WIDTH
        marks += written(base, "text", size=15, dy=-7 if named else 0, tooltip=tooltip)
        if named:
            marks += written(base, "label", size=WORD_SIZE, dy=11, tooltip=tooltip)
    return styled(alt.layer(*marks), cell * len(heads), height * len(layers))


def written(base: alt.Chart, field: str, *, size: int, dy: int, tooltip: list[Any]) -> list[Any]:
    """Return the texts of a head grid; on a cross they have a halo."""
    bold = 600 if size > WORD_SIZE else 400
    words = base.mark_text(fontSize=size, fontWeight=bold, dy=dy, cursor="pointer")
    ink = alt.condition("datum.dark && datum.state == 'intact'", alt.value("white"), alt.value(INK))
    halo = base.transform_filter("datum.state == 'ablated'").mark_text(
        fontSize=size, fontWeight=bold, dy=dy, stroke="white", strokeWidth=6, strokeJoin="round"
    )
    return [
        halo.encode(text=f"{field}:N", tooltip=tooltip),
        words.encode(text=f"{field}:N", color=ink, tooltip=tooltip),
    ]


def attention_map(
    pattern: Sequence[Sequence[float]], tokens: Sequence[str], *, high: float = 1.0, size: int = 460
) -> alt.Chart:
    """Draw one head's attention: a row per query, a column per key.

    Cells above the diagonal are left out, because a causal head cannot attend to them.

    Args:
        pattern: Weights of each query row, 0 .. high.
        tokens: Symbol at each position.
        high: Weight of the darkest colour.
        size: Side of the map in pixels.
    """
    labels = [f"{i} {token.strip('<>') or token}" for i, token in enumerate(tokens)]
    rows = [
        {"query": labels[q], "key": labels[k], "weight": pattern[q][k] / high}
        for q in range(len(labels))
        for k in range(q + 1)
    ]
    # A label is unique through its number; only its symbol is drawn where every label fits.
    few = len(labels) <= 40
    lying = few and max(len(label.partition(" ")[2]) for label in labels) <= 3
    axis = {
        "labelExpr": "substring(datum.label, indexof(datum.label, ' ') + 1)"
        if few
        else "datum.label",
        "labelOverlap": not few,
        "labelFontSize": 12 if few else 9,
    }
    cells = (
        alt.Chart(pd.DataFrame(rows))
        .mark_rect(stroke="#e9eef3", strokeWidth=0.6)
        .encode(
            x=alt.X(
                "key:N",
                sort=labels,
                title="key: attended to",
                scale=alt.Scale(domain=labels),
                axis=alt.Axis(labelAngle=0 if lying else -90, orient="bottom", **axis),
            ),
            y=alt.Y(
                "query:N",
                sort=labels,
                title="query: attends from",
                scale=alt.Scale(domain=labels),
                axis=alt.Axis(**axis),
            ),
            color=alt.Color(
                "weight:Q",
                title=None,
                scale=alt.Scale(domain=[0, 1], range=list(RAMP), clamp=True),
                legend=alt.Legend(
                    orient="top-right",  # a causal head has no cells there
                    gradientLength=size * 0.4,
                    values=[0, 0.25, 0.5, 0.75, 1],
                    format=".2f",
                ),
            ),
            tooltip=[
                alt.Tooltip("query:N", title="from"),
                alt.Tooltip("key:N", title="to"),
                alt.Tooltip("weight:Q", title="attention", format=".3f"),
            ],
        )
    )
    return styled(cells, size, size)


def answer_strip(rows: Mapping[str, Sequence[str]], expected: Sequence[str]) -> alt.LayerChart:
    """Draw answers symbol by symbol below each other; wrong symbols are filled and underlined.

    Args:
        rows: Symbols of each answer, by its name, in the order of the picture.
        expected: The right answer.
    """
    data = [
        {
            "row": name,
            "place": i + 1,
            "symbol": symbol,
            "differs": i >= len(expected) or symbol != expected[i],
            "judged": "wrong" if i >= len(expected) or symbol != expected[i] else "right",
        }
        for name, symbols in rows.items()
        for i, symbol in enumerate(symbols)
    ]
    longest = max((len(symbols) for symbols in rows.values()), default=1)
    base = alt.Chart(pd.DataFrame(data)).encode(
        x=alt.X(
            "place:O",
            title="place in the answer",
            scale=alt.Scale(paddingInner=0.12),
            axis=alt.Axis(labelAngle=0),
        ),
        y=alt.Y(
            "row:N",
            sort=list(rows),
            title=None,
            scale=alt.Scale(paddingInner=0.12),
            axis=alt.Axis(labelFontSize=14),
        ),
        tooltip=[
            alt.Tooltip("row:N", title="answer"),
            alt.Tooltip("place:O", title="place"),
            alt.Tooltip("symbol:N", title="symbol"),
            alt.Tooltip("judged:N", title="judged"),
        ],
    )
    cells = base.mark_rect(cornerRadius=4, strokeWidth=2).encode(
        color=alt.condition("datum.differs", alt.value("#fbe3d3"), alt.value("#eef4fa")),
        stroke=alt.condition("datum.differs", alt.value(ABLATED), alt.value("#eef4fa")),
    )
    letters = base.mark_text(fontSize=17, font="Source Code, monospace").encode(
        text="symbol:N",
        color=alt.condition("datum.differs", alt.value("#8a3b00"), alt.value(INK)),
    )
    marks = base.transform_filter("datum.differs").mark_text(
        fontSize=17, dy=6, fontWeight=700, color=ABLATED, text="_"
    )
    width = min(36, 760 // max(1, longest)) * longest
    return styled(alt.layer(cells, letters, marks), width, 36 * len(rows))


def token_bars(rows: Sequence[Mapping[str, Any]], kind: str, expected: str) -> alt.LayerChart:
    """Draw the probabilities of the next token as bars from 0 to 1; the right one is marked.

    Args:
        rows: token, baseline and gated, in the order of the bars.
        kind: Which of the two to draw: baseline or ablated.
        expected: The right token.
    """
    column = "baseline" if kind == "baseline" else "gated"
    names = [row["token"] for row in rows]
    data = [
        {
            "token": row["token"],
            "probability": row[column],
            "text": per_cent(row[column], 1) + (" right" if row["token"] == expected else ""),
            "right": row["token"] == expected,
        }
        for row in rows
    ]
    base = alt.Chart(pd.DataFrame(data)).encode(
        x=alt.X(
            "probability:Q",
            title="probability",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(format="%", tickCount=5, grid=True, gridColor=LINE),
        ),
        y=alt.Y("token:N", sort=names, title=None, axis=alt.Axis(labelFontSize=14)),
        tooltip=[
            alt.Tooltip("token:N", title="next"),
            alt.Tooltip("probability:Q", title="probability", format=".4f"),
        ],
    )
    colour = BASELINE if kind == "baseline" else ABLATED
    bars = base.mark_bar(cornerRadiusEnd=3, color=colour).encode(
        opacity=alt.condition("datum.right", alt.value(1.0), alt.value(0.45))
    )
    # Near 1 there is no room after the bar.
    texts = base.mark_text(fontSize=13, align="left", dx=5, color=INK).encode(text="text:N")
    return styled(alt.layer(bars, texts), 380, 24 * len(rows))
