"""GPT-2: learned positions, LayerNorm, tied embeddings; matrices are stored input first."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lab.config import ModelConfig
from lab.families.family import ACTIVATIONS, Family, HFConfig, Rule, untied
from lab.families.shared import even_heads, own_heads, read_activation

LAYER = "transformer.h.{}."


def read_more(config: HFConfig) -> dict[str, Any]:
    return {
        "act_fn": read_activation("activation_function", config["activation_function"]),
        "d_mlp": config["n_inner"],
    }


def write_more(config: ModelConfig, _: Mapping[str, Tensor]) -> dict[str, Any]:
    return {"activation_function": config.act_fn, "n_inner": config.mlp_width}


def misfit(config: ModelConfig) -> str | None:
    """Return the sizes that GPT-2 does not support."""
    if config.act_fn not in ACTIVATIONS:
        return f"act_fn must be one of {', '.join(ACTIVATIONS)}, got {config.act_fn!r}"
    return own_heads(config) or even_heads(config)


GPT2 = Family(
    name="gpt2",
    model_class="GPT2LMHeadModel",
    prefix="transformer.",
    sizes={
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "d_model": "n_embd",
        "d_vocab": "vocab_size",
        "n_ctx": "n_positions",
        "eps": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    fixed={
        "normalization_type": "LN",
        "positional_embedding_type": "standard",
        "gated_mlp": False,
        "parallel_attn_mlp": False,
    },
    allowed={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    passed_over=r"\.attn\.(bias|masked_bias)$",
    rules=(
        Rule("transformer.wte.weight", ("embed.W_E",)),
        Rule("transformer.wpe.weight", ("pos_embed.W_pos",)),
        Rule(LAYER + "ln_1.weight", ("ln1.w",)),
        Rule(LAYER + "ln_1.bias", ("ln1.b",)),
        Rule(
            LAYER + "attn.c_attn.weight",
            ("attn.W_Q", "attn.W_K", "attn.W_V"),
            "d_model (part head d_head) -> part head d_model d_head",
        ),
        Rule(
            LAYER + "attn.c_attn.bias",
            ("attn.b_Q", "attn.b_K", "attn.b_V"),
            "(part head d_head) -> part head d_head",
        ),
        Rule(
            LAYER + "attn.c_proj.weight",
            ("attn.W_O",),
            "(head d_head) d_model -> head d_head d_model",
        ),
        Rule(LAYER + "attn.c_proj.bias", ("attn.b_O",)),
        Rule(LAYER + "ln_2.weight", ("ln2.w",)),
        Rule(LAYER + "ln_2.bias", ("ln2.b",)),
        Rule(LAYER + "mlp.c_fc.weight", ("mlp.W_in",)),
        Rule(LAYER + "mlp.c_fc.bias", ("mlp.b_in",)),
        Rule(LAYER + "mlp.c_proj.weight", ("mlp.W_out",)),
        Rule(LAYER + "mlp.c_proj.bias", ("mlp.b_out",)),
        Rule("transformer.ln_f.weight", ("ln_final.w",)),
        Rule("transformer.ln_f.bias", ("ln_final.b",)),
        Rule("lm_head.weight", ("unembed.W_U",), "d_vocab d_model -> d_model d_vocab", untied),
    ),
    read_more=read_more,
    write_more=write_more,
    misfit=misfit,
)
