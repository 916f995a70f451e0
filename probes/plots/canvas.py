"""What all charts share: colours, an own figure, a PNG of few bytes.

Figures are made with matplotlib's object interface on their own Agg canvas, never through pyplot,
whose current figure is shared by all threads of a process. Colours are told apart by people who see
red and green alike, and dark means much on every map.
"""

import io
from collections.abc import Sequence
from textwrap import fill

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.typing import ColorType
from PIL import Image
from PIL.PngImagePlugin import PngInfo

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
DASHES: tuple[str | tuple[float, ...], ...] = ("", (4, 1.5), (1, 1), (3, 1, 1, 1))
"""One kind of line a layer."""
PROBABILITY = LinearSegmentedColormap.from_list(
    "probability", ["#ffffff", "#cfe3f2", "#7fb6dc", "#2f7fbc", "#0b4f86", "#062c4f"]
)
"""White is 0, dark blue is 1; lightness falls all the way."""
SIGNED = LinearSegmentedColormap.from_list(
    "signed", ["#062c4f", "#0b5c94", "#7fb6dc", "#ffffff", "#f2a978", "#d55e00", "#7a3300"]
)
"""White is 0, orange above and blue below it, darker both ways."""
SMALL_PRINT = 17
"""Characters of small print that an inch has room for."""


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


def figure_of(ax: Axes) -> Figure:
    """Return the figure that holds a chart."""
    figure = ax.get_figure(root=True)
    assert figure is not None, "an Axes that was removed has no figure"
    return figure


def png_bytes(figure: Figure, dpi: int = 150, note: str = "") -> bytes:
    """Return the figure as a PNG file of up to 256 colours: a third of the bytes.

    Args:
        figure: What was drawn; it stays as it is.
        dpi: Pixels an inch.
        note: What it was measured on: small print below it, and the file's Description.
    """
    picture, told = pixels(figure, dpi), PngInfo()
    if note:
        told.add_text("Description", note)
        small = pixels(small_print(note, float(figure.get_figwidth())), dpi)
        whole = Image.new("RGB", (picture.width, picture.height + small.height), "white")
        whole.paste(picture, (0, 0))
        whole.paste(small, (0, picture.height))
        picture = whole
    packed = io.BytesIO()
    few = picture.quantize(256, dither=Image.Dither.NONE)
    few.save(packed, format="PNG", optimize=True, pnginfo=told)
    return packed.getvalue()


def pixels(figure: Figure, dpi: int) -> Image.Image:
    """Return the figure as an image on white."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, facecolor="white")
    with Image.open(drawn) as image:
        return image.convert("RGB")


def small_print(text: str, width: float) -> Figure:
    """Return a strip of a figure's width, in inches, with a text in as many lines as it needs."""
    said = fill(drawable(text, "sans-serif"), max(20, int((width - 0.2) * SMALL_PRINT)))
    height = 0.12 + 0.14 * (said.count("\n") + 1)
    strip = Figure(figsize=(width, height))
    FigureCanvasAgg(strip)
    strip.text(
        0.1 / width, 0.1 / height, said, fontsize=8, color=MUTED, va="bottom", parse_math=False
    )
    return strip


def drawable(text: str, family: str = "monospace") -> str:
    r"""Return a text with an escape for each character that the figure's font cannot draw.

    >>> print(drawable("caf\N{LATIN SMALL LETTER E WITH ACUTE}") == "caf\xe9", drawable("a\nb"))
    True a\nb
    """
    font = get_font(findfont(FontProperties(family=[family])))
    known = font.get_charmap()
    return "".join(c if c.isprintable() and ord(c) in known else ascii(c)[1:-1] for c in text)


def headline(ax: Axes, text: str) -> None:
    """Write the title of a chart, where reading begins."""
    ax.set_title(text, loc="left", color=INK, fontweight="bold")


def legend_beside(ax: Axes, handles: Sequence[Artist] | None = None) -> None:
    """Put the legend to the right of a chart, in as many columns as its lines need."""
    handles = ax.get_legend_handles_labels()[0] if handles is None else list(handles)
    ax.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=9,
        ncols=1 + len(handles) // 19,
    )


def tidy(ax: Axes) -> None:
    """Take away the lines of a chart that say nothing."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FAINT)
    ax.tick_params(colors=INK)


def ink_on(colour: ColorType) -> str:
    """Return the colour of a text that can be read on a ground of some colour."""
    red, green, blue = to_rgb(colour)
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45 else "white"


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """Return a colour mixed with white: share 1 is the colour itself, 0 is white."""
    red, green, blue = (1.0 - share * (1.0 - part) for part in to_rgb(colour))
    return red, green, blue
