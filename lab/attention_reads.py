"""Cells and entropies of the attention matrix, computed from q, k and lse without building it.

The kernels that compute lse are in `lab.row_kernels`.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from lab.attention import (
    CAUSAL,
    Keys,
    Mixed,
    Queries,
    SharedKeys,
    SharedValues,
    Sight,
    Values,
    fused_attention,
    mix_values,
    share_keys,
)
from lab.row_kernels import (
    SCORES_AT_ONCE,
    SoftmaxRows,
    one_call_gives_both,
    rows_and_values,
    softmax_rows,
)
from lab.shapes import HeadVectors, Pattern, RowValue

Cells = Int[Tensor, " cell"] | Int[Tensor, "batch cell"]
CellValue = Float[Tensor, "batch head cell"]
ROWS_IN_FLOAT64 = 4_096
"""Rows of q that are copied to float64 at once."""


class AttentionReads:
    """One layer's attention, read from q and k without building the matrix.

    With lse, the log of each row's softmax denominator, any cell is A[i, j] = exp(scale * q_i .
    k_j - lse_i), in O(d_head); and since log A[i, j] is linear in k_j, the entropy of a row is
    lse_i - scale * q_i . (sum_j A[i, j] k_j), where the sum is what an attention kernel returns
    for k in place of v. Rows that see no key are NaN.

    Reads are measurements: they carry no gradient, and half-precision q and k are read in float32.
    """

    def __init__(
        self,
        q: Queries,
        k: SharedKeys,
        v: SharedValues,
        *,
        scale: float,
        sight: Sight = CAUSAL,
        first_key: int = 0,
        z_follows: bool = False,
    ) -> None:
        """Hold q and k as the scores use them (after rotary).

        Args:
            q: Queries.
            k: Keys, which query heads may share; the last query has the last key's position.
            v: Values.
            scale: Factor of the scores, 1 / sqrt(d_head).
            sight: Which keys a query sees.
            first_key: 1 hides the first unpadded key (see sink_free), 0 hides none.
            z_follows: The model computes z next: keep z if the kernel returns it with the rows.
        """
        half = q.dtype in (torch.bfloat16, torch.float16)
        self.q, self.keys, self.values = (
            t.detach().float() if half else t.detach() for t in (q, k, v)
        )
        self.scale = scale
        self.sight = sight
        self.first_key = first_key
        self.z_follows = z_follows and not half and not torch.is_grad_enabled()
        self.z: Mixed | None = None
        """z, if z_follows and the kernel returned it with the rows."""
        self.offset = k.shape[1] - q.shape[1]
        """Position of the first query."""

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.q.shape[2]

    @property
    def device(self) -> torch.device:
        """Device of q and k."""
        return self.q.device

    @property
    def numbers_a_cell(self) -> int:
        """Numbers that are gathered to read one cell of every sequence and head."""
        return self.q.shape[0] * self.q.shape[2] * self.q.shape[3]

    @property
    def k(self) -> Keys:
        """The keys, one head for each query head."""
        return share_keys(self.keys, self.q.shape[2])

    @property
    def v(self) -> Values:
        """The values, one head for each query head."""
        return share_keys(self.values, self.q.shape[2])

    @cached_property
    def rows(self) -> SoftmaxRows:
        """lse, and the probability-weighted mean key of each row; NaN in rows that see no key."""
        q, k, v = self.q, self.keys, self.values
        if self.z_follows and one_call_gives_both(q, k, v, self.sight):
            rows, self.z = rows_and_values(q, k, v, scale=self.scale, causal=self.sight.causal)
            return rows
        return softmax_rows(
            self.q, self.keys, scale=self.scale, sight=self.sight, first_key=self.first_key
        )

    @property
    def lse(self) -> RowValue:
        """The natural log of each row's softmax denominator."""
        return self.rows.lse

    def entropy(self) -> RowValue:
        """Return -sum_j A[i, j] ln A[i, j] of every row, in nats, in 0 .. ln(visible keys)."""
        lse = self.rows.lse
        # On sharp heads the two terms nearly cancel, so the difference is taken in float64, which
        # some accelerators do not have.
        wide = lse.dtype if lse.device.type == "mps" else torch.float64
        products = [
            (q.to(wide) * mean_key.to(wide)).sum(dim=-1)
            for q, mean_key in zip(
                self.q.split(ROWS_IN_FLOAT64, dim=1),
                self.rows.mean_key.split(ROWS_IN_FLOAT64, dim=1),
                strict=True,
            )
        ]
        products = torch.cat(products, dim=1)  # [batch, query_pos, head]
        mean_score = self.scale * products.transpose(1, 2)  # [batch, head, query_pos]
        return (lse.to(wide) - mean_score).clamp(min=0.0).to(lse.dtype)

    def cells(self, query_pos: Cells, key_pos: Cells) -> CellValue:
        """Return A at chosen cells, in 0 .. 1.

        Args:
            query_pos: Rows of this call (0 is its first query), the same for all sequences or one
                list for each sequence.
            key_pos: Their keys. A key of -1, a hidden key and a key after its query read 0.
        """
        batch = self.q.shape[0]
        rows, keys = (
            (t if t.ndim == 2 else t.expand(batch, -1)).to(self.q.device)
            for t in (query_pos, key_pos)
        )
        q, k = take_positions(self.q, rows), take_positions(self.keys, keys.clamp(min=0))
        lse = self.lse.gather(2, rows.unsqueeze(1).expand(-1, self.q.shape[2], -1))
        # lse is [batch, head, cell]; q becomes [batch, cell, kv_head, group, d_head].
        q = q.unflatten(2, (k.shape[2], -1)) if k.shape[2] else q.unsqueeze(3)
        scores = self.scale * einsum(
            q, k, "batch cell kv_head row d, batch cell kv_head d -> batch kv_head row cell"
        ).flatten(1, 2)  # [batch, head, cell]
        after = self.sight.keys_after(self.first_key, self.keys.shape[1], keys.device)
        seen = (keys >= 0) & after.expand(batch, -1).gather(1, keys.clamp(min=0))  # [batch, cell]
        if self.sight.causal:
            seen &= keys <= rows + self.offset
        shown = seen.unsqueeze(1) | lse.isnan()
        return torch.where(shown, (scores - lse).exp().clamp(max=1.0), 0.0)

    def block(self, rows: slice, keys: slice) -> Pattern:
        """Return A at a block of rows and keys, in 0 .. 1; rows that see no key are NaN.

        Args:
            rows: Rows of this call.
            keys: Keys; a hidden one and one after its query read 0.
        """
        n_query, n_key, heads = self.q.shape[1], self.keys.shape[1], self.q.shape[2]
        k = share_keys(self.keys[:, keys], heads)  # [batch, keys, head, d_head]
        pattern = "batch q head d, batch k head d -> batch head q k"
        scores = einsum(self.q[:, rows] * self.scale, k, pattern)  # [batch, head, rows, keys]
        lse = self.lse[:, :, rows].unsqueeze(-1)  # [batch, head, rows, 1]
        seen = self.sight.mask(n_query, n_key, k.device, rows)[..., keys]
        after = self.sight.keys_after(self.first_key, n_key, k.device)[:, None, None, keys]
        shown = (seen & after) | lse.isnan()
        return torch.where(shown, (scores - lse).exp().clamp(max=1.0), 0.0)

    def mean_value(self) -> Mixed:
        """Return z, the mean of the values under each row's probabilities, from the fused kernel.

        A row that sees no key is NaN.
        """
        if self.first_key:  # no kernel hides keys
            return torch.cat([mix_values(tile, self.v) for _, tile in self.tiles()], dim=1)
        if self.z is not None:
            return self.z
        q, k, v, sight = self.q, self.keys, self.values, self.sight
        z = fused_attention(q, k, v, scale=self.scale, sight=sight)
        if sight.real is None:
            return z
        padding = ~sight.real[:, self.offset :, None, None]
        return z.masked_fill(padding, math.nan)

    def sink_free(self) -> "AttentionReads":
        """Return the same attention with the first unpadded key hidden and the rows renormalised.

        The rows are recomputed rather than divided by 1 - A[i, 0], which would divide a rounding
        error by a small number. A row that sees no other key is NaN.
        """
        return AttentionReads(
            self.q, self.keys, self.values, scale=self.scale, sight=self.sight, first_key=1
        )

    def tiles(self, rows: int | None = None) -> Iterator[tuple[int, Pattern]]:
        """Yield (first row, probabilities of a tile of rows over all keys).

        Args:
            rows: Rows of a tile; None: as many as 64 MB hold in float32.
        """
        n_query, n_key, k = self.q.shape[1], self.keys.shape[1], self.k
        heads = self.q.shape[0] * self.q.shape[2]
        step = max(1, SCORES_AT_ONCE // max(1, heads * n_key)) if rows is None else rows
        after = self.sight.keys_after(self.first_key, n_key, k.device)
        for start in range(0, n_query, step):
            some = self.q[:, start : start + step] * self.scale
            scores = einsum(some, k, "batch q head d, batch k head d -> batch head q k")
            # scores and seen: [batch or 1, head or 1, rows, key_pos]
            seen = self.sight.mask(n_query, n_key, k.device, slice(start, start + step))
            scores.masked_fill_(~(seen & after[:, None, None]), -math.inf)
            yield start, scores.softmax(dim=-1)

    def pattern(self) -> Pattern:
        """Return the whole matrix, for small sequences, figures and tests."""
        return torch.cat([tile for _, tile in self.tiles()], dim=2)


Observer = Callable[[int, AttentionReads], None]
"""Callback of a forward pass: called once for each layer, in order, with (layer, reads)."""


def take_positions(x: HeadVectors, positions: Int[Tensor, "batch cell"]) -> Tensor:
    """Gather x at one list of positions for each sequence: [batch, cell, head, d_head]."""
    batch_index = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    return x[batch_index, positions]
