"""Tables to pictures: every function takes a tidy table and returns the Axes it drew on.

Figures are made with matplotlib's object interface on their own Agg canvas, never through pyplot,
whose current figure is shared by all threads of a process. Colours are told apart by people who see
red and green alike, and dark means much on every map.
"""

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image

from lab.naming import head_label, unknown_name
from probes.registry import get_probe

INK = "#1b2733"
MUTED = "#5b6b7a"
FAINT = "#d9e0e6"
HIDDEN = "#f3f5f7"
BLUE = "#0b5c94"
ORANGE = "#d55e00"
HEAD_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#7f7f7f",
    "#000000",
)
"""Okabe and Ito's colours, for the heads of a layer."""
DASHES = ("", (4, 1.5), (1, 1), (3, 1, 1, 1))
"""One kind of line a layer."""
PROBABILITY = LinearSegmentedColormap.from_list(
    "probability", ["#ffffff", "#cfe3f2", "#7fb6dc", "#2f7fbc", "#0b4f86", "#062c4f"]
)
"""White is 0, dark blue is 1; lightness falls all the way."""

FEW_COLUMNS = 16
"""Up to this many heads, cells have room for their numbers."""

LONGEST_TOKEN = 16
"""Characters of a token that a map has room for."""

FEW_BARS = 16
"""Up to this many, bars have room for their numbers."""

MANY_BARS = 60
"""Beyond this many, their names are small print."""

METRIC_LABELS = {
    "loss": "change in loss (nats)",
    "token_accuracy": "change in token accuracy",
    "exact_match": "change in exact match",
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure on its own canvas, in inches."""
    # A title must not touch the edge of a picture that is pasted on a slide.
    roomy = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(width, height), layout=roomy)
    FigureCanvasAgg(figure)
    return figure


def own_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the Axes to draw on: the caller's, or those of a new figure."""
    return new_figure(width, height).add_subplot() if ax is None else ax


def png_bytes(figure: Figure, dpi: int = 150) -> bytes:
    """Return the figure as a PNG file of up to 256 colours: a third of the bytes."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, facecolor="white")
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(packed, format="PNG", optimize=True)
    return packed.getvalue()


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
    ax.set_xticks(np.arange(grid.shape[1]) + 0.5, [str(head) for head in grid.columns])
    ax.set_yticks(np.arange(grid.shape[0]) + 0.5, [str(layer) for layer in grid.index])
    ax.set_title(get_probe(probe).title, loc="left", fontsize=11, color=INK, fontweight="bold")
    ax.set_xlabel("head", color=INK)
    ax.set_ylabel("layer", color=INK, labelpad=8)
    return ax


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


def plot_attention(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw one head's map, queries down and keys across, with the cells of the answers framed.

    Args:
        frame: The table of attention_map.
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
    ax.set_title(
        f"Where head {head_label(layer, head)} looks", loc="left", color=INK, fontweight="bold"
    )
    ax.set_xlabel("key: the token looked at", color=INK)
    ax.set_ylabel("query: the token that looks", color=INK)
    handles = [Patch(facecolor=HIDDEN, edgecolor=FAINT, label="not visible yet")]
    if len(sources):
        mark = Patch(facecolor="none", edgecolor=ORANGE, linewidth=1.8, label="holds the answer")
        handles.insert(0, mark)
    ax.legend(handles=handles, loc="upper right", frameon=True, edgecolor=FAINT, fontsize=9)
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


def drawable(text: str) -> str:
    r"""Return a text with an escape for each character that the figure's font cannot draw.

    >>> print(drawable("caf\N{LATIN SMALL LETTER E WITH ACUTE}") == "caf\xe9", drawable("a\nb"))
    True a\nb
    """
    font = get_font(findfont(FontProperties(family="monospace")))
    known = font.get_charmap()
    return "".join(c if c.isprintable() and ord(c) in known else ascii(c)[1:-1] for c in text)


def shortened(text: str) -> str:
    """Return a text, or the beginning of a long one and three dots."""
    return text if len(text) <= LONGEST_TOKEN else text[: LONGEST_TOKEN - 3] + "..."


def plot_entropy(frame: pd.DataFrame, *, value: str = "entropy", ax: Axes | None = None) -> Axes:
    """Draw each head's entropy by position, under the ceiling that a head spread evenly reaches.

    Args:
        frame: The table of entropy_profile.
        value: "entropy", or "sink_free" with key 0 hidden.
        ax: Where to draw; None: a new figure.
    """
    ceilings = {"entropy": 1, "sink_free": 0}
    if value not in ceilings:
        raise ValueError(unknown_name("entropy column", value, ceilings))
    ax = own_axes(ax, 8.0, 4.2)
    rows = np.arange(int(frame["query_pos"].max()) + 1)
    # Row q sees q + 1 keys, and one less with key 0 hidden: where none is left there is no ceiling.
    keys = rows + ceilings[value]
    ax.plot(
        rows[keys > 0], np.log(keys[keys > 0]), color=MUTED, linewidth=1, label="all keys alike"
    )
    ax.fill_between(rows[keys > 0], np.log(keys[keys > 0]), color=HIDDEN, zorder=0)
    pairs = list(dict.fromkeys(zip(frame["layer"], frame["head"], strict=True)))
    names = [head_label(layer, head) for layer, head in pairs]
    sns.lineplot(
        x=frame["query_pos"],
        y=frame[value],
        hue=[head_label(*pair) for pair in zip(frame["layer"], frame["head"], strict=True)],
        style=[head_label(*pair) for pair in zip(frame["layer"], frame["head"], strict=True)],
        hue_order=names,
        style_order=names,
        palette=[HEAD_COLOURS[head % len(HEAD_COLOURS)] for _, head in pairs],
        dashes=[DASHES[layer % len(DASHES)] for layer, _ in pairs],
        errorbar=None,
        estimator=None,
        linewidth=2,
        ax=ax,
    )
    title = "Spread of attention" if value == "entropy" else "Spread without the first key"
    ax.set_title(title, loc="left", color=INK, fontweight="bold")
    ax.set_xlabel("query position", color=INK)
    ax.set_ylabel("entropy (nats)", color=INK)
    ax.set_xlim(0, rows[-1] if len(rows) > 1 else 1)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(ax)
    ax.legend(
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=9,
        ncols=1 + len(pairs) // 18,
    )
    return ax


def plot_ablation(frame: pd.DataFrame, *, metric: str = "loss", ax: Axes | None = None) -> Axes:
    """Draw what each ablation changes: heads in blue, whole layers in orange, with 95 % intervals.

    Args:
        frame: The table of ablation_sweep.
        metric: One of its metrics.
        ax: Where to draw; None: a new figure.
    """
    rows = frame[frame["metric"] == metric]
    if rows.empty:
        raise ValueError(unknown_name("metric of this table", metric, frame["metric"].unique()))
    ax = own_axes(ax, 1.8 + 0.62 * len(rows), 3.8)
    whole = rows["head"].isna().to_numpy()
    names = [
        f"all of\nlayer {layer}" if everything else head_label(layer, int(head))
        for layer, head, everything in zip(rows["layer"], rows["head"], whole, strict=True)
    ]
    delta = rows["delta"].to_numpy()
    places = np.arange(len(rows))
    ax.bar(places, delta, width=0.72, color=np.where(whole, ORANGE, BLUE).tolist(), zorder=2)
    ends = np.stack([delta - rows["ci_low"], rows["ci_high"] - delta]).clip(min=0)
    ax.errorbar(places, delta, ends, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, zorder=3)
    ax.axhline(0.0, color=MUTED, linewidth=1)
    ax.set_xticks(places, names, rotation=0 if len(rows) <= FEW_BARS else 90)
    if len(rows) > MANY_BARS:
        ax.tick_params(axis="x", labelsize=5)
    mode = str(rows["mode"].iloc[0])
    gap = "zeros" if mode == "zero" else "its mean"
    ax.set_title(f"Without a head ({gap} instead)", loc="left", color=INK, fontweight="bold")
    if len(rows) <= FEW_BARS:
        label_bars(ax, delta, rows["ci_low"].fillna(0).tolist(), rows["ci_high"].fillna(0).tolist())
    ax.set_ylabel(METRIC_LABELS[metric], color=INK)
    if metric != "loss":
        ax.set_ylim(-1.15, 0.15 + max(0.0, delta.max()))
    else:
        ax.margins(y=0.12)
    ax.grid(axis="y", color=FAINT, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    tidy(ax)
    ax.tick_params(axis="x", length=0)
    return ax


def label_bars(ax: Axes, delta: np.ndarray, low: Sequence[float], high: Sequence[float]) -> None:
    """Write each change beyond the end of its bar and whisker: a flat bar is a number too."""
    for place, (change, bottom, top) in enumerate(zip(delta, low, high, strict=True)):
        flat = abs(change) < 0.005
        up = flat or change > 0
        ax.annotate(
            "0" if flat else f"{change:+.2f}",
            (place, max(change, top) if up else min(change, bottom)),
            xytext=(0, 4 if up else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if up else "top",
            fontsize=9,
            color=INK,
        )


def tidy(ax: Axes) -> None:
    """Take away the lines of a chart that say nothing."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FAINT)
    ax.tick_params(colors=INK)
