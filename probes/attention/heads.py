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

from lab.shapes import GivenMask, PositionMask, Tokens
from lab.tasks.base import Batch
from probes.attention.targets import ProbeInput, Targets
from probes.intervals import bootstrap_interval
from probes.reading.observed_model import (
    ReadableModel,
    head_ids,
    observe_layers,
    probe_input,
    provenance,
    require_tokens,
    slices_for,
)
from probes.reading.pattern_reads import LayerReads
from probes.registry import ProbeEntry, choose_probes, load_function
from probes.schemas.heads import HEADS
from probes.tables import rows_table

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
    control: Float64[np.ndarray, "batch column"] | None = None
    """Mass on the same cells of the control tokens; None: no control."""


def score_heads(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    probes: Iterable[str] | None = None,
    *,
    special_ids: tuple[int, ...] | None = None,
    attention_mask: GivenMask | None = None,
    control: Tokens | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Score every head on every probe: one row per layer, head and probe.

    score = mean over the scored rows of all sequences of sum_{k in targets(q)} A[q, k], in 0 .. 1;
    chance is the same with A = 1 / keys that the row sees, exactly: q + 1 in a causal model, all in
    a bidirectional one. kappa = (score - chance) / (1 - chance). The interval resamples
    sequences. A probe without a row to score is NaN, never 0. The column control is the score on
    control tokens, at the cells of the tokens proper; the difference is what their content does.

    >>> from probes.planted import PlantedHead, plant
    >>> model = plant([[PlantedHead(kind="previous"), PlantedHead(kind="uniform")]]).model
    >>> tokens = torch.tensor([[2, 3, 4, 5, 6, 7]])
    >>> score_heads(model, tokens, ["previous"])["score"].round(2).tolist()
    [1.0, 0.29]

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: A task's batch, or plain tokens (then probes of the task's sources are left
            out, and an error if they are requested).
        probes: Names from `probes.registry`; None: all that the input allows.
        special_ids: Special token ids, such as BOS and SEP. They never count as duplicates, and
            attention to one at the first position does not count for a previous-token head. None:
            ids 0 and 1 for a task's batch; for plain tokens, the tokenizer's BOS, EOS and PAD.
        attention_mask: True (or 1) at real tokens. Padding is scored neither as row nor as key, and
            "first" means the first real token. None: all are real.
        control: Other tokens of the same shape, such as `control` of `repeated_pair` (see
            `probes.reading.inputs`) or `content_control` of a task's batch.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: An unknown probe, one that the input does not allow, an empty batch, neither a
            batch nor token ids, a control of another shape, or a hook on scores or pattern, whose
            edit no probe would see.
    """
    x = probe_input(model, batch_or_tokens, special_ids, attention_mask)
    if control is not None:
        check_control(control, x.tokens)
    return scores_table(model, x, probes, control=control, seed=seed)


def scores_table(
    model: ReadableModel,
    x: ProbeInput,
    probes: Iterable[str] | None = None,
    *,
    control: Tokens | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the table of `score_heads` of sequences that were checked."""
    tables = head_masses(model, x, probes, control=control)
    rows = [row for masses in tables for row in summary_rows(masses, seed)]
    order = {masses.probe.name: i for i, masses in enumerate(tables)}
    rows.sort(key=lambda row: (row["layer"], row["head"], order[row["probe"]]))
    return rows_table(rows, HEADS, {**provenance(model, x.tokens), "bootstrap_seed": seed})


def head_masses(
    model: ReadableModel,
    x: ProbeInput,
    probes: Iterable[str] | None = None,
    *,
    control: Tokens | None = None,
) -> list[HeadMasses]:
    """Return each probe's mass for every sequence and head, summed in float64."""
    entries = choose_probes(probes, has_sources=x.sources is not None)
    parts, start = [], 0
    for part in slices_for(model, x):
        stop = start + len(part.tokens)
        other = None if control is None else control[start:stop].to(part.tokens.device)
        parts.append(masses_of_slice(model, part, entries, other))
        start = stop
    return [
        HeadMasses(
            probe=entry,
            heads=parts[0][i].heads,
            mass=np.concatenate([part[i].mass for part in parts]),
            n_rows=np.concatenate([part[i].n_rows for part in parts]),
            chance=np.concatenate([part[i].chance for part in parts]),
            control=joined([part[i].control for part in parts]),
        )
        for i, entry in enumerate(entries)
    ]


def joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    """Return the parts one below the other, or None if there are no parts."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None


def check_control(control: Any, tokens: Tokens) -> None:
    """Raise ValueError unless control tokens have the shape and special ids of the tokens."""
    got = require_tokens(control)
    if got.shape != tokens.shape:
        raise ValueError(
            f"control must have the shape {list(tokens.shape)} of the tokens, got {list(got.shape)}"
        )


def masses_of_slice(
    model: ReadableModel,
    x: ProbeInput,
    entries: tuple[ProbeEntry, ...],
    control: Tokens | None = None,
) -> list[HeadMasses]:
    """Return the masses of a few sequences from one forward pass, two with control tokens."""
    functions: list[Callable[[ProbeInput], Targets]] = [load_function(entry) for entry in entries]
    targets = [function(x) for function in functions]
    heads, mass = target_masses(model, x.tokens, targets, x.real)
    other = [None] * len(targets)
    if control is not None:
        other = target_masses(model, control, targets, x.real)[1]
    return [
        HeadMasses(
            probe=entry,
            heads=heads,
            mass=of_tokens,
            n_rows=target.n_rows.double().numpy(),
            chance=target.chance.numpy(),
            control=of_control,
        )
        for entry, target, of_tokens, of_control in zip(entries, targets, mass, other, strict=True)
    ]


def target_masses(
    model: ReadableModel, tokens: Tokens, targets: list[Targets], real: PositionMask | None
) -> tuple[tuple[tuple[int, int], ...], list[Float64[np.ndarray, "batch column"]]]:
    """Return the heads, and their mass on each list of cells, from one forward pass."""
    heads: list[tuple[int, int]] = []
    layers: list[list[np.ndarray]] = [[] for _ in targets]

    def observe(layer: int, reads: LayerReads) -> None:
        heads.extend((layer, head) for head in head_ids(model, layer, reads.n_heads))
        for collected, target in zip(layers, targets, strict=True):
            collected.append(mass_on(reads, target).cpu().numpy())

    observe_layers(model, tokens, observe, real)
    masses = [np.concatenate(collected, axis=1).astype(np.float64) for collected in layers]
    return tuple(heads), masses


def mass_on(reads: LayerReads, targets: Targets) -> Tensor:
    """Return one layer's mass on the targets, [batch, head], a block of cells at a time."""
    block = max(1, GATHERED_NUMBERS // max(1, reads.numbers_a_cell))
    # Some accelerators have no float64; there the sum is taken in float32.
    dtype = torch.float32 if reads.device.type == "mps" else torch.float64
    n_sequences = len(targets.query_pos)
    total = torch.zeros(n_sequences, reads.n_heads, dtype=dtype, device=reads.device)
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
        control = score * np.nan if masses.control is None else masses.control.sum(axis=0) / n_rows
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
            "control": control[i],
            "n_sequences": int((masses.n_rows > 0).sum()),
            "n_rows": int(n_rows),
            "unit": masses.probe.unit,
        }
        for i, (layer, head) in enumerate(masses.heads)
    ]
