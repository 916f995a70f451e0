"""Small models of transformers in which every weight matters, and whether ours says the same."""

import copy
from typing import Any

import torch
import transformers
from torch import Tensor

from lab.hooked_gpt import HookedGPT

SHAPE = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 48,
    "max_position_embeddings": 16,
    "bos_token_id": None,
    "eos_token_id": None,
}


GPT2 = {
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "vocab_size": 48,
    "n_positions": 16,
    "layer_norm_epsilon": 0.02,
}


def llama(**changes: Any) -> Any:
    """Build a small Llama whose norms matter; the global generator is put back."""
    config = transformers.LlamaConfig(
        **{**SHAPE, "num_key_value_heads": 2, "rms_norm_eps": 0.02, **changes}
    )
    return stirred(transformers.LlamaForCausalLM, config)


def stirred(model_class: Any, config: Any) -> Any:
    with torch.random.fork_rng():
        model = model_class(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def some_tokens() -> Tensor:
    return torch.randint(0, 48, (2, 9), generator=torch.Generator().manual_seed(2))


def same_logits(model: HookedGPT, hf: Any) -> None:
    """Compare in float64: logits of 20 round to 1e-5 in float32, here more, there less.

    transformers keeps the angles of rotary positions in float32, which leaves some 1e-6.
    """
    model, hf = copy.deepcopy(model).double(), copy.deepcopy(hf).double()
    with torch.no_grad():
        got, expected = model(some_tokens()), hf(some_tokens()).logits
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def neox(**changes: Any) -> Any:
    config = transformers.GPTNeoXConfig(
        **{**SHAPE, "rotary_pct": 0.5, "layer_norm_eps": 0.02, **changes}
    )
    return stirred(transformers.GPTNeoXForCausalLM, config)
