"""Llama: RMSNorm, SwiGLU, rotary positions, query heads that share keys."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lab.config import ModelConfig
from lab.families.family import ACTIVATIONS, Family, HFConfig, Rule, untied
from lab.families.shared import (
    attention_bias,
    even_heads,
    has_attention_bias,
    read_activation,
    read_base,
    read_rotary,
)

LAYER = "model.layers.{}."


def mlp_bias(config: HFConfig) -> bool:
    return bool(config["mlp_bias"])


def read_more(config: HFConfig) -> dict[str, Any]:
    rotary = read_rotary(config)
    if rotary.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            "partial_rotary_factor must be 1 in a llama model, got "
            f"{rotary['partial_rotary_factor']}; analyse it with "
            "TransformerBridge.boot_transformers"
        )
    return {
        "act_fn": read_activation("hidden_act", config["hidden_act"]),
        "rotary_base": read_base(rotary),
    }


def write_more(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the keys that need more than a table: biases that are all 0 are left out."""
    layers = range(config.n_layers)
    return {
        "hidden_act": config.act_fn,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "attention_bias": has_attention_bias(config, state),
        "mlp_bias": any(bool(state[f"blocks.{layer}.mlp.b_out"].any()) for layer in layers),
    }


def misfit(config: ModelConfig) -> str | None:
    """Return the values that Llama does not support."""
    if config.act_fn not in ACTIVATIONS:
        return f"act_fn must be one of {', '.join(ACTIVATIONS)}, got {config.act_fn!r}"
    if config.rotary_width != config.head_width:
        return f"rotary_dim must be d_head = {config.head_width}, got {config.rotary_width}"
    return even_heads(config)


def projection(letter: str, heads: str) -> tuple[Rule, Rule]:
    """Return the rules of W_Q, W_K or W_V and its bias."""
    theirs = f"{LAYER}self_attn.{letter.lower()}_proj."
    return (
        Rule(
            theirs + "weight",
            (f"attn.W_{letter}",),
            f"({heads} d_head) d_model -> {heads} d_model d_head",
        ),
        Rule(
            theirs + "bias",
            (f"attn.b_{letter}",),
            f"({heads} d_head) -> {heads} d_head",
            attention_bias,
        ),
    )


LLAMA = Family(
    name="llama",
    model_class="LlamaForCausalLM",
    prefix="model.",
    sizes={
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_key_value_heads": "num_key_value_heads",
        "d_head": "head_dim",
        "d_model": "hidden_size",
        "d_mlp": "intermediate_size",
        "d_vocab": "vocab_size",
        "n_ctx": "max_position_embeddings",
        "eps": "rms_norm_eps",
        "initializer_range": "initializer_range",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "gated_mlp": True,
        "parallel_attn_mlp": False,
    },
    allowed={},
    passed_over=r"rotary_emb\.inv_freq$",
    rules=(
        Rule("model.embed_tokens.weight", ("embed.W_E",)),
        Rule(LAYER + "input_layernorm.weight", ("ln1.w",)),
        *projection("Q", "head"),
        *projection("K", "kv_head"),
        *projection("V", "kv_head"),
        Rule(
            LAYER + "self_attn.o_proj.weight",
            ("attn.W_O",),
            "d_model (head d_head) -> head d_head d_model",
        ),
        Rule(LAYER + "self_attn.o_proj.bias", ("attn.b_O",), None, attention_bias),
        Rule(LAYER + "post_attention_layernorm.weight", ("ln2.w",)),
        Rule(LAYER + "mlp.gate_proj.weight", ("mlp.W_gate",), "d_mlp d_model -> d_model d_mlp"),
        Rule(LAYER + "mlp.up_proj.weight", ("mlp.W_in",), "d_mlp d_model -> d_model d_mlp"),
        Rule(LAYER + "mlp.down_proj.weight", ("mlp.W_out",), "d_model d_mlp -> d_mlp d_model"),
        Rule(LAYER + "mlp.gate_proj.bias", (), "d_mlp", mlp_bias),
        Rule(LAYER + "mlp.up_proj.bias", (), "d_mlp", mlp_bias),
        Rule(LAYER + "mlp.down_proj.bias", ("mlp.b_out",), None, mlp_bias),
        Rule("model.norm.weight", ("ln_final.w",)),
        Rule("lm_head.weight", ("unembed.W_U",), "d_vocab d_model -> d_model d_vocab", untied),
    ),
    read_more=read_more,
    write_more=write_more,
    misfit=misfit,
)
