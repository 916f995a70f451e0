"""The MLP of a block: two linear maps with a non-linearity between, plain or gated."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lab.config import ModelConfig
from lab.initial import draw_parameters
from lab.norms import LayerNorm
from lab.shapes import Resid
from lab.taps import tap


def solu(pre: Tensor) -> Tensor:
    """Return x * softmax(x) over the hidden units.

    Source: Elhage et al. 2022, Softmax Linear Units; solu_ln is followed by a LayerNorm.
    """
    return pre * F.softmax(pre, dim=-1)


def gelu_new(pre: Tensor) -> Tensor:
    """Return the tanh approximation of GELU; a function, because lambdas cannot be pickled."""
    return F.gelu(pre, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_new,
    "relu": F.relu,
    "silu": F.silu,
    "solu": solu,
    "solu_ln": solu,
}


class MLP(nn.Module):
    """Two linear maps with a non-linearity between, applied at each position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.act_fn]
        self.initial_std = config.initial_std
        self.W_in = nn.Parameter(torch.empty(config.d_model, config.mlp_width))
        self.b_in = nn.Parameter(torch.zeros(config.mlp_width))
        self.W_out = nn.Parameter(torch.empty(config.mlp_width, config.d_model))
        self.b_out = nn.Parameter(torch.zeros(config.d_model))
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()
        self.normalises = config.act_fn == "solu_ln"
        if self.normalises:
            self.hook_mid = HookPoint()
            self.ln = LayerNorm(config, config.mlp_width)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_parameters(self, self.initial_std, generator)

    def forward(self, normalised: Resid, stepwise: bool = False) -> Resid:
        """Return the MLP output."""
        pre = tap(self.hook_pre, F.linear(normalised, self.W_in.T, self.b_in))
        post = self.act(pre)
        if self.normalises:
            post = self.ln(tap(self.hook_mid, post), stepwise)
        post = tap(self.hook_post, post)
        return F.linear(post, self.W_out.T, self.b_out)


class GatedMLP(nn.Module):
    """An MLP whose hidden units are multiplied by a gate: act(x W_gate) * (x W_in).

    Source: Shazeer 2020 (with silu: SwiGLU). hook_pre is the gate before the non-linearity,
    hook_pre_linear what it multiplies, as in TransformerLens.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.act_fn]
        self.initial_std = config.initial_std
        self.W_gate = nn.Parameter(torch.empty(config.d_model, config.mlp_width))
        self.W_in = nn.Parameter(torch.empty(config.d_model, config.mlp_width))
        self.b_in = nn.Parameter(torch.zeros(config.mlp_width))
        self.W_out = nn.Parameter(torch.empty(config.mlp_width, config.d_model))
        self.b_out = nn.Parameter(torch.zeros(config.d_model))
        self.hook_pre, self.hook_pre_linear = HookPoint(), HookPoint()
        self.hook_post = HookPoint()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_parameters(self, self.initial_std, generator)

    def forward(self, normalised: Resid, stepwise: bool = False) -> Resid:
        """Return the MLP output."""
        gate = tap(self.hook_pre, F.linear(normalised, self.W_gate.T))
        linear = tap(self.hook_pre_linear, F.linear(normalised, self.W_in.T))
        post = tap(self.hook_post, self.act(gate) * linear + self.b_in)
        return F.linear(post, self.W_out.T, self.b_out)
