"""Attention read from a matrix that somebody else has built, as `AttentionReads` reads it without.

Models of other libraries show their patterns and no q and k that the scores follow from (soft caps,
biases, learned sinks). The numbers are the same to rounding; memory is the matrix's.
"""

import math
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from lab.attention import CAUSAL, Mixed, SharedValues, Sight, Values, mix_values, share_keys
from lab.attention_reads import AttentionReads, Cells, CellValue
from lab.row_kernels import SCORES_AT_ONCE
from lab.shapes import Pattern, RowValue

ROUNDING = 1e-4
"""How far a row's sum may be from 1 without part of its mass being taken for missing."""


class PatternReads:
    """One layer's attention, read from its matrix; rows whose numbers have no meaning are NaN.

    Where a row sums to less than 1 (a learned sink beside the keys), what is missing counts as one
    more key in the entropy, and is hidden with the first key. Reads carry no gradient, and
    half-precision patterns are read in float32.
    """

    def __init__(
        self,
        pattern: Pattern,
        v: SharedValues | None = None,
        *,
        sight: Sight = CAUSAL,
        first_key: int = 0,
    ) -> None:
        """Hold the matrix.

        Args:
            pattern: Probabilities after the softmax.
            v: Values; None: unknown.
            sight: Which keys a query sees: other entries of the matrix are not read.
            first_key: 1 hides the first real key (see sink_free), 0 hides nothing.
        """
        self.whole = single(pattern)
        self.values = None if v is None else single(v)
        self.sight = sight
        self.first_key = first_key
        self.offset = pattern.shape[3] - pattern.shape[2]
        """Position of the first query."""

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.whole.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return self.whole.device

    @property
    def numbers_a_cell(self) -> int:
        """Numbers gathered to read one cell of every sequence and head."""
        return self.whole.shape[0] * self.whole.shape[1]

    @property
    def v(self) -> Values:
        """The values, one head for each query head.

        Raises:
            ValueError: The model did not show them.
        """
        if self.values is None:
            raise ValueError(
                "values must be shown by hook_v of the model, got a model without that hook; leave "
                "out what is computed from them, or load the weights with HookedGPT.from_pretrained"
            )
        return share_keys(self.values, self.n_heads)

    @cached_property
    def total(self) -> RowValue:
        """What each row puts on the keys that it sees and that are not hidden; NaN: it has none."""
        return torch.cat([self.shown(rows).sum(dim=-1) for rows in self.row_slices()], dim=2)

    def row_slices(self, rows: int | None = None) -> Iterator[slice]:
        """Yield slices of this many rows; None: as many as 64 MB hold in float32."""
        batch, heads, n_query, n_key = self.whole.shape
        step = max(1, SCORES_AT_ONCE // max(1, batch * heads * n_key)) if rows is None else rows
        for start in range(0, n_query, step):
            yield slice(start, min(start + step, n_query))

    def shown(self, rows: slice) -> Pattern:
        """Return what the matrix says in some rows: 0 at unseen keys, NaN in rows without any."""
        n_query, n_key = self.whole.shape[2:]
        seen = self.sight.mask(n_query, n_key, self.device, rows)
        seen = seen & self.sight.keys_after(self.first_key, n_key, self.device)[:, None, None]
        blind = ~seen.any(dim=-1, keepdim=True)
        return self.whole[:, :, rows].masked_fill(~seen, 0.0).masked_fill(blind, math.nan)

    def block(self, rows: slice, keys: slice) -> Pattern:
        """Return A at a block of rows and keys; see `AttentionReads.block`."""
        shown = self.shown(rows)[..., keys]
        return shown / self.total[:, :, rows, None] if self.first_key else shown

    def tiles(self, rows: int | None = None) -> Iterator[tuple[int, Pattern]]:
        """Yield (first row, probabilities of a tile of rows over all keys)."""
        for some in self.row_slices(rows):
            yield some.start, self.block(some, slice(None))

    def pattern(self) -> Pattern:
        """Return the whole matrix."""
        return torch.cat([tile for _, tile in self.tiles()], dim=2)

    def entropy(self) -> RowValue:
        """Return -sum_j A[i, j] ln A[i, j] of every row, in nats, in 0 .. ln(visible keys)."""
        rows = [torch.special.entr(tile).sum(dim=-1) for _, tile in self.tiles()]
        entropy = torch.cat(rows, dim=2)
        if not self.first_key:
            missing = 1.0 - self.total
            entropy = entropy + torch.special.entr(missing.where(missing > ROUNDING, 0.0))
        return entropy.clamp(min=0.0)

    def cells(self, query_pos: Cells, key_pos: Cells) -> CellValue:
        """Return A at chosen cells, in 0 .. 1; see `AttentionReads.cells`."""
        batch, heads, _, n_key = self.whole.shape
        rows, keys = (
            (t if t.ndim == 2 else t.expand(batch, -1)).to(self.device)
            for t in (query_pos, key_pos)
        )
        held = keys.clamp(min=0)
        place = (rows * n_key + held).unsqueeze(1).expand(-1, heads, -1)
        found = self.whole.flatten(2).gather(2, place)
        total = self.total.gather(2, rows.unsqueeze(1).expand(-1, heads, -1))
        if self.first_key:
            found = found / total
        after = self.sight.keys_after(self.first_key, n_key, self.device)
        seen = (keys >= 0) & after.expand(batch, -1).gather(1, held)
        if self.sight.causal:
            seen &= keys <= rows + self.offset
        return found.where(seen.unsqueeze(1), 0.0).masked_fill(total.isnan(), math.nan)

    def mean_value(self) -> Mixed:
        """Return the mean of the values under each row's probabilities.

        Raises:
            ValueError: The model did not show its values.
        """
        return torch.cat([mix_values(tile, self.v) for _, tile in self.tiles()], dim=1)

    def sink_free(self) -> "PatternReads":
        """Return the same attention with the first real key hidden and every row renormalised.

        Rows are divided by the remaining sum, which has no rounding error of its own to
        divide, unlike 1 - A[i, 0].
        """
        return PatternReads(self.whole, self.values, sight=self.sight, first_key=1)


LayerReads = AttentionReads | PatternReads
"""What a probe is handed of one layer."""


def single(x: Tensor) -> Tensor:
    """Return numbers to measure with: detached, and no coarser than float32."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return x.detach().float() if half else x.detach()
