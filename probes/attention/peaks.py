"""Where each row puts the most: how often a head's favourite key is a target, and how surely.

A mean mass does not tell a head that always puts half on its target from one that puts all of it
there half of the time. The largest probability of a row needs the whole row: one tiled pass.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lab.shapes import GivenMask, RowValue, Tokens
from lab.tasks.base import Batch
from probes.attention.targets import ProbeInput, Targets
from probes.intervals import bootstrap_interval
from probes.reading.observed_model import (
    ReadableModel,
    head_ids,
    measured_layers,
    probe_input,
    provenance,
)
from probes.reading.pattern_reads import LayerReads
from probes.registry import choose_probes, load_function
from probes.schemas.heads import PEAKS
from probes.tables import rows_table

TIED = 1e-4
"""Keys whose probability is so close to the row's largest, in proportion, tie with it."""
LOW_PERCENTILE = 10.0
"""A head that is reliable has its mass in all but a tenth of its rows."""
CELLS_AT_ONCE = 2**24
"""Numbers gathered at once to read target cells: 64 MB in float32."""

RowMass = Float[Tensor, "batch head pos"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPeaks:
    """The largest probability of every row; NaN in rows that see no key."""

    key: Int[Tensor, "batch head pos"]
    """The first of the keys that have it."""
    probability: RowMass
    """How large it is."""
    n_tied: Int[Tensor, "batch head pos"]
    """How many keys have it."""


def head_peaks(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    probes: Iterable[str] | None = None,
    *,
    special_ids: tuple[int, ...] | None = None,
    attention_mask: GivenMask | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare each row's favourite key with each probe's targets: one row a layer, head, probe.

    argmax_share = share of the scored rows whose largest probability is on a target, in 0 .. 1
    (Voita et al. 2019 call a head positional from 0.9 on); keys that tie share the row. p10 = the
    mass on the targets that nine rows in ten exceed. largest = mean largest probability of the
    scored rows, whatever key it is on (Voita et al.'s confidence).

    Range: from 0 to 1.

    Source: Voita et al. 2019.

    Caveat: A head may look most at its target with little mass: read the share beside the score.

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: A task's batch, or plain tokens.
        probes: Names from `probes.registry`; None: all that the input allows.
        special_ids: As in `score_heads`.
        attention_mask: As in `score_heads`.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: As `score_heads`.
    """
    x = probe_input(model, batch_or_tokens, special_ids, attention_mask)
    entries = choose_probes(probes, has_sources=x.sources is not None)
    functions = [load_function(entry) for entry in entries]

    def measure(_: int, reads: LayerReads, part: ProbeInput) -> list[np.ndarray]:
        peaks = row_peaks(reads)
        return [probe_facts(reads, peaks, function(part)) for function in functions]

    rows: list[dict[str, Any]] = []
    for layer, slices in measured_layers(model, x, measure).items():
        heads = head_ids(model, layer, slices[0][0].shape[2])
        for i, entry in enumerate(entries):
            facts = np.concatenate([found[i] for found in slices], axis=1)
            rows += [
                {"layer": layer, "head": head, "probe": entry.name, **row}
                for head, row in zip(heads, peak_columns(facts, seed), strict=True)
            ]
    order = {entry.name: i for i, entry in enumerate(entries)}
    rows.sort(key=lambda row: (row["layer"], row["head"], order[row["probe"]]))
    return rows_table(rows, PEAKS, {**provenance(model, x.tokens), "bootstrap_seed": seed})


def row_peaks(reads: LayerReads) -> RowPeaks:
    """Return the largest probability of every row, from one pass over its tiles."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for _, tile in reads.tiles():
        largest, key = tile.max(dim=-1)
        tied = (tile >= (1.0 - TIED) * largest.unsqueeze(-1)).sum(dim=-1)
        parts.append((key, largest, tied))
    key, largest, tied = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    return RowPeaks(key=key, probability=largest, n_tied=tied)


def row_mass(
    reads: LayerReads, targets: Targets, n_pos: int, at_least: RowValue | None = None
) -> RowMass:
    """Return each row's mass on its targets, or how many of them reach a probability.

    Args:
        reads: One layer.
        targets: The cells.
        n_pos: Positions of the sequences.
        at_least: Count the cells that have at least this probability; None: sum them.

    Returns:
        NaN in rows that have no target.
    """
    n_sequences = len(targets.query_pos)
    dtype = torch.float32 if reads.device.type == "mps" else torch.float64
    total = torch.zeros(n_sequences, reads.n_heads, n_pos, dtype=dtype, device=reads.device)
    scored = torch.zeros(n_sequences, n_pos, dtype=torch.bool, device=reads.device)
    block = max(1, CELLS_AT_ONCE // max(1, reads.numbers_a_cell))
    for start in range(0, targets.query_pos.shape[1], block):
        some = slice(start, start + block)
        rows, keys = (t[:, some].to(reads.device) for t in (targets.query_pos, targets.key_pos))
        place = rows.unsqueeze(1).expand(-1, reads.n_heads, -1)
        cells = reads.cells(rows, keys)
        if at_least is not None:
            cells = (cells >= at_least.gather(2, place)) & (keys >= 0).unsqueeze(1)
        total.scatter_add_(2, place, cells.to(dtype))
        sequence, cell = (keys >= 0).nonzero(as_tuple=True)
        scored[sequence, rows[sequence, cell]] = True
    return total.masked_fill(~scored.unsqueeze(1), math.nan)


def peak_share(reads: LayerReads, peaks: RowPeaks, targets: Targets) -> RowMass:
    """Return the share of each row's largest probability that is on its targets.

    It is 1 or 0, unless several keys have the largest probability: then they share it. NaN: the row
    has no target.
    """
    n_pos = peaks.probability.shape[2]
    reached = row_mass(reads, targets, n_pos, at_least=(1.0 - TIED) * peaks.probability)
    return (reached / peaks.n_tied).clamp(max=1.0)


def probe_facts(
    reads: LayerReads, peaks: RowPeaks, targets: Targets
) -> Float64[np.ndarray, "fact batch head pos"]:
    """Return peak share, target mass and largest probability of each scored row; else NaN."""
    mass = row_mass(reads, targets, peaks.probability.shape[2])
    largest = peaks.probability.to(mass.dtype).masked_fill(mass.isnan(), math.nan)
    facts = torch.stack([peak_share(reads, peaks, targets), mass, largest])
    return facts.cpu().double().numpy()


def peak_columns(
    facts: Float64[np.ndarray, "fact batch head pos"], seed: int
) -> list[dict[str, Any]]:
    """Return one row a head of what `probe_facts` found in all sequences."""
    share, mass, _ = facts
    scored = ~np.isnan(mass[:, 0]) if mass.shape[1] else np.zeros((len(mass), 0), dtype=bool)
    counts = scored.sum(axis=1).astype(np.float64)
    low, high = bootstrap_interval(np.nansum(share, axis=2), counts, seed=seed)
    rows = []
    for head in range(mass.shape[1]):
        of_rows = [fact[:, head][scored] for fact in facts]
        empty = not len(of_rows[0])
        rows.append(
            {
                "argmax_share": math.nan if empty else of_rows[0].mean(),
                "ci_low": low[head],
                "ci_high": high[head],
                "p10": math.nan if empty else np.percentile(of_rows[1], LOW_PERCENTILE),
                "largest": math.nan if empty else of_rows[2].mean(),
                "n_sequences": int((counts > 0).sum()),
                "n_rows": int(counts.sum()),
                "unit": "share of rows",
            }
        )
    return rows
