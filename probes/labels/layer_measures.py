"""What the reads of one layer say about its heads, sequence by sequence: numbers for evidence.

Everything here is called once a layer inside a forward pass and returns arrays [batch, head, ...].
How they are put together is in `probes.labels.evidence`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.attention.entropy import row_sums
from probes.attention.heads import mass_on
from probes.attention.offsets import offset_mass
from probes.attention.peaks import TIED, peak_share, row_peaks
from probes.attention.targets import ProbeInput, Targets, late_sources
from probes.head_classes import HEAD_CLASSES, STEPS
from probes.labels.rules import ELSEWHERE_BELOW
from probes.labels.source_stripes import STRIPES
from probes.reading.inputs import PairedInput
from probes.reading.observed_model import ReadableModel, head_ids, observe_layers, slices_for
from probes.reading.pattern_reads import LayerReads, PatternReads
from probes.registry import get_probe, load_function
from probes.writing.head_weights import output_weights, written_shape
from probes.writing.values import value_sums

Measures = dict[str, np.ndarray]
"""What was measured, each [batch, head, ...]."""
Measure = Callable[[int, LayerReads], Measures]
Heads = tuple[tuple[int, int], ...]

LONGEST_MATRIX = 128
"""Positions up to which a layer's whole matrix is built, once for all that is read of it."""
LONGEST_PEAKED = 512
"""Positions up to which the largest probability of every row is looked for: it takes whole rows."""


def observed(
    model: ReadableModel, x: ProbeInput, plan: Callable[[ProbeInput], Measure]
) -> tuple[Heads, Measures]:
    """Return the heads, and each measure of all sequences and heads, [batch, column, ...].

    Args:
        model: The model.
        x: The input.
        plan: Says, for a slice of the input, what to measure of each layer.
    """
    slices: list[Measures] = []
    heads: list[tuple[int, int]] = []
    n_pos = x.tokens.shape[1]
    for part in slices_for(model, x):
        measure = plan(part)
        layers: list[Measures] = []
        heads.clear()

        def observe(
            layer: int,
            reads: LayerReads,
            measure: Measure = measure,
            layers: list[Measures] = layers,
        ) -> None:
            heads.extend((layer, head) for head in head_ids(model, layer, reads.n_heads))
            layers.append(measure(layer, matrix_of(reads, n_pos)))

        observe_layers(model, part.tokens, observe, part.real)
        slices.append(
            {name: np.concatenate([own[name] for own in layers], axis=1) for name in layers[0]}
        )
    return tuple(heads), {n: np.concatenate([part[n] for part in slices]) for n in slices[0]}


def matrix_of(reads: LayerReads, n_pos: int) -> LayerReads:
    """Return reads of the matrix itself where it is so small that building it once is cheapest."""
    if n_pos > LONGEST_MATRIX or isinstance(reads, PatternReads):
        return reads
    return PatternReads(reads.pattern(), reads.values, sight=reads.sight)


@dataclass(frozen=True, kw_only=True, eq=False)
class InputCells:
    """The cells of a slice, and the rows that have one."""

    targets: Mapping[str, Targets]
    """Targets of the position classes, the sources and their stripes."""
    scored: Mapping[str, Bool[Tensor, "batch 1 pos"]]
    """Rows with a target, on the CPU."""


def input_cells(x: ProbeInput) -> InputCells:
    """Return the cells of the classes that the input itself can show."""
    shown = ("place",) if x.sources is None else ("place", "task")
    cells = {c.name: load_function(get_probe(c.name))(x) for c in HEAD_CLASSES if c.looks in shown}
    if x.sources is not None:
        cells |= {name: late_sources(x, late) for name, late in STRIPES.items()}
    return InputCells(
        targets=cells, scored={name: scored_rows(own, x) for name, own in cells.items()}
    )


def scored_rows(targets: Targets, x: ProbeInput) -> Bool[Tensor, "batch 1 pos"]:
    """Return which rows have a target, on the CPU."""
    scored = torch.zeros(x.tokens.shape, dtype=torch.bool)
    sequence, cell = (targets.key_pos.cpu() >= 0).nonzero(as_tuple=True)
    scored[sequence, targets.query_pos.cpu()[sequence, cell]] = True
    return scored.unsqueeze(1)


def input_measures(reads: LayerReads, x: ProbeInput, cells: InputCells, n_offsets: int) -> Measures:
    """Measure one layer on the input, summed over the rows of each sequence.

    Each class gives its mass, "sink of" it (what the same rows put on the first key) and "peak of"
    it (in how many of them a target is the favourite key).
    """
    batch, n_pos = x.tokens.shape
    rows = torch.arange(n_pos, device=reads.device).expand(batch, -1)
    sink = reads.cells(rows, x.first_real().expand(-1, n_pos)).cpu().double()
    peaks = row_peaks(reads) if n_pos <= LONGEST_PEAKED else None
    found: Measures = {}
    for name, target in cells.targets.items():
        found[name] = mass_on(reads, target).cpu().double().numpy()
        if name in STRIPES:
            continue
        # Rows of padding are NaN: where, because NaN times 0 is NaN.
        of_rows = torch.where(cells.scored[name], sink, 0.0)
        found[f"sink of {name}"] = of_rows.sum(dim=-1).numpy()
        found[f"peak of {name}"] = (
            np.full(sink.shape[:2], np.nan)
            if peaks is None
            else peak_share(reads, peaks, target).nansum(dim=-1).cpu().double().numpy()
        )
    away = cells.scored["first"] & (sink < ELSEWHERE_BELOW)
    found["elsewhere"] = away.sum(dim=-1).double().numpy()
    found["spectrum"] = offset_mass(reads, x, n_offsets).numpy()
    # Already summed over the sequences of the slice: one for all of them.
    found["entropy"] = row_sums(reads, x).permute(1, 2, 0).unsqueeze(0).numpy()
    return found


def written_measures(
    model: ReadableModel, layer: int, reads: LayerReads, x: ProbeInput
) -> Measures:
    """Measure what one layer's heads write, summed over rows; NaN: the model does not show it."""
    try:
        sums = value_sums(reads, x, written_shape(output_weights(model, layer)))
    except ValueError:
        nothing = np.full((len(x.tokens), reads.n_heads), np.nan)
        return {"sink norm": nothing, "output norm": nothing, "written rows": nothing}
    n_rows = sums.n_rows.double().unsqueeze(1).expand_as(sums.output_norm)
    return {
        "sink norm": sums.sink_norm.numpy(),
        "output norm": sums.output_norm.numpy(),
        "written rows": n_rows.numpy(),
    }


def pair_rows(pair: PairedInput) -> tuple[Int[Tensor, " row"], Int[Tensor, "step row"]]:
    """Return the rows of the second block, and in each the key of every class of content.

    -1: the key would stand before the first block, or behind the row.
    """
    places = torch.arange(pair.block)
    rows = pair.second + places
    keys = pair.first + places + torch.tensor([*STEPS.values()]).unsqueeze(1)
    return rows, torch.where((keys >= pair.first) & (keys <= rows), keys, -1)


def pair_masses(reads: LayerReads, pair: PairedInput) -> Float[Tensor, "batch head step row"]:
    """Return the mass on the keys of `pair_rows`."""
    rows, keys = pair_rows(pair)
    return reads.cells(rows.repeat(len(keys)), keys.flatten()).unflatten(2, keys.shape)


def control_measures(reads: LayerReads, pair: PairedInput) -> Measures:
    """Measure one layer on a few sequences of the control: "pair" alone of `pair_measures`."""
    return {"pair": pair_masses(reads, pair).cpu().double().numpy()}


def pair_measures(reads: LayerReads, pair: PairedInput) -> Measures:
    """Measure one layer on a few sequences of repeated blocks.

    "pair" is `pair_masses`; "pair sink" what the same rows put on the first key; "pair peaks" how
    far a key is the row's favourite: 1, or its share of those that tie.
    """
    rows, _ = pair_rows(pair)
    cells = pair_masses(reads, pair)
    sink = reads.cells(rows, torch.zeros_like(rows))
    peaks = row_peaks(reads)
    largest, tied = (t[:, :, rows].unsqueeze(2) for t in (peaks.probability, peaks.n_tied))
    favourite = (cells >= (1.0 - TIED) * largest) / tied
    found = {"pair": cells, "pair sink": sink, "pair peaks": favourite}
    return {name: value.cpu().double().numpy() for name, value in found.items()}
