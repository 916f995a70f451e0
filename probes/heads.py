"""How much each head attends to each probe's targets.

`head_masses` keeps every sequence's own number, which intervals and paired tests need;
`score_heads` sums them up in one table.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from lab.reads import AttentionReads
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.intervals import bootstrap_interval
from probes.reads import (
    Mask,
    ReadableModel,
    head_ids,
    model_device,
    observe_layers,
    probe_input,
    provenance,
    slices_of,
)
from probes.registry import ProbeEntry, choose_probes, load_function
from probes.tables import HEADS, make_table
from probes.targets import ProbeInput, Targets

GATHERED_NUMBERS = 2**24
"""Numbers of q gathered at once: 64 MB in float32."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadMasses:
    """One probe's mass on its targets, sequence by sequence and head by head."""

    probe: ProbeEntry
    """The probe."""
    heads: tuple[tuple[int, int], ...]
    """(layer, head) of each column of mass."""
    mass: Float64[np.ndarray, "batch column"]
    """Attention mass on the targets, summed over the scored rows of each sequence."""
    n_rows: Float64[np.ndarray, " batch"]
    """Scored rows of each sequence."""
    chance: Float64[np.ndarray, " batch"]
    """The mass of a head that spreads evenly."""


def score_heads(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    probes: Iterable[str] | None = None,
    *,
    special_ids: tuple[int, ...] | None = None,
    attention_mask: Mask | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Score every head on every probe: one row per layer, head and probe.

    score = mean over the scored rows of all sequences of sum_{k in targets(q)} A[q, k], in 0 .. 1;
    chance is the same with A = 1 / keys that the row sees, exactly: q + 1 in a causal model, all in
    a bidirectional one. kappa = (score - chance) / (1 - chance). The interval resamples
    sequences. A probe without a row to score is NaN, never 0.

    Args:
        model: A HookedGPT.
        batch_or_tokens: A task's batch, or plain tokens (then probes of the task's sources are left
            out, and an error if asked for).
        probes: Names from `probes.registry`; None: all that the input allows.
        special_ids: Ids that are no words, such as BOS and SEP: equal ones are no duplicates, and
            looking back at one that stands first is no previous-token head. None: ids 0 and 1 of a
            task's batch; of plain tokens BOS, EOS and PAD of the model's tokenizer, or none.
        attention_mask: True (or 1) at real tokens. Padding is scored neither as row nor as key, and
            "first" means the first real token. None: all are real.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: An unknown probe, one that the input does not allow, an empty batch, neither a
            batch nor token ids, or a hook on scores or pattern, whose edit no probe would see.
    """
    tables = head_masses(
        model, batch_or_tokens, probes, special_ids=special_ids, attention_mask=attention_mask
    )
    rows = [row for masses in tables for row in summary_rows(masses, seed)]
    order = {masses.probe.name: i for i, masses in enumerate(tables)}
    rows.sort(key=lambda row: (row["layer"], row["head"], order[row["probe"]]))
    columns = {name: [row[name] for row in rows] for name in HEADS.names}
    x = probe_input(model, batch_or_tokens, special_ids, attention_mask)
    return make_table(columns, HEADS, {**provenance(model, x.tokens), "bootstrap_seed": seed})


def head_masses(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    probes: Iterable[str] | None = None,
    *,
    special_ids: tuple[int, ...] | None = None,
    attention_mask: Mask | None = None,
) -> list[HeadMasses]:
    """Return each probe's mass for every sequence and head, summed in float64."""
    x = probe_input(model, batch_or_tokens, special_ids, attention_mask)
    entries = choose_probes(probes, has_sources=x.sources is not None)
    parts = [masses_of_slice(model, part, entries) for part in slices_of(x, model_device(model))]
    return [
        HeadMasses(
            probe=entry,
            heads=parts[0][i].heads,
            mass=np.concatenate([part[i].mass for part in parts]),
            n_rows=np.concatenate([part[i].n_rows for part in parts]),
            chance=np.concatenate([part[i].chance for part in parts]),
        )
        for i, entry in enumerate(entries)
    ]


def masses_of_slice(
    model: ReadableModel, x: ProbeInput, entries: tuple[ProbeEntry, ...]
) -> list[HeadMasses]:
    """Return the masses of a few sequences from one forward pass."""
    functions: list[Callable[[ProbeInput], Targets]] = [load_function(entry) for entry in entries]
    targets = [function(x) for function in functions]
    heads: list[tuple[int, int]] = []
    layers: list[list[np.ndarray]] = [[] for _ in entries]

    def observe(layer: int, reads: AttentionReads) -> None:
        heads.extend((layer, head) for head in head_ids(model, layer, reads.q.shape[2]))
        for collected, target in zip(layers, targets, strict=True):
            collected.append(mass_on(reads, target).cpu().numpy())

    observe_layers(model, x.tokens, observe, x.real)
    return [
        HeadMasses(
            probe=entry,
            heads=tuple(heads),
            mass=np.concatenate(collected, axis=1).astype(np.float64),
            n_rows=target.n_rows.double().numpy(),
            chance=target.chance.numpy(),
        )
        for entry, target, collected in zip(entries, targets, layers, strict=True)
    ]


def mass_on(reads: AttentionReads, targets: Targets) -> Tensor:
    """Return one layer's mass on the targets, [batch, head], a block of cells at a time."""
    batch, _, n_heads, d_head = reads.q.shape
    block = max(1, GATHERED_NUMBERS // max(1, batch * n_heads * d_head))
    # Some accelerators have no float64; there the sum is taken in float32.
    dtype = torch.float32 if reads.q.device.type == "mps" else torch.float64
    total = torch.zeros(batch, n_heads, dtype=dtype, device=reads.q.device)
    for start in range(0, targets.query_pos.shape[1], block):
        some = slice(start, start + block)
        cells = reads.cells(targets.query_pos[:, some], targets.key_pos[:, some])
        total += cells.sum(dim=-1, dtype=dtype)
    return total


def summary_rows(masses: HeadMasses, seed: int) -> list[dict[str, Any]]:
    """Return one row a head: the mean over all scored rows, its chance and its interval."""
    n_rows = masses.n_rows.sum()
    low, high = bootstrap_interval(masses.mass, masses.n_rows, seed=seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = masses.mass.sum(axis=0) / n_rows
        chance = masses.chance.sum() / n_rows
        # Chance 1 means that no other score was possible, so that there is nothing to correct.
        kappa = (score - chance) / (1.0 - chance) if chance < 1.0 else score * np.nan
    return [
        {
            "layer": layer,
            "head": head,
            "probe": masses.probe.name,
            "score": score[i],
            "chance": chance,
            "kappa": kappa[i],
            "ci_low": low[i],
            "ci_high": high[i],
            "n_sequences": int((masses.n_rows > 0).sum()),
            "n_rows": int(n_rows),
            "unit": masses.probe.unit,
        }
        for i, (layer, head) in enumerate(masses.heads)
    ]
