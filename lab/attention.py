"""Attention twice, and attention read without its matrix.

`attention_scores`, `attention_pattern` and `mix_values` are the explicit path: scaled dot
products, causal mask, softmax, weighted values, each a tensor that somebody can look at.
`fused_attention` gives the same z from one kernel that never builds the matrix. `AttentionReads`
answers questions about the matrix (one cell, one row's entropy) from q, k and one number a row.
Projections and hooks live in `lab.model`.
"""

import math
from collections.abc import Iterator
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


def visible_keys(
    n_query: int, n_key: int, device: torch.device | None = None
) -> Bool[Tensor, "query_pos key_pos"]:
    """Return which keys a causal query sees; the last query stands at the last key."""
    offset = n_key - n_query
    keys = torch.arange(n_key, device=device)
    return keys <= torch.arange(offset, n_key, device=device).unsqueeze(1)


def attention_scores(q: Queries, k: Keys, *, scale: float, causal: bool = True) -> Pattern:
    """Return q . k * scale, with -inf where a query must not look.

    Source: Vaswani et al. 2017, section 3.2.1 (scale = 1 / sqrt(d_head)).
    """
    scores = einsum(q * scale, k, "batch q head d, batch k head d -> batch head q k")
    if causal and q.shape[1] > 1:
        hidden = ~visible_keys(q.shape[1], k.shape[1], q.device)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores


def attention_pattern(scores: Pattern) -> Pattern:
    """Return the softmax of every row: probabilities over keys."""
    return scores.softmax(dim=-1)


def mix_values(pattern: Pattern, v: Values) -> Mixed:
    """Return z, the mean of the values under each row's probabilities."""
    return einsum(pattern, v, "batch head q k, batch k head d -> batch q head d")


def fused_attention(q: Queries, k: Keys, v: Values, *, scale: float, causal: bool = True) -> Mixed:
    """Return the z of the explicit path from one kernel, in O(n) memory."""
    n_query, n_key = q.shape[1], k.shape[1]
    if q.shape[2] == 0:  # a layer whose heads were all pruned: there is nothing to hand the kernel
        return v.new_zeros(*q.shape[:3], v.shape[3])
    # The kernel's own causal mask is aligned top-left: right only for as many queries as keys.
    partial = causal and 1 < n_query < n_key
    z = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=visible_keys(n_query, n_key, q.device) if partial else None,
        is_causal=causal and n_query == n_key,
        scale=scale,
    )
    return z.transpose(1, 2)


class KeyValueCache:
    """The keys and values of the positions that were already computed, layer by layer.

    Hand the same object to each call of forward, with the new tokens only.
    """

    def __init__(self, n_layers: int) -> None:
        """Start with no positions."""
        self.length = 0
        """Positions that every layer has seen."""
        self.layers: list[tuple[Keys, Values] | None] = [None] * n_layers

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
        causal: bool = True,
        first_key: int = 0,
    ) -> None:
        """Hold q and k as the scores use them (after rotary).

        Args:
            q: Queries.
            k: Keys; the last query stands at the last key.
            v: Values.
            scale: Factor of the scores, 1 / sqrt(d_head).
            causal: Whether query i sees keys up to its own position only.
            first_key: 1 hides key 0 (see sink_free), 0 hides nothing.
        """
        half = q.dtype in (torch.bfloat16, torch.float16)
        self.q, self.k, self.v = (t.detach().float() if half else t.detach() for t in (q, k, v))
        self.scale = scale
        self.causal = causal
        self.first_key = first_key
        self.offset = k.shape[1] - q.shape[1]
        """Position of the first query."""

    @cached_property
    def _rows(self) -> tuple[RowValue, Queries]:
        """lse, and the mean key under each row's probabilities."""
        q, k = self.q, self.k[:, self.first_key :]
        blind = max(0, self.first_key - self.offset) if self.causal else 0
        q = q[:, blind:]
        if 0 in q.shape or 0 in k.shape:
            lse, mean_key = q.new_full((q.shape[0], q.shape[2], q.shape[1]), math.nan), q * math.nan
        else:
            read = flash_rows_on_cpu if q.device.type == "cpu" else tiled_rows
            lse, mean_key = read(q, k, self.scale, self.causal)
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
        if self.causal:
            seen &= keys <= rows + self.offset
        shown = seen.unsqueeze(1) | lse.isnan()
        return torch.where(shown, (scores - lse).exp().clamp(max=1.0), 0.0)

    def sink_free(self) -> "AttentionReads":
        """Return the same attention with key 0 hidden and every row renormalised.

        The rows are computed anew rather than divided by 1 - A[i, 0], which would divide a rounding
        error by a small number. A row that sees key 0 only is NaN.
        """
        return AttentionReads(
            self.q, self.k, self.v, scale=self.scale, causal=self.causal, first_key=1
        )

    def tiles(self, rows: int = 256) -> Iterator[tuple[int, Pattern]]:
        """Yield (first row, probabilities of a tile of rows over all keys): O(rows * n) memory."""
        n_query = self.q.shape[1]
        for start in range(0, n_query, rows):
            stop = min(start + rows, n_query)
            scores = masked_tile(self.q, self.k, self.scale, self.causal, start, stop)
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
    q: Queries, k: Keys, scale: float, causal: bool, start: int, stop: int
) -> Float[Tensor, "batch head tile key_pos"]:
    """Return the scores of rows start .. stop over all keys, -inf where they must not look."""
    offset = k.shape[1] - q.shape[1]
    scores = einsum(q[:, start:stop] * scale, k, "batch q head d, batch k head d -> batch head q k")
    if causal:
        rows = torch.arange(start, stop, device=q.device) + offset
        keys = torch.arange(k.shape[1], device=q.device)
        scores.masked_fill_(keys > rows.unsqueeze(1), -math.inf)
    return scores


def tiled_rows(
    q: Queries, k: Keys, scale: float, causal: bool, rows: int = 256
) -> tuple[RowValue, Queries]:
    """Return lse and mean key of every row, a tile of rows at a time: right on every device."""
    lses, mean_keys = [], []
    for start in range(0, q.shape[1], rows):
        scores = masked_tile(q, k, scale, causal, start, min(start + rows, q.shape[1]))
        lses.append(scores.logsumexp(dim=-1))
        mean_keys.append(mix_values(scores.softmax(dim=-1), k))
    return torch.cat(lses, dim=2), torch.cat(mean_keys, dim=1)


def flash_rows_on_cpu(q: Queries, k: Keys, scale: float, causal: bool) -> tuple[RowValue, Queries]:
    """Return lse and mean key of every row from PyTorch's CPU flash kernel.

    The kernel is an internal operator of PyTorch: the public function hides the lse that it
    computes. It ends the process when there are no heads, and its causal mask is aligned
    top-left; both are kept away from it here.
    """
    n_query, n_key = q.shape[1], k.shape[1]
    if q.shape[2] == 0 or (causal and 1 < n_query < n_key):
        return tiled_rows(q, k, scale, causal)
    heads_first = [rearrange(t, "batch pos head d -> batch head pos d") for t in (q, k, k)]
    mean_key, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *heads_first, is_causal=causal and n_query > 1, scale=scale
    )
    return lse.to(q.dtype), rearrange(mean_key, "batch head pos d -> batch pos head d")
