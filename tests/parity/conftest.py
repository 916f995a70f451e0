"""transformers without its casts to float32, as a reference for float64."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(self: Any, hidden_states: Tensor) -> Tensor:
    """LlamaRMSNorm.forward without the cast."""
    mean_square = hidden_states.pow(2).mean(-1, keepdim=True)
    return self.weight * hidden_states * torch.rsqrt(mean_square + self.variance_epsilon)


def rotary(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Give cosines and sines of the rotary embedding of Llama and GPT-NeoX, in x's precision."""
    width = 2 * len(self.inv_freq)
    exponents = torch.arange(0, width, 2, dtype=x.dtype) / width
    frequencies = self.config.rope_parameters["rope_theta"] ** -exponents
    angles = position_ids[..., None].to(x.dtype) * frequencies
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def eager_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """eager_attention_forward of Llama and GPT-NeoX without the cast in the softmax."""
    times = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    pattern = F.softmax(scores, dim=-1)
    return (pattern @ value).transpose(1, 2).contiguous(), pattern


@pytest.fixture
def no_float32_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch transformers' Llama and GPT-NeoX to compute norm, rotary and softmax as they come."""
    from transformers.models.gpt_neox import modeling_gpt_neox
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", rms_norm)
    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", rotary)
    monkeypatch.setattr(modeling_gpt_neox.GPTNeoXRotaryEmbedding, "forward", rotary)
    for module in (modeling_llama, modeling_gpt_neox):
        monkeypatch.setattr(module, "eager_attention_forward", eager_attention)
