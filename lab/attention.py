"""Two attention paths: an explicit one that builds the pattern, and a fused kernel.

`attention_scores`, `attention_pattern` and `mix_values` are the explicit path: scaled dot
products, mask, softmax, weighted values. `fused_attention` gives the same z from a kernel that
never builds the matrix; where no kernel knows the mask, it gets one for a few rows at a time.
`lab.attention_reads` reads the pattern without building it; projections and hooks are in
`lab.blocks`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lab.shapes import Pattern

Queries = Float[Tensor, "batch query_pos head d_head"]
Keys = Float[Tensor, "batch key_pos head d_head"]
Values = Float[Tensor, "batch key_pos head d_value"]
SharedKeys = Float[Tensor, "batch key_pos kv_head d_head"]
"""Key heads; query head h reads key head h // (n_heads / n_key_value_heads)."""
SharedValues = Float[Tensor, "batch key_pos kv_head d_value"]
Mixed = Float[Tensor, "batch query_pos head d_value"]
RowMask = Bool[Tensor, "#batch 1 rows key_pos"]

MASK_CELLS = 2**22
"""Cells of a mask that are built at once (of all sequences together)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sight:
    """The attention mask: which keys each query may attend to."""

    causal: bool = True
    """Query i sees keys up to its own position only; the last query has the last key's position."""
    real: Bool[Tensor, "batch key_pos"] | None = None
    """True at real tokens, False at padding; None: no padding."""
    _small: dict[tuple[int, int], tuple[RowMask, RowMask]] = field(
        default_factory=dict, init=False, repr=False
    )

    def plain(self, n_query: int, n_key: int) -> bool:
        """Return whether kernels implement this mask: no mask, or a causal square."""
        return self.real is None and (not self.causal or n_query in (1, n_key))

    def mask(
        self, n_query: int, n_key: int, device: torch.device, rows: slice = slice(None)
    ) -> Bool[Tensor, "#batch 1 query_pos key_pos"]:
        """Return the attention mask: True where a query may attend to a key.

        Rows of padding are all False.

        Args:
            n_query: Queries of this call.
            n_key: Keys, of earlier calls too.
            device: Where the mask goes.
            rows: Only these queries.
        """
        positions = torch.arange(n_key - n_query, n_key, device=device)[rows]
        if self.causal:
            seen = torch.arange(n_key, device=device) <= positions.unsqueeze(1)
        else:
            seen = torch.ones(len(positions), n_key, dtype=torch.bool, device=device)
        seen = rearrange(seen, "query key -> 1 1 query key")
        if self.real is not None:
            queries = self.real[:, positions]  # [batch, query_pos]
            seen = seen & rearrange(self.real, "batch key -> batch 1 1 key")
            seen = seen & rearrange(queries, "batch query -> batch 1 query 1")
        return seen

    def keys_after(
        self, first_key: int, n_key: int, device: torch.device
    ) -> Bool[Tensor, "#batch key_pos"]:
        """Mask the first `first_key` unpadded keys of each sequence, and the padding.

        The result is False where a key is hidden.
        """
        if self.real is None:
            return torch.arange(n_key, device=device).unsqueeze(0) >= first_key
        return self.real & (self.real.cumsum(dim=1) > first_key)

    def tiles(
        self, n_query: int, n_key: int, device: torch.device
    ) -> Iterator[tuple[slice, int, RowMask, RowMask]]:
        """Yield masks of at most MASK_CELLS cells: (rows, last key + 1, shown, blind).

        `blind` marks the rows that see no key. In `shown` they see every key, because a kernel
        returns 0, garbage or NaN for a row without keys; callers discard these rows.
        """
        batch = 1 if self.real is None else len(self.real)
        if batch * n_query * n_key <= MASK_CELLS:
            # Every layer of a forward pass needs the same mask.
            if (n_query, n_key) not in self._small:
                seen = self.mask(n_query, n_key, device)
                blind = ~seen.any(dim=-1, keepdim=True)
                self._small[n_query, n_key] = seen | blind, blind
            yield slice(0, n_query), n_key, *self._small[n_query, n_key]
            return
        step = max(1, MASK_CELLS // (batch * n_key))
        for start in range(0, n_query, step):
            rows = slice(start, min(start + step, n_query))
            # Later keys than the last row's are seen by no row of the tile.
            stop = n_key - n_query + rows.stop if self.causal else n_key
            seen = self.mask(n_query, n_key, device, rows)[..., :stop]
            blind = ~seen.any(dim=-1, keepdim=True)
            yield rows, stop, seen | blind, blind


CAUSAL = Sight()


def attention_scores(q: Queries, k: Keys, *, scale: float, sight: Sight = CAUSAL) -> Pattern:
    """Return q . k * scale, with -inf where a query may not attend.

    Source: Vaswani et al. 2017, section 3.2.1 (scale = 1 / sqrt(d_head)).
    """
    n_query, n_key = q.shape[1], k.shape[1]
    scores = einsum(q * scale, k, "batch q head d, batch k head d -> batch head q k")
    if sight.real is None and (not sight.causal or n_query == 1):
        return scores
    return scores.masked_fill(~sight.mask(n_query, n_key, q.device), -math.inf)


def attention_pattern(scores: Pattern) -> Pattern:
    """Apply the softmax over keys; a row without visible keys is all zeros."""
    blind = (scores == -math.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)


def mix_values(pattern: Pattern, v: Values) -> Mixed:
    """Return z, the mean of the values under each row's probabilities."""
    return einsum(pattern, v, "batch head q k, batch k head d -> batch q head d")


def fused_attention(
    q: Queries, k: SharedKeys, v: SharedValues, *, scale: float, sight: Sight = CAUSAL
) -> Mixed:
    """Return the z of the explicit path without building the matrix.

    Query heads may share key heads: the kernel reads a shared one without a copy.
    """
    n_query, n_key = q.shape[1], k.shape[1]
    shared = bool(k.shape[2] < q.shape[2])  # torch.jit.trace makes a tensor of it
    if 0 in q.shape:  # all heads of the layer were pruned
        return v.new_zeros(*q.shape[:3], v.shape[3])
    if n_query == 1:
        return one_query(q, k, v, scale, sight)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [batch, head, pos, d_head]
    if sight.plain(n_query, n_key):
        z = F.scaled_dot_product_attention(
            q, k, v, is_causal=sight.causal, scale=scale, enable_gqa=shared
        )
        return z.transpose(1, 2)
    # The kernel's own causal mask is aligned top-left: wrong where there are more keys than rows.
    parts = []
    for rows, stop, shown, blind in sight.tiles(n_query, n_key, q.device):
        z = F.scaled_dot_product_attention(
            q[:, :, rows],
            k[:, :, :stop],
            v[:, :, :stop],
            attn_mask=shown,
            scale=scale,
            enable_gqa=shared,
        )
        parts.append(z.masked_fill(blind, 0.0))  # [batch, head, rows, d_value]
    z = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return z.transpose(1, 2)  # [batch, query_pos, head, d_value]


def one_query(q: Queries, k: SharedKeys, v: SharedValues, scale: float, sight: Sight) -> Mixed:
    """Return z of the last position, which sees every real key."""
    batch, kv_heads, d_head = len(q), k.shape[2], q.shape[3]
    # The query heads that share a key head become rows of it.
    rows = q.reshape(batch, kv_heads, -1, d_head)  # [batch, kv_head, group, d_head]
    k, v = k.transpose(1, 2), v.transpose(1, 2)  # [batch, kv_head, key_pos, d_head]
    if sight.real is None:
        z = F.scaled_dot_product_attention(rows, k, v, scale=scale)
    else:
        ((_, _, shown, blind),) = sight.tiles(1, k.shape[2], q.device)
        z = F.scaled_dot_product_attention(rows, k, v, attn_mask=shown, scale=scale)
        z = z.masked_fill(blind, 0.0)
    return z.reshape(batch, 1, -1, v.shape[3])  # [batch, query_pos = 1, head, d_value]


def group_keys(
    k: SharedKeys, order: list[int] | None
) -> Float[Tensor, "batch key_pos grouped_head d_head"]:
    """Return key (or value) heads in the order that the kernels read; None: no reordering.

    Pruning leaves some key heads with fewer readers than others: each reader then gets its own.
    """
    return k if order is None else k[:, :, order]


def reading_order(kv_index: tuple[int, ...], kv_heads: int) -> list[int] | None:
    """Return which key head each query head reads, or None where head h reads h // group."""
    heads = len(kv_index)
    even = heads % max(kv_heads, 1) == 0
    if even and kv_index == tuple(head * kv_heads // heads for head in range(heads)):
        return None
    return list(kv_index)


def share_keys(k: SharedKeys, heads: int) -> Keys:
    """Repeat key (or value) heads, one for each query head."""
    return k if k.shape[2] == heads else k.repeat_interleave(heads // k.shape[2], dim=2)
