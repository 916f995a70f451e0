"""Which cells of the attention matrix each probe counts.

One function a probe: it turns tokens (and, for a task, the sources of its answers) into the cells
that count. Nothing here runs a model. Positions are 0-based; PROBES of `probes.registry` says in
words which rows each function scores.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from lab.shapes import PositionMask, Tokens

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
    causal: bool = True
    """Whether a row sees the keys up to its own only, or every key."""
    real: PositionMask | None = None
    """True at real tokens, False at padding, which is scored neither as row nor as key."""

    def keys_seen(self) -> Int[Tensor, "#batch pos"]:
        """Return how many keys each row sees; 0 in rows of padding."""
        n_pos, device = self.tokens.shape[1], self.tokens.device
        if self.real is None:
            up_to_here = torch.arange(1, n_pos + 1, device=device).unsqueeze(0)
            return up_to_here if self.causal else torch.full_like(up_to_here, n_pos)
        count = self.real.cumsum(dim=1)
        return (count if self.causal else count[:, -1:]) * self.real

    def later_rows(self, after: int = 0) -> Bool[Tensor, "batch pos"]:
        """Return the real rows more than this many positions after the first real one."""
        batch, n_pos = self.tokens.shape
        rows = torch.arange(n_pos, device=self.tokens.device).expand(batch, -1)
        later = rows > self.first_real() + after
        return later if self.real is None else later & self.real

    def first_real(self) -> Int[Tensor, "batch 1"]:
        """Return the first position of each sequence that is no padding."""
        if self.real is None:
            return self.tokens.new_zeros(len(self.tokens), 1)
        return self.real.int().argmax(dim=1, keepdim=True)


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
    """What a head that spreads evenly puts on the targets: 1 / keys seen a cell, summed."""

    @classmethod
    def of_cells(cls, query_pos: CellList, key_pos: CellList, x: ProbeInput) -> "Targets":
        """Count the rows of the cells and their chance; no cell may be listed twice."""
        if x.real is not None:
            shown = x.real.gather(1, query_pos) & x.real.gather(1, key_pos.clamp(min=0))
            shown &= key_pos >= 0
            key_pos = torch.where(shown, key_pos, -1)
            # Rows of padding have no numbers to read, not even 0.
            query_pos = torch.where(shown, query_pos, x.first_real())
        # Counted on the CPU: some accelerators have no float64.
        real, rows = key_pos.cpu() >= 0, query_pos.cpu()
        scored = torch.zeros(x.tokens.shape, dtype=torch.bool)
        sequence, cell = real.nonzero(as_tuple=True)
        scored[sequence, rows[sequence, cell]] = True
        seen = x.keys_seen().cpu().double().expand(len(rows), -1).gather(1, rows)
        chance = torch.where(real, 1.0 / seen, 0.0)
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
    """Return the cells (query + late, source of the query's answer); rows past an end are left out.

    A late (or, with -1, an early) cell that is a source of its own row too, as with equal symbols
    or sources that stay in place, is left out: no head is blamed for its neighbour.

    Raises:
        ValueError: The input has no sources.
    """
    if x.sources is None:
        raise ValueError("sources must be those of a task's batch, got plain tokens")
    batch, n_pos, n_sources = x.sources.shape
    rows = torch.arange(n_pos, device=x.sources.device) + late
    inside = (rows >= 0) & (rows < n_pos)
    keys, rows = x.sources[:, inside], rows[inside]  # [batch, row, n_sources]
    if late:
        own = x.sources[:, rows]
        left_out = (keys.unsqueeze(3) == own.unsqueeze(2)).any(dim=3)
        if x.causal:
            left_out |= keys > rows.view(1, -1, 1)
        keys = torch.where(left_out, -1, keys)
    keys = keys.flatten(1)
    rows = rows.repeat_interleave(n_sources)
    used = (keys >= 0).any(dim=0)
    return Targets.of_cells(rows[used].expand(batch, -1), keys[:, used].clamp(min=-1), x)


def previous_token(x: ProbeInput) -> Targets:
    """Return the cells (q, q - 1), without q = 1 where the previous token is BOS.

    There every head that rests on BOS would count as a previous-token head.
    """
    rows, keys = diagonal(x, offset=1)
    first = x.first_real()
    starts_special = is_special(x.tokens.gather(1, first), x.special_ids)
    return Targets.of_cells(rows, torch.where(starts_special & (rows == first + 1), -1, keys), x)


def current_token(x: ProbeInput) -> Targets:
    """Return the cells (q, q), q >= 1: a causal row 0 has one key, and so every head mass 1."""
    return Targets.of_cells(*diagonal(x, offset=0), x)


def first_token(x: ProbeInput) -> Targets:
    """Return the cells (q, 0), q >= 1."""
    rows, keys = diagonal(x, offset=0)
    return Targets.of_cells(rows, torch.where(keys >= 0, x.first_real(), -1), x)


def duplicate_token(x: ProbeInput) -> Targets:
    """Return the cells (q, k), k < q, that hold equal tokens."""
    return Targets.of_cells(*earlier_copies(x), x)


def induction(x: ProbeInput) -> Targets:
    """Return the cells (q, k), k <= q, whose key follows an earlier copy of q's token."""
    rows, copies = earlier_copies(x)
    return Targets.of_cells(rows, torch.where(copies >= 0, copies + 1, -1), x)


def preceder(x: ProbeInput) -> Targets:
    """Return the cells (q, k - 1) before an earlier copy k of q's token, unless BOS stands there.

    There every head that rests on BOS would count as a preceder head.
    """
    rows, copies = earlier_copies(x)
    keys = copies - 1
    special = is_special(x.tokens.gather(1, keys.clamp(min=0)), x.special_ids)
    return Targets.of_cells(rows, torch.where((copies >= 1) & ~special, keys, -1), x)


def diagonal(x: ProbeInput, *, offset: int) -> tuple[CellList, CellList]:
    """Return the cells (q, q - offset) of the rows after the first real one of each sequence."""
    batch, n_pos = x.tokens.shape
    rows = torch.arange(1, n_pos, device=x.tokens.device).expand(batch, -1)
    return rows, torch.where(rows > x.first_real(), rows - offset, -1)


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
        if x.real is not None:
            equal &= x.real[:, None, :]
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
