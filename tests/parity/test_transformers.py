"""A HookedGPT has the logits and the hidden states of the transformers model it was made of."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from lab.config import ModelConfig
from lab.families.gpt_neox import GPT_NEOX
from lab.hooked_gpt import HookedGPT

GPT2 = {
    "n_layer": 3,
    "n_head": 3,
    "n_embd": 24,
    "vocab_size": 40,
    "n_positions": 16,
    "layer_norm_epsilon": 0.02,
}
LLAMA = {
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "hidden_size": 48,
    "intermediate_size": 40,
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "rope_theta": 500.0,
    "rms_norm_eps": 0.02,
}
NEOX = {
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "hidden_size": 24,
    "intermediate_size": 40,
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "rotary_emb_base": 500,
    "layer_norm_eps": 0.02,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2, untied": ("GPT2", GPT2 | {"tie_word_embeddings": False, "n_inner": 7}),
    "gpt2, exact gelu": ("GPT2", GPT2 | {"activation_function": "gelu", "n_positions": 12}),
    "llama, a key head a head": ("Llama", LLAMA | {"num_key_value_heads": 12}),
    "llama, 3 heads a key": ("Llama", LLAMA | {"num_key_value_heads": 4, "head_dim": 6}),
    "llama, 3 heads a key, tied": (
        "Llama",
        LLAMA | {"num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "llama, 4 heads a key, biases": (
        "Llama",
        LLAMA | {"num_key_value_heads": 3, "attention_bias": True},
    ),
    "neox": ("GPTNeoX", NEOX | {"rotary_pct": 0.25}),
    "neox, one after the other, tied": (
        "GPTNeoX",
        NEOX | {"use_parallel_residual": False, "tie_word_embeddings": True, "rotary_pct": 1.0},
    ),
    "neox, no biases": ("GPTNeoX", NEOX | {"attention_bias": False, "rotary_pct": 0.5}),
}


def theirs(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Build a transformers model whose biases and norms matter."""
    family, values = MODELS[name]
    config = getattr(transformers, f"{family}Config")(
        **values, bos_token_id=None, eos_token_id=None, attn_implementation="eager"
    )
    suffix = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    with torch.random.fork_rng():
        model = getattr(transformers, family + suffix)(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(parameter.mean().round() + scale * noise)
    return model


def padded() -> tuple[Tensor, Tensor]:
    """Three sequences: whole, padded on the left, padded on both sides."""
    tokens = torch.randint(0, 40, (3, 12), generator=torch.Generator().manual_seed(4))
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, :4] = 0
    mask[2, :2] = mask[2, 10:] = 0
    return tokens, mask


@pytest.mark.usefixtures("no_float32_casts")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_and_hidden_states_both_ways(name: str, dtype: torch.dtype, limit: float):
    hf = theirs(name, dtype)
    model = HookedGPT.from_pretrained(hf)
    assert model.W_E.dtype == dtype
    tokens, mask = padded()
    real = mask.bool()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    asked = {"attention_mask": mask, "position_ids": positions, "output_hidden_states": True}
    with torch.no_grad():
        expected = hf(tokens, **asked)
        logits, cache = model.run_with_cache(tokens, attention_mask=mask)
        final = model.ln_final(cache["resid_post", 2])
    states = [*(cache["resid_pre", layer] for layer in range(3)), final]
    assert expected.logits.std() > 0.5
    for got, wanted in zip(
        [logits, *states], [expected.logits, *expected.hidden_states], strict=True
    ):
        torch.testing.assert_close(got[real], wanted[real], atol=limit, rtol=limit)
    back = model.to_hf()
    assert type(back) is type(hf)
    with torch.no_grad():
        again = back(tokens, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(again[real], expected.logits[real], atol=limit, rtol=limit)


@pytest.mark.parametrize("name", MODELS)
def test_unpatched_transformers_agrees_in_float32(name: str):
    hf = theirs(name)
    tokens, _ = padded()
    with torch.no_grad():
        got, expected = HookedGPT.from_pretrained(hf)(tokens), hf(tokens).logits
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_gpt2_agrees_in_float64_as_it_is():
    hf = theirs("gpt2", torch.float64)
    tokens, _ = padded()
    with torch.no_grad():
        got, expected = HookedGPT.from_pretrained(hf)(tokens), hf(tokens).logits
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama, 4 heads a key, biases", "neox, no biases"])
def test_the_copy_is_a_copy(name: str):
    hf = theirs(name)
    before = {key: tensor.clone() for key, tensor in hf.state_dict().items()}
    model = HookedGPT.from_pretrained(hf)
    back = model.to_hf()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for one in (hf, back):
        for key, tensor in one.state_dict().items():
            assert torch.equal(tensor, before[key]), key


@pytest.mark.parametrize("name", ["gpt2", "llama, 3 heads a key", "neox"])
def test_no_global_draws(name: str):
    hf = theirs(name)
    state = torch.get_rng_state()
    HookedGPT.from_pretrained(hf).to_hf()
    assert torch.equal(torch.get_rng_state(), state)


TOY = {"eps": 0.02, "n_layers": 2, "n_heads": 3, "d_model": 24, "d_vocab": 11, "n_ctx": 12}
ROTARY = {"positional_embedding_type": "rotary"}
RMS = {"normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu", **ROTARY}
TOYS: dict[str, tuple[dict[str, Any], str]] = {
    "learned positions": ({}, "GPT2LMHeadModel"),
    "waves": ({"positional_embedding_type": "sinusoidal"}, "GPT2LMHeadModel"),
    "no positions": ({"positional_embedding_type": "none"}, "GPT2LMHeadModel"),
    "relu, tied": ({"act_fn": "relu", "tie_word_embeddings": True}, "GPT2LMHeadModel"),
    "attention only": ({"attn_only": True}, "GPT2LMHeadModel"),
    "rotary": ({**ROTARY, "d_mlp": 5}, "GPTNeoXForCausalLM"),
    "adjacent pairs": (
        {**ROTARY, "rotary_dim": 6, "rotary_adjacent_pairs": True, "parallel_attn_mlp": True},
        "GPTNeoXForCausalLM",
    ),
    "gated": (RMS, "LlamaForCausalLM"),
    "gated, attention only": ({**RMS, "attn_only": True}, "LlamaForCausalLM"),
    "gated, wide heads": ({**RMS, "d_head": 10, "n_key_value_heads": 1}, "LlamaForCausalLM"),
}


def toy(name: str, **changes: Any) -> HookedGPT:
    """Build a model of Headlab's own, all of whose biases matter."""
    config = ModelConfig(**{**TOY, "initializer_range": 0.3, **TOYS[name][0], **changes})
    model = HookedGPT(config).double().eval()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim < 3 and not key.endswith(("W_in", "W_out", "W_E", "W_U", "W_pos")):
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(0.3 * noise)
        if config.normalization_type == "RMS":
            model.unembed.b_U.zero_()
    return model


@pytest.mark.usefixtures("no_float32_casts")
@pytest.mark.parametrize("name", TOYS)
def test_own_models_become_transformers_models(name: str):
    model = toy(name)
    hf = model.to_hf()
    hf.set_attn_implementation("eager")
    assert type(hf).__name__ == TOYS[name][1]
    tokens = torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits, got = model(tokens), hf(tokens).logits
    assert logits.std() > 0.3
    torch.testing.assert_close(got, logits, atol=1e-9, rtol=0)
    again = HookedGPT.from_pretrained(hf)
    torch.testing.assert_close(again(tokens), logits, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("learned positions", {"d_vocab": 30}, "W_U must have full column rank .* d_vocab = 30"),
        ("learned positions", {"attention_dir": "bidirectional"}, "attention_dir must be causal"),
        ("learned positions", {"d_vocab_out": 5}, "d_vocab_out must be None"),
        ("learned positions", {"d_head": 4}, "d_head must be d_model / n_heads, got 4, to become"),
        ("learned positions", {"act_fn": "solu"}, "act_fn must be one of gelu, .* got 'solu'"),
        (
            "learned positions",
            {"normalization_type": None},
            "b_U must be 0 .* whose last norm has no bias to hold them",
        ),
        ("rotary", {"n_key_value_heads": 1}, "n_key_value_heads must be n_heads = 3, got 1"),
        ("gated", {"rotary_dim": 4}, "rotary_dim must be d_head = 8, got 4, to become a Llama"),
        ("gated", {"parallel_attn_mlp": True}, "parallel_attn_mlp must be False, got True"),
        ("gated", {"n_heads": 5, "d_head": 4}, "d_model must be a multiple of n_heads = 5"),
    ],
)
def test_what_no_transformers_model_computes(name: str, changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        toy(name, **changes).to_hf()


def test_half_precision_folds_no_bias():
    with pytest.raises(ValueError, match=r"b_U must be 0 .* in torch.bfloat16"):
        toy("learned positions").bfloat16().to_hf()


def test_a_bias_without_a_norm_to_hold_it():
    model = toy("gated")
    with torch.no_grad():
        model.unembed.b_U.fill_(1.0)
    with pytest.raises(ValueError, match=r"b_U must be 0 .* with RMS normalisation"):
        model.to_hf()


def test_a_pruned_model_stays_here():
    model = toy("learned positions", kept_heads=((0, 1), (2,)))
    with pytest.raises(ValueError, match="model must be unpruned to become one of transformers"):
        model.to_hf()


def test_the_share_of_rotary_dimensions_survives_rounding():
    for width in range(2, 50, 2):
        config = ModelConfig(**{**TOY, **ROTARY, "d_model": 147, "rotary_dim": width})
        hf = GPT_NEOX.hf_config(config, HookedGPT(config).state_dict())
        assert GPT_NEOX.model_config(hf).rotary_dim == width
