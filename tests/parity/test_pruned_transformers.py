"""A pruned model is the transformers model whose heads write nothing.

There a head is silenced by hand: its part of the output projection is set to zero. No code of
headlab has a part in that side.
"""

import pytest
import torch
import transformers
from torch import Tensor, nn

from lab.hooked_gpt import HookedGPT
from probes.pruning.removing import prune_heads

HEADS = ((0, 0), (0, 2), (0, 3), *((1, head) for head in range(6)), (2, 5))
"""A layer without heads; with 3 heads a key, a group that loses two and one that loses one."""
SIZES = {"vocab_size": 40, "bos_token_id": None, "eos_token_id": None}
GPT2 = {"n_layer": 3, "n_head": 6, "n_embd": 30, "n_positions": 16}
OTHERS = {"num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 16}
LLAMA = OTHERS | {"hidden_size": 36, "intermediate_size": 40}
MODELS = {
    "gpt2, odd d_head": ("GPT2LMHeadModel", transformers.GPT2Config, GPT2),
    "llama, 3 heads a key": (
        "LlamaForCausalLM",
        transformers.LlamaConfig,
        LLAMA | {"num_key_value_heads": 2, "attention_bias": True},
    ),
    "neox": (
        "GPTNeoXForCausalLM",
        transformers.GPTNeoXConfig,
        OTHERS | {"hidden_size": 48, "intermediate_size": 40, "rotary_pct": 0.25},
    ),
}


def theirs(name: str, dtype: torch.dtype) -> nn.Module:
    """Build a transformers model whose biases matter."""
    class_name, config_class, values = MODELS[name]
    config = config_class(**values, **SIZES, attn_implementation="eager")
    with torch.random.fork_rng():
        model = getattr(transformers, class_name)(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(parameter.mean().round() + scale * noise)
    return model


@torch.no_grad()
def silence(model: nn.Module, layer: int, head: int) -> None:
    """Set a head's part of the output projection to zero."""
    if isinstance(model, transformers.GPT2LMHeadModel):
        rows = model.transformer.h[layer].attn.c_proj.weight  # [input, output]
    elif isinstance(model, transformers.LlamaForCausalLM):
        rows = model.model.layers[layer].self_attn.o_proj.weight.T
    else:
        rows = model.gpt_neox.layers[layer].attention.dense.weight.T
    width = len(rows) // 6
    rows[head * width : (head + 1) * width] = 0.0


@pytest.mark.usefixtures("no_float32_casts")
@pytest.mark.parametrize("name", MODELS)
def test_removed_heads_write_nothing(name: str) -> None:
    tokens: Tensor = torch.randint(0, 40, (3, 12), generator=torch.Generator().manual_seed(4))
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        hf = theirs(name, dtype)
        pruned = prune_heads(HookedGPT.from_pretrained(hf), HEADS)
        with torch.no_grad():
            whole = hf(tokens).logits
            for layer, head in HEADS:
                silence(hf, layer, head)
            expected = hf(tokens).logits
        assert (whole - expected).abs().max() > 0.1
        largest = max(1.0, expected.abs().max().item())
        assert (pruned(tokens) - expected).abs().max() <= limit * largest
