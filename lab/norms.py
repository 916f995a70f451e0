"""Normalisation before attention, MLP and unembedding: LayerNorm, RMSNorm or none.

Each has a step-by-step path with TransformerLens's two hooks, and a fused path without hooks.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lab.config import ModelConfig
from lab.initial import draw_parameters
from lab.shapes import Resid
from lab.taps import listened, tap

Streams = Float[Tensor, "batch pos *head d_model"]
"""The residual stream, or a copy of it for each head."""


class ScaledNorm(nn.Module):
    """The parts that LayerNorm and RMSNorm share: the scale w, eps and the hooks."""

    def __init__(self, config: ModelConfig, width: int | None = None) -> None:
        """Start with w = 1, of d_model or another width."""
        super().__init__()
        self.eps = config.eps
        self.w = nn.Parameter(torch.ones(width or config.d_model))
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_parameters(self, 0.0, generator)


class LayerNorm(ScaledNorm):
    """Centre each vector, divide by its standard deviation, then scale and shift."""

    def __init__(self, config: ModelConfig, width: int | None = None) -> None:
        super().__init__(config, width)
        self.b = nn.Parameter(torch.zeros_like(self.w))

    def forward(self, residual: Resid, stepwise: bool = False) -> Resid:
        """Normalise over d_model, step by step if `stepwise` is set or there is a hook."""
        if not (stepwise or listened(self.hook_scale, self.hook_normalized)):
            return self.fused(residual)
        centred = residual - residual.mean(dim=-1, keepdim=True)
        variance = centred.pow(2).mean(dim=-1, keepdim=True)
        scale = tap(self.hook_scale, (variance + self.eps).sqrt())
        return tap(self.hook_normalized, centred / scale) * self.w + self.b

    def fused(self, residual: Streams) -> Tensor:
        """Normalise in one kernel, without hooks."""
        return F.layer_norm(residual, self.w.shape, self.w, self.b, self.eps)


class RMSNorm(ScaledNorm):
    """Divide each vector by its root mean square, then scale.

    Source: Zhang and Sennrich 2019.
    """

    def forward(self, residual: Resid, stepwise: bool = False) -> Resid:
        if not (stepwise or listened(self.hook_scale, self.hook_normalized)):
            return self.fused(residual)
        mean_square = residual.pow(2).mean(dim=-1, keepdim=True)
        scale = tap(self.hook_scale, (mean_square + self.eps).sqrt())
        return tap(self.hook_normalized, residual / scale) * self.w

    def fused(self, residual: Streams) -> Tensor:
        return F.rms_norm(residual, self.w.shape, self.w, self.eps)


class NoNorm(nn.Module):
    """No normalisation: returns the residual stream unchanged."""

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Do nothing: the module has no parameters."""

    def forward(self, residual: Resid, stepwise: bool = False) -> Resid:
        return residual

    def fused(self, residual: Streams) -> Tensor:
        return residual


Norm = LayerNorm | RMSNorm | NoNorm
NORMS: dict[str | None, type[LayerNorm] | type[RMSNorm]] = {"LN": LayerNorm, "RMS": RMSNorm}


def make_norm(config: ModelConfig) -> Norm:
    kind = NORMS.get(config.normalization_type)
    return NoNorm() if kind is None else kind(config)


def is_plain(norm: Norm) -> bool:
    """Return whether a norm has the scale 1 and the shift 0."""
    parameters = dict(norm.named_parameters())
    scaled = "w" in parameters and not bool((parameters["w"] == 1).all())
    return not scaled and not ("b" in parameters and bool(parameters["b"].any()))
