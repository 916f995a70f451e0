"""The measurements that labels rest on, of every head and sequence.

One forward pass over the input gives what depends on positions (previous, current, first, a task's
sources, distances, entropy); one over repeated blocks and one over their control give what depends
on content (duplicate, preceder, induction). `probes.labels.rules` decides what it means.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from lab.shapes import Tokens
from probes.attention.entropy import SUMS
from probes.attention.heads import mass_on
from probes.attention.offsets import longest_offset, spectrum_rows
from probes.attention.targets import ProbeInput, answer_sources
from probes.head_classes import CONTENT, LADDER
from probes.labels.layer_measures import (
    Heads,
    InputCells,
    Measure,
    Measures,
    control_measures,
    input_cells,
    input_measures,
    observed,
    pair_measures,
    pair_rows,
    written_measures,
)
from probes.labels.source_stripes import STRIPES, source_overlap
from probes.reading.inputs import PairedInput
from probes.reading.observed_model import ReadableModel
from probes.reading.pattern_reads import LayerReads

PerSequence = Float64[np.ndarray, "batch column"]
PerHead = Float64[np.ndarray, " column"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMass:
    """One class's mass on its targets: a row each sequence, a column each head."""

    mass: PerSequence
    """Attention on the targets, summed over the scored rows."""
    control: PerSequence | None
    """The same cells where the content is another; None: the class has no control."""
    sink: PerSequence
    """Attention on the first key, summed over the same rows."""
    n_rows: Float64[np.ndarray, " batch"]
    """Scored rows."""
    chance: Float64[np.ndarray, " batch"]
    """The mass of a head that spreads evenly."""
    effect: PerSequence
    """What is compared with the threshold: mass; for content classes, mass less its control."""

    def mean(self, totals: PerSequence) -> PerHead:
        """Return totals as a mean over all scored rows; NaN if there are no such rows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return totals.sum(axis=0) / self.n_rows.sum()


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All measurements that labels rest on."""

    heads: tuple[tuple[int, int], ...]
    """(layer, head) of each column."""
    classes: Mapping[str, ClassMass]
    """Every class that the input can show."""
    ladder: Float64[np.ndarray, "step column"]
    """The mass at each step of LADDER on the same rows; NaN without repeated blocks."""
    ladder_control: Float64[np.ndarray, "step column"]
    """The same cells in the control."""
    stripes: Float64[np.ndarray, "stripe column"]
    """Mass on the sources, read as many rows late as STRIPES says; NaN without a task."""
    spectrum: Float64[np.ndarray, "column offset"]
    """R(d), d = 0, 1 .., all on the same rows; NaN where sequences are too short."""
    entropy_normalised: PerHead
    """Mean over rows of entropy / ln(keys seen)."""
    sink_free_normalised: PerHead
    """The same with the first key hidden, over the rows that are not silent."""
    first_elsewhere: PerHead
    """Share of the rows of first with less than ELSEWHERE_BELOW on the first key."""
    argmax_share: Mapping[str, PerHead]
    """Share of each class's rows whose largest probability is on a target."""
    sink_value_share: PerHead
    """Share of the output that comes from the first key; NaN: the model does not show values."""
    layer_share: PerHead
    """What the head writes, as a share of its layer's median; NaN: it is not shown."""
    overlap: Mapping[str, float]
    """Share of the rows with a source where a class of content has the very same target."""


def gather_evidence(
    model: ReadableModel,
    x: ProbeInput,
    pair: PairedInput | None,
    *,
    on_pair: bool = False,
    source_control: Tokens | None = None,
) -> Evidence:
    """Measure every head.

    Args:
        model: The model.
        x: Where positions, sources, distances and entropy are measured.
        pair: Where content is; None: the model has no room for repeated blocks.
        on_pair: Whether x holds the pair's own tokens, so that one pass does for both.
        source_control: x with other answers; None: no control.
    """
    n_offsets = 1 + longest_offset(x.tokens.shape[1], None)
    if on_pair and pair is not None:
        n_offsets = max(1, min(n_offsets, pair.block - 1))  # at longer distances blocks repeat

    def of_input(part: ProbeInput) -> Measure:
        cells = input_cells(part)

        def measure(layer: int, reads: LayerReads) -> Measures:
            found = input_measures(reads, part, cells, n_offsets)
            found |= written_measures(model, layer, reads, part)
            return found | (pair_measures(reads, pair) if on_pair and pair else {})

        return measure

    heads, found = observed(model, x, of_input)
    cells = input_cells(x)
    answers = None
    if source_control is not None and x.sources is not None:
        answers = controlled_sources(model, x, source_control)
    classes = position_classes(found, cells, answers)
    argmax = {name: own.mean(found[f"peak of {name}"]) for name, own in classes.items()}
    ladder = ladder_control = np.full((len(LADDER), len(heads)), np.nan)
    if pair is not None:
        repeated = found if on_pair else paired(model, pair, pair.tokens, x, pair_measures)
        control = paired(model, pair, pair.control, x, control_measures)
        classes |= content_classes(pair, repeated, control, x)
        ladder, ladder_control = (ladder_means(own["pair"]) for own in (repeated, control))
        peaks = repeated["pair peaks"].mean(axis=(0, 3))
        argmax |= {name: peaks[:, step] for step, name in enumerate(LADDER)}
    normalised, sink_free = normalised_entropies(found["entropy"].sum(axis=0))
    sink_value_share, layer_share = written_shares(heads, found)
    n_rows = spectrum_rows(x, n_offsets).sum().item()
    with np.errstate(invalid="ignore", divide="ignore"):
        spectrum = found["spectrum"].sum(axis=0) / n_rows
    return Evidence(
        heads=heads,
        classes=classes,
        ladder=ladder,
        ladder_control=ladder_control,
        stripes=np.stack([stripe_means(found, cells, name) for name in STRIPES]),
        spectrum=spectrum,
        entropy_normalised=normalised,
        sink_free_normalised=sink_free,
        first_elsewhere=classes["first"].mean(found["elsewhere"]),
        argmax_share=argmax,
        sink_value_share=sink_value_share,
        layer_share=layer_share,
        overlap=source_overlap(x, CONTENT),
    )


def position_classes(
    found: Measures, cells: InputCells, answers: PerSequence | None
) -> dict[str, ClassMass]:
    """Return the classes that the input itself shows; sources keep their mass with a control."""
    return {
        name: ClassMass(
            mass=found[name],
            control=answers if name == "sources" else None,
            sink=found[f"sink of {name}"],
            n_rows=target.n_rows.cpu().double().numpy(),
            chance=target.chance.cpu().numpy(),
            effect=found[name],
        )
        for name, target in cells.targets.items()
        if name not in STRIPES
    }


def controlled_sources(model: ReadableModel, x: ProbeInput, control: Tokens) -> PerSequence:
    """Return the mass on the sources where the answers are other ones."""
    n_sources = len(x.tokens)
    other = ProbeInput(
        tokens=control.to(x.tokens.device),
        sources=x.sources,
        special_ids=x.special_ids,
        causal=x.causal,
        real=x.real,
    )

    def of_slice(part: ProbeInput) -> Measure:
        target = answer_sources(part)
        return lambda _, reads: {"sources": mass_on(reads, target).cpu().double().numpy()}

    found = observed(model, other, of_slice)[1]["sources"]
    return found.reshape(n_sources, -1)


def paired(
    model: ReadableModel,
    pair: PairedInput,
    tokens: Tokens,
    x: ProbeInput,
    measure: Callable[[LayerReads, PairedInput], Measures],
) -> Measures:
    """Return the measures of one arm of a pair, of a model that sees as it does in x."""
    arm = ProbeInput(
        tokens=tokens,
        sources=None,
        special_ids=pair.special_ids,
        causal=x.causal,
        real=None,
    )
    return observed(model, arm, lambda _: lambda _, reads: measure(reads, pair))[1]


def content_classes(
    pair: PairedInput, repeated: Measures, control: Measures, x: ProbeInput
) -> dict[str, ClassMass]:
    """Return the classes of content: mass where blocks repeat, less mass where they do not."""
    rows, keys = (t.numpy() for t in pair_rows(pair))
    n_pos = pair.tokens.shape[1]
    even = 1.0 / (rows + 1.0) if x.causal else np.full(len(rows), 1.0 / n_pos)
    classes = {}
    for step, name in enumerate(LADDER):
        scored = keys[step] >= 0
        mass, other = (own["pair"][:, :, step, scored].sum(axis=-1) for own in (repeated, control))
        n = len(mass)
        classes[name] = ClassMass(
            mass=mass,
            control=other,
            sink=repeated["pair sink"][:, :, scored].sum(axis=-1),
            n_rows=np.full(n, float(scored.sum())),
            chance=np.full(n, even[scored].sum()),
            effect=mass - other,
        )
    return {name: classes[name] for name in CONTENT}


def ladder_means(cells: np.ndarray) -> Float64[np.ndarray, "step column"]:
    """Return the mean mass at each step of LADDER, without the first row: it has no key before."""
    return cells[:, :, :, 1:].mean(axis=(0, 3)).T


def stripe_means(found: Measures, cells: InputCells, name: str) -> PerHead:
    """Return the mean over rows of the mass on one stripe; NaN without one."""
    n_rows = cells.targets[name].n_rows.sum().item() if name in cells.targets else 0
    total = found[name].sum(axis=0) if n_rows else found["first"].sum(axis=0)
    return total / n_rows if n_rows else total * np.nan


def normalised_entropies(sums: np.ndarray) -> tuple[PerHead, PerHead]:
    """Return entropy / ln(keys) and the same without the first key, as means over rows.

    Args:
        sums: [column, pos, sum] of `probes.attention.entropy.row_sums`.
    """
    named = {name: sums[..., i] for i, name in enumerate(SUMS)}
    loud = named["rest"] - named["silent"]
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = named["entropy"] / named["most"]
        free = named["sink_free"] / named["most_sink_free"]
    return (
        weighted_mean(rows, np.where(named["most"] > 0.0, named["rest"], 0.0)),
        weighted_mean(free, np.where(named["most_sink_free"] > 0.0, loud, 0.0)),
    )


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> PerHead:
    """Return the mean over the last axis; NaN if all weights are 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(weights > 0.0, values * weights, 0.0).sum(axis=-1) / weights.sum(axis=-1)


def written_shares(heads: Heads, found: Measures) -> tuple[PerHead, PerHead]:
    """Return the sink's share of each head's output, and the output as share of its layer's median.

    A head that writes nothing at all has the share 0, whatever its layer writes; if no row
    follows the first key, what heads write is unknown, and NaN.
    """
    sink, output = (found[name].sum(axis=0) for name in ("sink norm", "output norm"))
    layers = np.array([layer for layer, _ in heads])
    share = np.full(len(heads), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        for layer in set(layers.tolist()):
            own = layers == layer
            share[own] = output[own] / np.median(output[own])
        share[(output == 0.0) & (found["written rows"].sum(axis=0) > 0)] = 0.0
        return np.where(output > 0.0, sink / output, np.nan), share
