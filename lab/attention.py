"""Attention twice, and attention read without its matrix.

`attention_scores`, `attention_pattern` and `mix_values` are the explicit path: scaled dot
products, causal mask, softmax, weighted values, each a tensor that somebody can look at.
`fused_attention` gives the same z from one kernel that never builds the matrix. `AttentionReads`
answers questions about the matrix (one cell, one row's entropy) from q, k and one number a row.
Projections and hooks live in `lab.model`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lab.shapes import HeadVectors, Pattern, RowValue

Queries = Float[Tensor, "batch query_pos head d_head"]
Keys = Float[Tensor, "batch key_pos head d_head"]
Values = Float[Tensor, "batch key_pos head d_value"]
Mixed = Float[Tensor, "batch query_pos head d_value"]
Cells = Int[Tensor, " cell"] | Int[Tensor, "batch cell"]
CellValue = Float[Tensor, "batch head cell"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sight:
    """Which keys a query may look at."""

    causal: bool = True
    """Query i sees keys up to its own position only; the last query stands at the last key."""
    real: Bool[Tensor, "batch key_pos"] | None = None
    """True at real tokens, False at padding; None: no padding."""

    def plain(self, n_query: int, n_key: int) -> bool:
        """Tell whether kernels know this mask by themselves: none, or causal and square."""
        return self.real is None and (not self.causal or n_query in (1, n_key))

    def mask(
        self, n_query: int, n_key: int, device: torch.device, rows: slice = slice(None)
    ) -> Bool[Tensor, "#batch 1 query_pos key_pos"]:
        """Return True where a query sees a key; rows of padding see nothing.

        Args:
            n_query: Queries of this call.
            n_key: Keys, of earlier calls too.
            device: Where the mask goes.
            rows: Only these queries.
        """
        positions = torch.arange(n_key - n_query, n_key, device=device)[rows]
        seen = torch.ones(1, 1, len(positions), n_key, dtype=torch.bool, device=device)
        if self.causal:
            seen = torch.arange(n_key, device=device) <= positions.unsqueeze(1)
            seen = rearrange(seen, "query key -> 1 1 query key")
        if self.real is not None:
            queries = self.real[:, positions]
            seen = seen & rearrange(self.real, "batch key -> batch 1 1 key")
            seen = seen & rearrange(queries, "batch query -> batch 1 query 1")
        return seen


CAUSAL = Sight()


def attention_scores(q: Queries, k: Keys, *, scale: float, sight: Sight = CAUSAL) -> Pattern:
    """Return q . k * scale, with -inf where a query must not look.

    Source: Vaswani et al. 2017, section 3.2.1 (scale = 1 / sqrt(d_head)).
    """
    n_query, n_key = q.shape[1], k.shape[1]
    scores = einsum(q * scale, k, "batch q head d, batch k head d -> batch head q k")
    if sight.real is None and (not sight.causal or n_query == 1):
        return scores
    return scores.masked_fill(~sight.mask(n_query, n_key, q.device), -math.inf)


def attention_pattern(scores: Pattern) -> Pattern:
    """Return the softmax of every row: probabilities over keys; zeros in a row that sees no key."""
    blind = (scores == -math.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)


def mix_values(pattern: Pattern, v: Values) -> Mixed:
    """Return z, the mean of the values under each row's probabilities."""
    return einsum(pattern, v, "batch head q k, batch k head d -> batch q head d")


def fused_attention(
    q: Queries, k: Keys, v: Values, *, scale: float, sight: Sight = CAUSAL
) -> Mixed:
    """Return the z of the explicit path from one kernel; without padding in O(n) memory."""
    n_query, n_key = q.shape[1], k.shape[1]
    if q.shape[2] == 0:  # a layer whose heads were all pruned: there is nothing to hand the kernel
        return v.new_zeros(*q.shape[:3], v.shape[3])
    heads_first = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    if sight.plain(n_query, n_key):
        # The kernel's own causal mask is aligned top-left: one query sees everything.
        causal = sight.causal and n_query > 1
        z = F.scaled_dot_product_attention(*heads_first, is_causal=causal, scale=scale)
        return z.transpose(1, 2)
    seen = sight.mask(n_query, n_key, q.device)
    blind = ~seen.any(dim=-1, keepdim=True)  # a kernel's answer there is 0, garbage or NaN
    z = F.scaled_dot_product_attention(*heads_first, attn_mask=seen | blind, scale=scale)
    return z.masked_fill(blind, 0.0).transpose(1, 2)


def share_keys(
    k: Float[Tensor, "batch pos kv_head d_head"], kv_index: tuple[int, ...]
) -> HeadVectors:
    """Give each query head the key (or value) head that it reads, in grouped-query attention."""
    if kv_index == tuple(range(k.shape[2])):
        return k
    return k[:, :, list(kv_index)]


class KeyValueCache:
    """The keys and values of the positions that were already computed, layer by layer.

    Hand the same object to each call of forward, with the new tokens only.
    """

    def __init__(self, n_layers: int) -> None:
        """Start with no positions."""
        self.length = 0
        """Positions that every layer has seen."""
        self.layers: list[tuple[Keys, Values] | None] = [None] * n_layers
        self.real: Bool[Tensor, "batch key_pos"] | None = None
        """Where the positions so far are real tokens; None: no padding."""

    def extend_mask(
        self, mask: Bool[Tensor, "batch pos"] | None, batch: int, n_pos: int
    ) -> Bool[Tensor, "batch key_pos"] | None:
        """Append where the new tokens are real (None: all of them), and return the whole."""
        past, new = self.real, mask
        known = new if past is None else past
        if known is None:
            return None
        if past is None:
            past = known.new_ones(batch, self.length)
        if new is None:
            new = known.new_ones(batch, n_pos)
        self.real = torch.cat([past, new], dim=1)
        return self.real

    def extend(self, layer: int, k: HeadVectors, v: HeadVectors) -> tuple[Keys, Values]:
        """Append new keys and values of a layer and return all of them."""
        past = self.layers[layer]
        if past is not None:
            k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
        self.layers[layer] = (k, v)
        return k, v


class AttentionReads:
    """One layer's attention, read from q and k without building the matrix.

    With lse, the log of each row's softmax denominator, any cell is A[i, j] = exp(scale * q_i .
    k_j - lse_i), in O(d_head); and since log A[i, j] is linear in k_j, the entropy of a row is
    lse_i - scale * q_i . (sum_j A[i, j] k_j), where the sum is what an attention kernel returns
    when k stands in the place of v. Rows whose numbers have no meaning are NaN.

    Reads are measurements: they carry no gradient, and half-precision q and k are read in float32.
    """

    def __init__(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        *,
        scale: float,
        sight: Sight = CAUSAL,
        first_key: int = 0,
    ) -> None:
        """Hold q and k as the scores use them (after rotary), one key head for each query head.

        Args:
            q: Queries.
            k: Keys; the last query stands at the last key.
            v: Values.
            scale: Factor of the scores, 1 / sqrt(d_head).
            sight: Which keys a query sees.
            first_key: 1 hides key 0 (see sink_free), 0 hides nothing.
        """
        half = q.dtype in (torch.bfloat16, torch.float16)
        self.q, self.k, self.v = (t.detach().float() if half else t.detach() for t in (q, k, v))
        self.scale = scale
        self.sight = sight
        self.first_key = first_key
        self.offset = k.shape[1] - q.shape[1]
        """Position of the first query."""

    @cached_property
    def _rows(self) -> tuple[RowValue, Queries]:
        """lse, and the mean key under each row's probabilities; NaN in rows that see no key."""
        q, k, sight = self.q, self.k[:, self.first_key :], self.sight
        blind = max(0, self.first_key - self.offset) if sight.causal else 0
        q = q[:, blind:]
        if sight.real is not None:
            sight = Sight(causal=sight.causal, real=sight.real[:, self.first_key :])
        if 0 in q.shape or 0 in k.shape:
            lse, mean_key = q.new_full((q.shape[0], q.shape[2], q.shape[1]), math.nan), q * math.nan
        elif q.device.type == "cpu" and sight.plain(q.shape[1], k.shape[1]):
            lse, mean_key = flash_rows_on_cpu(q, k, self.scale, sight.causal)
        else:
            lse, mean_key = tiled_rows(q, k, self.scale, sight)
        if blind:
            lse = F.pad(lse, (blind, 0), value=math.nan)
            mean_key = F.pad(mean_key, (0, 0, 0, 0, blind, 0), value=math.nan)
        return lse, mean_key

    @property
    def lse(self) -> RowValue:
        """The natural log of each row's softmax denominator."""
        return self._rows[0]

    def entropy(self) -> RowValue:
        """Return -sum_j A[i, j] ln A[i, j] of every row, in nats, in 0 .. ln(visible keys)."""
        lse, mean_key = self._rows
        # On sharp heads the two terms nearly cancel, so the difference is taken in float64.
        mean_score = self.scale * einsum(
            self.q.double(), mean_key.double(), "batch q head d, batch q head d -> batch head q"
        )
        return (lse.double() - mean_score).clamp(min=0.0).to(lse.dtype)

    def cells(self, query_pos: Cells, key_pos: Cells) -> CellValue:
        """Return A at chosen cells, in 0 .. 1.

        Args:
            query_pos: Rows of this call (0 is its first query), the same for all sequences or one
                list a sequence.
            key_pos: Their keys. A key of -1, a hidden key and a key after its query read 0.
        """
        batch = self.q.shape[0]
        rows, keys = (
            (t if t.ndim == 2 else t.expand(batch, -1)).to(self.q.device)
            for t in (query_pos, key_pos)
        )
        q, k = take_positions(self.q, rows), take_positions(self.k, keys.clamp(min=0))
        lse = self.lse.gather(2, rows.unsqueeze(1).expand(-1, self.q.shape[2], -1))
        scores = self.scale * einsum(
            q, k, "batch cell head d, batch cell head d -> batch head cell"
        )
        seen = keys >= self.first_key
        if self.sight.causal:
            seen &= keys <= rows + self.offset
        if self.sight.real is not None:
            seen &= self.sight.real.gather(1, keys.clamp(min=0))
        shown = seen.unsqueeze(1) | lse.isnan()
        return torch.where(shown, (scores - lse).exp().clamp(max=1.0), 0.0)

    def sink_free(self) -> "AttentionReads":
        """Return the same attention with key 0 hidden and every row renormalised.

        The rows are computed anew rather than divided by 1 - A[i, 0], which would divide a rounding
        error by a small number. A row that sees key 0 only is NaN.
        """
        return AttentionReads(
            self.q, self.k, self.v, scale=self.scale, sight=self.sight, first_key=1
        )

    def tiles(self, rows: int = 256) -> Iterator[tuple[int, Pattern]]:
        """Yield (first row, probabilities of a tile of rows over all keys): O(rows * n) memory."""
        for start in range(0, self.q.shape[1], rows):
            scores = masked_tile(self.q, self.k, self.scale, self.sight, start, start + rows)
            scores[..., : self.first_key] = -math.inf
            yield start, scores.softmax(dim=-1)

    def pattern(self) -> Pattern:
        """Return the whole matrix: for small sequences, pictures and tests."""
        return torch.cat([tile for _, tile in self.tiles()], dim=2)


def take_positions(x: HeadVectors, positions: Int[Tensor, "batch cell"]) -> Tensor:
    """Gather x at one list of positions a sequence: [batch, cell, head, d_head]."""
    batch_index = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    return x[batch_index, positions]


def masked_tile(
    q: Queries, k: Keys, scale: float, sight: Sight, start: int, stop: int
) -> Float[Tensor, "batch head tile key_pos"]:
    """Return the scores of rows start .. stop over all keys, -inf where they must not look."""
    some = q[:, start:stop] * scale
    scores = einsum(some, k, "batch q head d, batch k head d -> batch head q k")
    seen = sight.mask(q.shape[1], k.shape[1], q.device, slice(start, stop))
    return scores.masked_fill_(~seen, -math.inf)


def tiled_rows(
    q: Queries, k: Keys, scale: float, sight: Sight, rows: int = 256
) -> tuple[RowValue, Queries]:
    """Return lse and mean key of every row, a tile of rows at a time: right on every device.

    Rows that see no key are NaN.
    """
    lses, mean_keys = [], []
    for start in range(0, q.shape[1], rows):
        scores = masked_tile(q, k, scale, sight, start, start + rows)
        lse = scores.logsumexp(dim=-1)
        lses.append(lse.masked_fill(lse == -math.inf, math.nan))
        mean_keys.append(mix_values(scores.softmax(dim=-1), k))
    return torch.cat(lses, dim=2), torch.cat(mean_keys, dim=1)


def flash_rows_on_cpu(q: Queries, k: Keys, scale: float, causal: bool) -> tuple[RowValue, Queries]:
    """Return lse and mean key of every row from PyTorch's CPU flash kernel.

    The kernel is an internal operator of PyTorch: the public function hides the lse that it
    computes. It ends the process when there are no heads, and its causal mask is aligned
    top-left; both are kept away from it by its callers.
    """
    heads_first = [rearrange(t, "batch pos head d -> batch head pos d") for t in (q, k, k)]
    mean_key, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *heads_first, is_causal=causal and q.shape[1] > 1, scale=scale
    )
    return lse.to(q.dtype), rearrange(mean_key, "batch head pos d -> batch pos head d")
