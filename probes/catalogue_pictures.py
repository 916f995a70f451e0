"""The pictures of docs/probes.md: what each probe looks for, on heads that were built to do it.

`make docs` writes them again, each a small PNG; nothing in them is drawn at random.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import expit

from lab.naming import article, head_label
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.attention.entropy import entropy_profile
from probes.attention.maps import attention_map
from probes.attention.offsets import offset_spectrum
from probes.catalogue import PICTURES, probes_as_markdown
from probes.film.frames import find_onsets
from probes.labels.head_labels import label_heads
from probes.planted import Planted, PlantedHead, plant
from probes.planted.cohort import WRITERS
from probes.plots import (
    new_figure,
    plot_attention,
    plot_dynamics,
    plot_entropy,
    plot_spectrum,
    png_bytes,
)
from probes.plots.canvas import figure_of, headline
from probes.reading.observed_model import probe_input
from probes.registry import PROBES, Example, ProbeEntry, load_function
from probes.report.figures import label_sheet
from probes.schemas.film import DYNAMICS
from probes.tables import rows_table

WORD = 6
"""Symbols of a word: large enough to see, small enough for a page."""

DOTS_PER_INCH = 100
"""A picture is 600 to 800 pixels across."""

PLANTED_LAYERS: tuple[tuple[PlantedHead, ...], ...] = (
    (
        PlantedHead(kind="previous", writes="tokens"),
        PlantedHead(kind="current"),
        PlantedHead(kind="first"),
        PlantedHead(kind="duplicate", writes="places"),
        PlantedHead(kind="reversal"),
        PlantedHead(kind="uniform"),
    ),
    (
        PlantedHead(kind="induction"),
        PlantedHead(kind="pointer", distance=-1),
        PlantedHead(kind="offset", distance=2),
        PlantedHead(kind="recency", beta=0.4),
        PlantedHead(kind="mixed", parts=("previous", "first")),
        PlantedHead(kind="uniform"),
    ),
)
"""The heads of the model in the pictures."""

ENTROPY_HEADS: Mapping[tuple[int, int], str] = MappingProxyType(
    {(0, 5): "uniform", (1, 3): "prefers recent", (1, 4): "previous, first", (0, 0): "previous"}
)
SPECTRUM_HEADS: Mapping[tuple[int, int], str] = MappingProxyType(
    {(0, 0): "previous", (1, 2): "two back", (1, 3): "prefers recent"}
)


def planted_model(layers: tuple[tuple[PlantedHead, ...], ...] = PLANTED_LAYERS) -> Planted:
    """Return the model in the pictures."""
    return plant(layers, word=WORD, d_vocab=2 + 2 * WORD, n_ctx=2 * WORD + 2)


def planted_example(planted: Planted, example: Example) -> tuple[Planted, int, int]:
    """Return the model, layer and head of an example: in the model of the pictures, or in its own.

    A new probe is not planted among the others, so that their pictures stay as they are.
    """
    for layer, row in enumerate(planted.layers):
        for index, head in enumerate(row):
            if (head.kind, head.distance) == (example.kind, example.distance):
                return planted, layer, index
    head = PlantedHead(kind=example.kind, distance=example.distance)
    return planted_model((WRITERS, (head, PlantedHead(kind="uniform")))), 1, 0


def shown_input(planted: Planted, on: str) -> Batch | Tokens:
    """Return the sequence of a picture."""
    word = torch.arange(2, 2 + WORD).unsqueeze(0)
    if on == "word":
        return planted.task.sequences(word)
    return torch.cat([torch.zeros(1, 1, dtype=torch.long), word, word], dim=1)


def probe_table(planted: Planted, entry: ProbeEntry) -> pd.DataFrame:
    """Return the map of the head that a probe is shown on, its target cells marked."""
    planted, layer, head = planted_example(planted, entry.example)
    shown = shown_input(planted, entry.example.on)
    frame = attention_map(planted.model, shown, layer=layer, head=head, vocab=planted.task.vocab)
    targets = load_function(entry)(probe_input(planted.model, shown, special_ids=(0, 1)))
    cells = set(zip(targets.query_pos[0].tolist(), targets.key_pos[0].tolist(), strict=True))
    places = zip(frame["query_pos"], frame["key_pos"], strict=True)
    return frame.assign(is_source=[place in cells for place in places])


def probe_picture(planted: Planted, entry: ProbeEntry) -> Figure:
    """Draw a head that a probe scores high, with the cells that the probe counts."""
    frame = probe_table(planted, entry)
    n_pos = int(frame["query_pos"].max()) + 1
    figure = new_figure(2.0 + 0.3 * n_pos, 1.3 + 0.3 * n_pos)
    ax = plot_attention(frame, framed=f"counted by {entry.name}", ax=figure.add_subplot())
    headline(ax, article(entry.head_kind).capitalize())
    return figure


def entropy_picture(planted: Planted) -> Figure:
    """Draw the entropy of a few heads that are built to look narrowly or widely."""
    frame = entropy_profile(planted.model, planted.task.sample(64, seed=0))
    own = [frame[(frame["layer"] == a) & (frame["head"] == b)] for a, b in ENTROPY_HEADS]
    return named_heads(plot_entropy(pd.concat(own)), ENTROPY_HEADS)


def spectrum_picture(planted: Planted) -> Figure:
    """Draw three heads that look back by a fixed distance, or prefer what is near."""
    frame = offset_spectrum(planted.model, planted.task.sample(64, seed=0))
    return named_heads(plot_spectrum(frame, heads=list(SPECTRUM_HEADS)), SPECTRUM_HEADS)


def label_picture(planted: Planted) -> Figure:
    """Draw what every head of the model is called."""
    labels = label_heads(planted.model, planted.task.sample(64, seed=0))
    return label_sheet(labels, "reversal")


def onset_picture(_: Planted) -> Figure:
    """Draw a made-up film: two heads set in, one after the other, and one never does."""
    steps = np.arange(0, 201, 10)
    curves = {(0, 1): (57, 8.0), (0, 3): (107, 12.0), (1, 0): (10_000, 1.0)}
    rows = [
        {"step": step, "layer": layer, "head": head, "probe": "previous", "score": score,
         "chance": 0.12, "kappa": (score - 0.12) / 0.88, "std_error": 0.01, "n_sequences": 64,
         "n_rows": 640, "unit": "mean probability"}
        for (layer, head), (middle, width) in curves.items() for step in steps
        for score in [0.12 + 0.8 * float(expit((step - middle) / width))]
    ]  # fmt: skip
    film = rows_table(rows, DYNAMICS, {})
    ax = plot_dynamics(film, probe="previous", onsets=find_onsets(film))
    return figure_of(ax)


def named_heads(ax: Axes, names: Mapping[tuple[int, int], str]) -> Figure:
    """Write in the legend of a chart what its heads were built to do; return its figure."""
    legend = ax.get_legend()
    for text in [] if legend is None else legend.get_texts():
        for pair, name in names.items():
            if text.get_text() == head_label(*pair):
                text.set_text(f"{text.get_text()}: {name}")
    return figure_of(ax)


OTHER_PICTURES: Mapping[str, Callable[[Planted], Figure]] = MappingProxyType(
    {
        "label_heads": label_picture,
        "entropy_profile": entropy_picture,
        "offset_spectrum": spectrum_picture,
        "find_onsets": onset_picture,
    }
)
"""How the other pictures are drawn, by what they show."""


def all_pictures() -> dict[str, bytes]:
    """Return every picture of the page, by the name of its file."""
    planted = planted_model()
    drawn = {entry.name: probe_picture(planted, entry) for entry in PROBES}
    drawn |= {name: draw(planted) for name, draw in OTHER_PICTURES.items()}
    return {f"{name}.png": png_bytes(figure, dpi=DOTS_PER_INCH) for name, figure in drawn.items()}


def write_page(docs: Path) -> None:
    """Write docs/probes.md and its pictures into a folder."""
    folder = docs / PICTURES
    folder.mkdir(exist_ok=True)
    for name, data in all_pictures().items():
        (folder / name).write_bytes(data)
    (docs / f"{PICTURES}.md").write_text(probes_as_markdown(), encoding="utf-8")
