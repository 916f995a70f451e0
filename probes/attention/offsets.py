"""How far back each head looks: its attention at every distance, over the same query rows.

A head that looks one token back and one that prefers recent tokens both score as previous-token
heads; the spectrum over distances tells them apart. Distances are compared on one set of rows: a
mean over each distance's own rows would compare early rows, where keys are few, with late ones.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from lab.checks import require_whole
from lab.row_kernels import SCORES_AT_ONCE
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.attention.targets import ProbeInput, is_special
from probes.intervals import bootstrap_interval
from probes.reading.observed_model import (
    ReadableModel,
    head_ids,
    measured_layers,
    probe_input,
    provenance,
)
from probes.reading.pattern_reads import LayerReads
from probes.schemas.heads import SPECTRUM
from probes.tables import make_table

LONGEST_OFFSET = 64
"""Longest distance that is measured by default."""
SHORTEST_BLOCK = 128
"""Rows that are read at once, at least: shorter blocks cost more calls than they save cells."""

OffsetMass = Float64[Tensor, "batch head offset"]


def offset_spectrum(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    max_offset: int | None = None,
    *,
    special_ids: tuple[int, ...] | None = None,
    attention_mask: GivenMask | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure R(d), the attention at each distance: one row per layer, head and offset.

    R(d) = mean over rows q of A[q, q - d], d = 0 .. D, over the rows q >= D of every sequence (q >=
    D + 1 where BOS or SEP stands first, so that no distance ever lands on it; q >= 1 always), in
    0 .. 1. chance is the same for all distances: the mean of 1 / keys that the row sees.

    Range: mean probability, from 0 to 1.

    Source: Voita et al. 2019 (positional heads); Olsson et al. 2022.

    Caveat: On repeated blocks every multiple of the period is a peak of its own: read the spectrum
    on text or on sequences without a repeat.

    >>> from probes.planted import PlantedHead, plant
    >>> model = plant([[PlantedHead(kind="previous"), PlantedHead(kind="uniform")]]).model
    >>> table = offset_spectrum(model, torch.tensor([[2, 3, 4, 5, 6]]), max_offset=1)
    >>> table.pivot(index="head", columns="offset", values="mass").round(2).values.tolist()
    [[0.0, 1.0], [0.32, 0.32]]

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: A task's batch, or plain tokens.
        max_offset: D, the longest distance; None: half the sequence, and at most LONGEST_OFFSET.
        special_ids: Ids of BOS and SEP; None: as in `score_heads`.
        attention_mask: True (or 1) at real tokens; rows count from the first real one.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: max_offset is not from 0 to the last position, or the input is empty.
    """
    x = probe_input(model, batch_or_tokens, special_ids, attention_mask)
    n_offsets = 1 + longest_offset(x.tokens.shape[1], max_offset)
    layers = measured_layers(model, x, lambda _, reads, part: offset_mass(reads, part, n_offsets))
    return spectrum_table(model, x, layers, seed)


def spectrum_table(
    model: ReadableModel, x: ProbeInput, layers: Mapping[int, list[Tensor]], seed: int = 0
) -> pd.DataFrame:
    """Return the table of `offset_spectrum` from what `offset_mass` found.

    Args:
        model: The model.
        x: The whole input.
        layers: The masses of each layer, a slice of the input after the other.
        seed: Seed of the bootstrap.
    """
    found = {layer: torch.cat(parts).numpy() for layer, parts in layers.items()}
    n_offsets = next(mass.shape[2] for mass in found.values())
    rows = spectrum_rows(x, n_offsets).sum(dim=1).cpu().double().numpy()
    chance = spectrum_chance(x, n_offsets).sum().item()
    parts = [
        spectrum_columns(layer, head_ids(model, layer, mass.shape[1]), mass, rows, chance, seed)
        for layer, mass in found.items()
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in SPECTRUM.names}
    return make_table(columns, SPECTRUM, {**provenance(model, x.tokens), "bootstrap_seed": seed})


def longest_offset(n_pos: int, max_offset: int | None) -> int:
    """Return the longest distance to measure on sequences of this many positions.

    Raises:
        ValueError: The requested distance is longer than a sequence.
    """
    if max_offset is None:
        return min(LONGEST_OFFSET, n_pos // 2)
    require_whole("max_offset", max_offset, 0, n_pos - 1)
    return max_offset


def spectrum_rows(x: ProbeInput, n_offsets: int) -> Bool[Tensor, "batch pos"]:
    """Return the rows on which this many offsets (0 among them) are compared."""
    first_is_special = is_special(x.tokens.gather(1, x.first_real()), x.special_ids)
    plain, special = (x.later_rows(max(0, n_offsets - 2 + more)) for more in (0, 1))
    return special.where(first_is_special, plain)


def spectrum_chance(x: ProbeInput, n_offsets: int) -> Float64[Tensor, " batch"]:
    """Return the mass of a head that spreads evenly, at any one offset, summed over the rows."""
    rows = spectrum_rows(x, n_offsets).cpu()
    seen = x.keys_seen().cpu().double().expand(rows.shape)
    return torch.where(rows, 1.0 / seen, 0.0).sum(dim=1)


def offset_mass(reads: LayerReads, x: ProbeInput, n_offsets: int) -> OffsetMass:
    """Return A[q, q - d] for d = 0 .. n_offsets - 1, summed over `spectrum_rows`, on the CPU.

    Cells are read in blocks along the diagonal: O(positions x offsets) of them, not the matrix.
    """
    batch, n_pos = x.tokens.shape
    wanted = spectrum_rows(x, n_offsets)
    total = torch.zeros(batch, reads.n_heads, n_offsets, dtype=torch.float64)
    offsets = torch.arange(n_offsets, device=wanted.device)
    step = block_rows(batch * reads.n_heads, n_offsets)
    used = wanted.any(dim=0).nonzero()
    for start in range(int(used[0]) if len(used) else n_pos, n_pos, step):
        stop = min(start + step, n_pos)
        low = max(0, start - n_offsets + 1)
        block = reads.block(slice(start, stop), slice(low, stop))
        keys = torch.arange(start - low, stop - low, device=wanted.device).unsqueeze(1) - offsets
        band = block.gather(3, keys.clamp(min=0).expand(*block.shape[:2], -1, -1))
        # Rows of padding are NaN: where, because NaN times 0 is NaN.
        counted = wanted[:, None, start:stop, None] & (keys >= 0)
        total += band.where(counted, 0.0).sum(dim=2).cpu().double()
    return total


def block_rows(heads: int, n_offsets: int) -> int:
    """Return how many rows are read at once: as many as offsets, or as memory holds."""
    step = max(SHORTEST_BLOCK, n_offsets)
    return max(1, min(step, SCORES_AT_ONCE // max(1, heads * (step + n_offsets))))


def spectrum_columns(
    layer: int,
    heads: tuple[int, ...],
    mass: Float64[np.ndarray, "batch head offset"],
    rows: Float64[np.ndarray, " batch"],
    chance: float,
    seed: int,
) -> dict[str, np.ndarray]:
    """Return one layer's columns, head after head."""
    _, n_heads, n_offsets = mass.shape
    totals = mass.reshape(len(mass), -1)
    low, high = bootstrap_interval(totals, rows, seed=seed)
    n_rows, size = rows.sum(), n_heads * n_offsets
    with np.errstate(invalid="ignore", divide="ignore"):
        found = totals.sum(axis=0) / n_rows
        even = chance / n_rows
    return {
        "layer": np.full(size, layer),
        "head": np.repeat(np.array(heads, dtype=np.int64), n_offsets),
        "offset": np.tile(np.arange(n_offsets), n_heads),
        "mass": found,
        "chance": np.full(size, even),
        "ci_low": low,
        "ci_high": high,
        "n_sequences": np.full(size, int((rows > 0).sum())),
        "n_rows": np.full(size, int(n_rows)),
        "unit": np.full(size, "mean probability"),
    }
