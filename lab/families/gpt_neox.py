"""GPT-NeoX (Pythia): rotary positions on part of each head, parallel attention and MLP."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lab.config import ModelConfig
from lab.families.family import ACTIVATIONS, Family, HFConfig, Rule, untied
from lab.families.shared import (
    attention_bias,
    has_attention_bias,
    own_heads,
    read_activation,
    read_base,
    read_rotary,
)

LAYER = "gpt_neox.layers.{}."


def read_more(config: HFConfig) -> dict[str, Any]:
    rotary = read_rotary(config)
    d_head = config["hidden_size"] // config["num_attention_heads"]
    return {
        "act_fn": read_activation("hidden_act", config["hidden_act"]),
        "rotary_base": read_base(rotary),
        "rotary_dim": int(d_head * rotary.get("partial_rotary_factor", 1.0)),
    }


def write_more(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
    share = config.rotary_width / config.head_width
    if int(config.head_width * share) < config.rotary_width:  # the product was rounded down
        share = math.nextafter(share, 1.0)
    rotary = {
        "rope_type": "default",
        "rope_theta": config.rotary_base,
        "partial_rotary_factor": share,
    }
    return {
        "hidden_act": config.act_fn,
        "rope_parameters": rotary,
        "attention_bias": has_attention_bias(config, state),
    }


def misfit(config: ModelConfig) -> str | None:
    """Return the values that GPT-NeoX does not support."""
    if config.act_fn not in ACTIVATIONS:
        return f"act_fn must be one of {', '.join(ACTIVATIONS)}, got {config.act_fn!r}"
    return own_heads(config)


GPT_NEOX = Family(
    name="gpt_neox",
    model_class="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    sizes={
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "d_model": "hidden_size",
        "d_mlp": "intermediate_size",
        "d_vocab": "vocab_size",
        "n_ctx": "max_position_embeddings",
        "eps": "layer_norm_eps",
        "initializer_range": "initializer_range",
        "tie_word_embeddings": "tie_word_embeddings",
        "parallel_attn_mlp": "use_parallel_residual",
    },
    fixed={
        "normalization_type": "LN",
        "positional_embedding_type": "rotary",
        "gated_mlp": False,
    },
    allowed={},
    aliases={"embed_out.weight": "lm_head.weight"},
    passed_over=r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$",
    rules=(
        Rule("gpt_neox.embed_in.weight", ("embed.W_E",)),
        Rule(LAYER + "input_layernorm.weight", ("ln1.w",)),
        Rule(LAYER + "input_layernorm.bias", ("ln1.b",)),
        Rule(
            LAYER + "attention.query_key_value.weight",
            ("attn.W_Q", "attn.W_K", "attn.W_V"),
            "(head part d_head) d_model -> part head d_model d_head",
        ),
        Rule(
            LAYER + "attention.query_key_value.bias",
            ("attn.b_Q", "attn.b_K", "attn.b_V"),
            "(head part d_head) -> part head d_head",
            attention_bias,
        ),
        Rule(
            LAYER + "attention.dense.weight",
            ("attn.W_O",),
            "d_model (head d_head) -> head d_head d_model",
        ),
        Rule(LAYER + "attention.dense.bias", ("attn.b_O",), None, attention_bias),
        Rule(LAYER + "post_attention_layernorm.weight", ("ln2.w",)),
        Rule(LAYER + "post_attention_layernorm.bias", ("ln2.b",)),
        Rule(LAYER + "mlp.dense_h_to_4h.weight", ("mlp.W_in",), "d_mlp d_model -> d_model d_mlp"),
        Rule(LAYER + "mlp.dense_h_to_4h.bias", ("mlp.b_in",)),
        Rule(LAYER + "mlp.dense_4h_to_h.weight", ("mlp.W_out",), "d_model d_mlp -> d_mlp d_model"),
        Rule(LAYER + "mlp.dense_4h_to_h.bias", ("mlp.b_out",)),
        Rule("gpt_neox.final_layer_norm.weight", ("ln_final.w",)),
        Rule("gpt_neox.final_layer_norm.bias", ("ln_final.b",)),
        Rule("lm_head.weight", ("unembed.W_U",), "d_vocab d_model -> d_model d_vocab", untied),
    ),
    read_more=read_more,
    write_more=write_more,
    misfit=misfit,
)
