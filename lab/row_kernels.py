"""Log-sum-exp and mean key of each softmax row, computed without the attention matrix.

This is the one module that calls PyTorch's internal attention operators: the public one hides the
log-sum-exp that they compute. Their known limits, each covered by a test:

- The CPU operator ends the process (SIGFPE) when there are no heads, and rejects bool masks.
- Their causal mask is aligned top-left, which is wrong with more keys than queries.
- lse of a row that sees no key is 0 or garbage: such rows are discarded by their place, not by
  their value.
- k and v must have one head size: here k takes the place of v.
- Half precision gives entropies an error of 0.01 nats, and CUDA's flash operator supports nothing
  wider: reads are in float32 or float64.
- lse carries no gradient: differentiate the tiled form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lab.attention import Mixed, Queries, SharedKeys, SharedValues, Sight, share_keys
from lab.shapes import RowValue

HeadsFirstRows = Float[Tensor, "batch head rows d_head"]
HeadsFirstKeys = Float[Tensor, "batch kv_head key_pos d_head"]
LogSumExp = Float[Tensor, "batch head rows"]
Shown = Bool[Tensor, "#batch 1 rows key_pos"]
Kernel = Callable[
    [HeadsFirstRows, HeadsFirstKeys, float, bool, Shown | None], tuple[LogSumExp, HeadsFirstRows]
]
"""(q, k, scale, causal, shown) to (lse, mean key); causal only without shown, and square."""

NARROW = 32
"""Widest head for which one call of twice the width is cheaper than two calls."""

WIDE_NUMBERS = 2**22
"""Most numbers in a tensor of that call: 16 MB in float32."""

SCORES_AT_ONCE = 2**24
"""Most scores that are built at once where no kernel applies: 64 MB in float32."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxRows:
    """One number and one vector for each query row; NaN in rows that see no key."""

    lse: RowValue
    """The natural log of the row's softmax denominator."""
    mean_key: Queries
    """The mean of the keys under the row's probabilities."""


def softmax_rows(
    q: Queries,
    k: SharedKeys,
    *,
    scale: float,
    sight: Sight,
    first_key: int = 0,
    kernel: Kernel | None = None,
) -> SoftmaxRows:
    """Return lse and mean key of every row in O(n) memory.

    Args:
        q: Queries.
        k: Keys, which several query heads may share.
        scale: Factor of the scores.
        sight: Which keys a query sees; the last query has the last key's position.
        first_key: Number of unpadded keys to hide at the start of each sequence.
        kernel: Computes a block of rows; None: the fastest for device and dtype.
    """
    kernel = kernel or kernel_for(q)
    n_query, n_key = q.shape[1], k.shape[1]
    q, k = q.transpose(1, 2), k.transpose(1, 2)  # [batch, head, pos, d_head]
    if 0 in q.shape or n_key <= first_key:
        lse, mean_key = q.new_full(q.shape[:3], math.nan), torch.full_like(q, math.nan)
    elif sight.plain(n_query, n_key):
        # Rows before the first remaining key see no key; without them the mask is still square.
        blind = first_key if sight.causal and n_query > 1 else 0
        causal = sight.causal and n_query > 1
        # lse is [batch, head, query_pos], mean_key [batch, head, query_pos, d_head].
        lse, mean_key = kernel(q[:, :, blind:], k[:, :, first_key:], scale, causal, None)
        lse = F.pad(lse, (blind, 0), value=math.nan)
        mean_key = F.pad(mean_key, (0, 0, blind, 0), value=math.nan)
    else:
        lse, mean_key = q.new_empty(q.shape[:3]), torch.empty_like(q)
        for rows, stop, shown, blind in sight.tiles(n_query, n_key, q.device):
            if first_key:
                left = sight.keys_after(first_key, n_key, q.device)[:, None, None, :stop]
                shown = shown & ~blind & left  # [batch or 1, 1, rows, key_pos]
                blind = ~shown.any(dim=-1, keepdim=True)
                shown = shown | blind
            found = kernel(q[:, :, rows], k[:, :, :stop], scale, False, shown)
            lse[:, :, rows] = found[0].masked_fill(blind.squeeze(-1), math.nan)
            mean_key[:, :, rows] = found[1].masked_fill(blind, math.nan)
    return SoftmaxRows(lse=lse, mean_key=mean_key.transpose(1, 2))


def one_call_gives_both(q: Queries, k: SharedKeys, v: SharedValues, sight: Sight) -> bool:
    """Return whether `rows_and_values` supports these tensors and is cheaper than two calls."""
    return (
        q.device.type == "cpu"
        and q.dtype == torch.float32
        and 0 not in q.shape
        and q.shape[3] == v.shape[3] <= NARROW
        and k.shape[2] == q.shape[2]
        and q.shape[1] > 1
        and sight.plain(q.shape[1], k.shape[1])
    )


def rows_and_values(
    q: Queries, k: SharedKeys, v: SharedValues, *, scale: float, causal: bool
) -> tuple[SoftmaxRows, Mixed]:
    """Return what `softmax_rows` and `fused_attention` return, from one kernel call.

    v is replaced by values and keys, concatenated; q and k are padded with zeros to the same width,
    which changes no score. This takes three quarters of the work of two calls, and one softmax.
    """
    batch, n_pos, heads, width = q.shape
    at_once = max(1, WIDE_NUMBERS // (2 * batch * n_pos * width))
    lse = q.new_empty(batch, heads, n_pos)
    mixed = q.new_empty(batch, n_pos, heads, 2 * width)
    for start in range(0, heads, at_once):
        some = slice(start, start + at_once)
        # wide_q, wide_k and both: [batch, head, pos, 2 * d_head]
        wide_q, wide_k = (F.pad(t[:, :, some], (0, width)).transpose(1, 2) for t in (q, k))
        both = torch.cat([v[:, :, some], k[:, :, some]], dim=-1).transpose(1, 2)
        found, lse[:, some] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            wide_q, wide_k, both, is_causal=causal, scale=scale
        )
        mixed[:, :, some] = found.transpose(1, 2)  # [batch, pos, head, 2 * d_head]
    return SoftmaxRows(lse=lse, mean_key=mixed[..., width:]), mixed[..., :width]


def kernel_for(q: Tensor) -> Kernel:
    """Return the fastest kernel for this device and dtype."""
    if q.device.type == "cpu":
        return cpu_kernel
    if q.device.type == "cuda" and q.dtype == torch.float32:
        return cuda_kernel
    return tiled_kernel


def cpu_kernel(
    q: HeadsFirstRows, k: HeadsFirstKeys, scale: float, causal: bool, shown: Shown | None
) -> tuple[LogSumExp, HeadsFirstRows]:
    """Return lse and mean key from the CPU's flash kernel; heads share keys without a copy."""
    bias = None
    if shown is not None:
        bias = torch.zeros(shown.shape, dtype=q.dtype).masked_fill_(~shown, -math.inf)
    mean_key, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, k, is_causal=causal, attn_mask=bias, scale=scale
    )
    return lse.to(q.dtype), mean_key


def cuda_kernel(
    q: HeadsFirstRows, k: HeadsFirstKeys, scale: float, causal: bool, shown: Shown | None
) -> tuple[LogSumExp, HeadsFirstRows]:
    """Return lse and mean key from CUDA's memory-efficient kernel.

    It needs one key head for each query head, so the members of a group run in turn, without a
    copy. The rows of a bias must be aligned to 16 numbers; it pads the rows of lse to 32.
    """
    batch, heads, n_rows, _ = q.shape
    kv_heads, n_key = k.shape[1:3]
    bias = None
    if shown is not None:
        wide = q.new_zeros(shown.shape[0], 1, n_rows, -(-n_key // 16) * 16)
        bias = wide[..., :n_key].masked_fill_(~shown, -math.inf)
        bias = bias.expand(batch, kv_heads, n_rows, n_key)  # rows keep their aligned stride
    lse, mean_key = q.new_empty(batch, heads, n_rows), torch.empty_like(q)
    group = heads // kv_heads
    for member in range(group):
        some = slice(member, None, group)
        out, sums, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q[:, some], k, k, bias, True, 0.0, causal, scale=scale
        )
        mean_key[:, some], lse[:, some] = out, sums[..., :n_rows]
    return lse, mean_key


def tiled_kernel(
    q: HeadsFirstRows, k: HeadsFirstKeys, scale: float, causal: bool, shown: Shown | None
) -> tuple[LogSumExp, HeadsFirstRows]:
    """Return lse and mean key from a few rows of scores at a time, on any device."""
    k = share_keys(k.transpose(1, 2), q.shape[1]).transpose(1, 2)
    n_rows, n_key = q.shape[2], k.shape[2]
    step = max(1, SCORES_AT_ONCE // (q.shape[0] * q.shape[1] * n_key))
    parts = []
    for start in range(0, n_rows, step):
        rows = slice(start, min(start + step, n_rows))
        stop = rows.stop if causal else n_key
        scores = (q[:, :, rows] * scale) @ k[:, :, :stop].mT  # [batch, head, rows, key_pos]
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
            scores = scores.masked_fill(later.triu(start + 1), -math.inf)
        if shown is not None:
            scores = scores.masked_fill(~shown[:, :, rows], -math.inf)
        # lse [batch, head, rows] and mean key [batch, head, rows, d_head]
        parts.append((scores.logsumexp(dim=-1), scores.softmax(dim=-1) @ k[:, :, :stop]))
    lse, mean_key = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    return lse, mean_key
