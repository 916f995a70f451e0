"""Which cells of the attention matrix each probe looks at.

One function a probe: it turns tokens (and, for a task, the sources of its answers) into the cells
that count. Nothing here runs a model. Positions are 0-based; PROBES of `probes.registry` says in
words which rows each function scores.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from lab.shapes import Tokens

Sources = Int[Tensor, "batch pos n_sources"]
CellList = Int[Tensor, "batch cell"]

ROW_TILE = 512
"""Rows compared at once when equal tokens are looked for, so that memory stays O(n)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeInput:
    """What a probe may know of its input."""

    tokens: Tokens
    """Token ids."""
    sources: Sources | None
    """For each query position, the key positions of the answer; -1: none. None: no task's batch."""
    special_ids: tuple[int, ...]
    """Ids of BOS and SEP: equal ones among them are no duplicates."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Targets:
    """The cells that count, one list a sequence, sorted by row."""

    query_pos: CellList
    """Rows of the cells."""
    key_pos: CellList
    """Keys of the cells; -1 fills up the lists of sequences that have fewer."""
    n_rows: Int[Tensor, " batch"]
    """Rows of each sequence that have a target: the mean is taken over them."""
    chance: Float64[Tensor, " batch"]
    """What a head that spreads evenly puts on the targets: 1 / (q + 1) a cell, summed."""

    @classmethod
    def of_cells(cls, query_pos: CellList, key_pos: CellList, n_pos: int) -> "Targets":
        """Count the rows of the cells and their chance; no cell may be listed twice."""
        # Counted on the CPU: some accelerators have no float64.
        real, rows = key_pos.cpu() >= 0, query_pos.cpu()
        scored = torch.zeros(len(rows), n_pos, dtype=torch.bool)
        sequence, cell = real.nonzero(as_tuple=True)
        scored[sequence, rows[sequence, cell]] = True
        chance = torch.where(real, 1.0 / (rows.double() + 1.0), 0.0)
        return cls(
            query_pos=query_pos,
            key_pos=key_pos,
            n_rows=scored.sum(dim=1),
            chance=chance.sum(dim=1),
        )


def answer_sources(x: ProbeInput) -> Targets:
    """Return the cells (query, source of its answer)."""
    return late_sources(x, 0)


def answer_sources_plus_1(x: ProbeInput) -> Targets:
    """Return the cells (query + 1, source of the query's answer)."""
    return late_sources(x, 1)


def answer_sources_plus_2(x: ProbeInput) -> Targets:
    """Return the cells (query + 2, source of the query's answer)."""
    return late_sources(x, 2)


def late_sources(x: ProbeInput, late: int) -> Targets:
    """Return the source cells, each moved `late` rows down; rows past the end are left out."""
    if x.sources is None:
        raise ValueError("sources must be those of a task's batch, got plain tokens")
    batch, n_pos, n_sources = x.sources.shape
    kept = max(0, n_pos - late)
    keys = x.sources[:, :kept].reshape(batch, -1)
    rows = torch.arange(late, late + kept, device=keys.device).repeat_interleave(n_sources)
    used = (keys >= 0).any(dim=0)
    return Targets.of_cells(rows[used].expand(batch, -1), keys[:, used].clamp(min=-1), n_pos)


def previous_token(x: ProbeInput) -> Targets:
    """Return the cells (q, q - 1), without q = 1 where the previous token is BOS.

    There every head that rests on BOS would count as a previous-token head.
    """
    rows, keys = diagonal(x.tokens, first_row=1, offset=1)
    starts_special = is_special(x.tokens[:, :1], x.special_ids)
    return Targets.of_cells(
        rows, torch.where(starts_special & (rows == 1), -1, keys), x.tokens.shape[1]
    )


def current_token(x: ProbeInput) -> Targets:
    """Return the cells (q, q), q >= 1: row 0 has one key, so every head has mass 1 there."""
    return Targets.of_cells(*diagonal(x.tokens, first_row=1, offset=0), x.tokens.shape[1])


def first_token(x: ProbeInput) -> Targets:
    """Return the cells (q, 0), q >= 1."""
    rows, keys = diagonal(x.tokens, first_row=1, offset=0)
    return Targets.of_cells(rows, torch.zeros_like(keys), x.tokens.shape[1])


def duplicate_token(x: ProbeInput) -> Targets:
    """Return the cells (q, k), k < q, that hold equal tokens."""
    return Targets.of_cells(*earlier_copies(x), x.tokens.shape[1])


def induction(x: ProbeInput) -> Targets:
    """Return the cells (q, k), k <= q, whose key follows an earlier copy of q's token."""
    rows, copies = earlier_copies(x)
    return Targets.of_cells(rows, torch.where(copies >= 0, copies + 1, -1), x.tokens.shape[1])


def diagonal(tokens: Tokens, *, first_row: int, offset: int) -> tuple[CellList, CellList]:
    """Return the cells (q, q - offset) from first_row on, the same for every sequence."""
    batch, n_pos = tokens.shape
    rows = torch.arange(min(first_row, n_pos), n_pos, device=tokens.device).expand(batch, -1)
    return rows, rows - offset


def is_special(tokens: Tokens, special_ids: tuple[int, ...]) -> Bool[Tensor, "batch pos"]:
    """Return which tokens are BOS or SEP."""
    return torch.isin(tokens, torch.tensor(special_ids, dtype=tokens.dtype, device=tokens.device))


def earlier_copies(x: ProbeInput) -> tuple[CellList, CellList]:
    """Return every pair (q, k), k < q, of equal tokens that are not special."""
    batch, n_pos = x.tokens.shape
    device = x.tokens.device
    comparable = ~is_special(x.tokens, x.special_ids)
    positions = torch.arange(n_pos, device=device)
    found = []
    for start in range(0, n_pos, ROW_TILE):
        rows = slice(start, start + ROW_TILE)
        equal = x.tokens[:, rows, None] == x.tokens[:, None, :]
        equal &= positions[rows, None] > positions
        equal &= comparable[:, rows, None]
        sequence, row, key = equal.nonzero(as_tuple=True)
        found.append(torch.stack([sequence, row + start, key]))
    sequence, row, key = torch.cat(found, dim=1)
    order = sequence.argsort(stable=True)
    sequence, row, key = sequence[order], row[order], key[order]
    # Pack the pairs of each sequence to the left of its list.
    count = torch.bincount(sequence, minlength=batch)
    place = torch.arange(len(sequence), device=device) - (count.cumsum(0) - count)[sequence]
    longest = int(count.max()) if batch else 0
    rows_out = torch.zeros(batch, longest, dtype=torch.long, device=device)
    keys_out = torch.full((batch, longest), -1, dtype=torch.long, device=device)
    rows_out[sequence, place] = row
    keys_out[sequence, place] = key
    return rows_out, keys_out
