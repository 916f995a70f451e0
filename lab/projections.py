"""Projections of the residual stream to q, k and v: x W + b for every head."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lab.shapes import Resid

FEW_POSITIONS = 16
"""Up to this many positions, concatenating the weights costs more time than it saves."""

Weights = Sequence[Float[Tensor, "_ d_model d_head"]]
"""One matrix for each head of each projection, say (W_Q, W_K, W_V)."""
Biases = Sequence[Float[Tensor, "_ d_head"]]
Vectors = Sequence[Float[Tensor, "batch pos _ d_head"]]
"""A vector for each position and head, of each projection."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Laid:
    """Several projections, concatenated: one matrix product computes all their heads."""

    weight: Float[Tensor, "width d_model"]
    bias: Float[Tensor, " width"]
    heads: tuple[int, ...]
    """Number of heads of each projection."""
    d_head: int

    def __call__(self, x: Resid) -> Vectors:
        """Return x W + b of each projection."""
        vectors = F.linear(x, self.weight, self.bias)  # [batch, pos, width]
        vectors = vectors.view(x.shape[0], x.shape[1], sum(self.heads), self.d_head)
        # Hooks may write into these views: autograd forbids that for split(), and slices would have
        # three gradients of the whole size instead of one.
        return vectors.unsafe_split_with_sizes(self.heads, dim=2)

    def detached(self) -> "Laid":
        """Return the same numbers without their gradients."""
        weight, bias = self.weight.detach(), self.bias.detach()
        return Laid(weight=weight, bias=bias, heads=self.heads, d_head=self.d_head)


def side_by_side(weights: Weights, biases: Biases) -> Laid:
    """Concatenate projections."""
    return Laid(
        weight=torch.cat([weight.mT for weight in weights]).flatten(0, 1),
        bias=torch.cat([*biases]).flatten(),
        heads=tuple(len(weight) for weight in weights),
        d_head=weights[0].shape[-1],
    )


def project(
    x: Resid | Float[Tensor, "batch pos head d_model"], weights: Weights, biases: Biases
) -> Vectors:
    """Return x W + b of several projections of the same input.

    Args:
        x: The normalised stream, or one input for each head.
        weights: Weights of each projection.
        biases: Biases of each projection.
    """
    if x.ndim == 4:
        pattern = "batch pos head d_model, head d_model d_head -> batch pos head d_head"
        each = zip(weights, biases, strict=True)
        return [einsum(x, weight, pattern) + bias for weight, bias in each]
    if x.shape[0] * x.shape[1] > FEW_POSITIONS:
        return side_by_side(weights, biases)(x)
    rows = x.flatten(0, 1)  # [batch * pos, d_model]; the weights are not copied
    vectors = [
        torch.baddbmm(bias.unsqueeze(1), rows.expand(len(weight), -1, -1), weight)
        for weight, bias in zip(weights, biases, strict=True)
    ]  # [head, batch * pos, d_head]
    return [vector.transpose(0, 1).unflatten(0, x.shape[:2]) for vector in vectors]
