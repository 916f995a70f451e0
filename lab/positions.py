"""Position ids under padding, sinusoidal embeddings and rotary embeddings."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lab.config import ModelConfig
from lab.shapes import HeadVectors

Positions = Int[Tensor, " pos"] | Int[Tensor, "batch pos"]
"""Positions of the tokens of this call: shared by all sequences, or one row for each."""
Turns = tuple[Float[Tensor, "*batch pos 1 pair"], Float[Tensor, "*batch pos 1 pair"]]
"""Cosine and sine of the rotation angle of each dimension pair."""


def token_positions(
    mask: Bool[Tensor, "batch key_pos"] | None,
    first_pos: int,
    n_pos: int,
    device: torch.device,
) -> Positions:
    """Return the position of each token, not counting the padding before it.

    Args:
        mask: True at unpadded tokens, over all positions so far; None: no padding.
        first_pos: Positions that were computed before this call.
        n_pos: Tokens of this call.
        device: Where the result goes.
    """
    if mask is None:
        return torch.arange(first_pos, first_pos + n_pos, device=device)
    return (mask.cumsum(dim=1) - 1).clamp(min=0)[:, first_pos:]  # [batch, pos]


def sinusoidal_positions(n_ctx: int, d_model: int) -> Float[Tensor, "pos d_model"]:
    """Return sin(pos / 10000^(2i / d_model)) at 2i and the cosine at 2i + 1.

    Source: Vaswani et al. 2017, section 3.5.
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.outer(torch.arange(n_ctx, dtype=torch.float64), 10_000.0 ** -(even / d_model))
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)  # [pos, pair, 2]
    return rearrange(waves, "pos pair two -> pos (pair two)")


def turns_of(config: ModelConfig, positions: Positions, dtype: torch.dtype) -> Turns | None:
    """Return the rotary turns of a model at some positions; None: positions are not rotary."""
    if not config.rotary_width:
        return None
    return rotary_turns(positions, config.rotary_base, config.rotary_width, dtype)


def rotary_turns(positions: Positions, base: float, width: int, dtype: torch.dtype) -> Turns:
    """Return cosine and sine of position * base^(-2i / width) for each pair i of dimensions.

    They are computed in float64, once for all layers of a forward pass.

    Source: Su et al. 2021 (RoPE).
    """
    half = width // 2
    exponents = torch.arange(half, device=positions.device, dtype=torch.float64) / half
    angles = positions.double().unsqueeze(-1) * base**-exponents  # [*batch, pos, pair]
    angles = angles.unsqueeze(-2)  # [*batch, pos, head = 1, pair]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def turned(x: HeadVectors, turns: Turns, adjacent: bool = False) -> HeadVectors:
    """Rotate the dimension pairs (i, i + width/2) of q or k; keep dimensions past width.

    Source: Su et al. 2021 (RoPE), in the half-split order of GPT-NeoX and Llama.

    Args:
        x: q or k.
        turns: From rotary_turns, for the positions of x.
        adjacent: Rotate the pairs (2i, 2i + 1) instead, as the paper and GPT-J do.
    """
    cos, sin = (turn.to(x.dtype) for turn in turns)
    width = 2 * cos.shape[-1]
    if adjacent:
        even, odd = x[..., :width:2], x[..., 1:width:2]
        # pairs: [batch, pos, head, pair, 2]
        pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
        return torch.cat([pairs.flatten(-2), x[..., width:]], dim=-1)  # [batch, pos, head, d_head]
    first, second, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
