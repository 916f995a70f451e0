"""HookedTransformerConfig, the config of TransformerLens 2.x and 3.x, as a ModelConfig.

Every field of it is in one of the tables below: kept, translated, rejected because a HookedGPT
does not support it, or ignored because it changes no result.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.checks import is_whole, require, require_choice, require_number, require_whole
from lab.config import LARGEST_SIZE, ModelConfig
from lab.naming import quoted, unknown_name

SAME = (
    "n_layers",
    "n_heads",
    "d_model",
    "d_head",
    "d_mlp",
    "d_vocab",
    "d_vocab_out",
    "n_ctx",
    "eps",
    "attention_dir",
    "attn_only",
    "gated_mlp",
    "parallel_attn_mlp",
    "n_key_value_heads",
    "rotary_base",
    "rotary_dim",
    "rotary_adjacent_pairs",
)
"""Fields that mean the same in a ModelConfig."""
TRANSLATED = ("act_fn", "normalization_type", "positional_embedding_type")
REQUIRED = ("n_layers", "d_model", "d_head", "n_ctx")
FLAGS = ("use_attn_result", "use_split_qkv_input", "use_attn_in", "use_hook_mlp_in")
"""Flags that enable hooks; like default_prepend_bos they go to the model's cfg."""
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",  # one formula, written three ways
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "solu": "solu",
    "solu_ln": "solu_ln",
}
NORMS = {"LN": "LN", "LNPre": "LN", "RMS": "RMS", "RMSPre": "RMS"}
"""LNPre and RMSPre have w = 1 and b = 0: their weights were folded."""
KEEP = "run this model with transformer-lens 3.9"
PRETRAINED = "load the original model with TransformerBridge.boot_transformers"
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "use_attn_scale": (
        (True,),
        "multiply W_Q and b_Q by sqrt(d_head), then set it to True",
    ),
    "scale_attn_by_inverse_layer_idx": (
        (False,),
        "divide W_Q and b_Q of layer l by l + 1, then set it to False",
    ),
    "final_rms": ((False,), KEEP),
    "use_local_attn": ((False,), KEEP),
    "num_experts": ((None,), PRETRAINED),
    "load_in_4bit": ((False,), "save the model without quantisation"),
    "post_embedding_ln": ((False,), PRETRAINED),
    "use_normalization_before_and_after": ((False,), PRETRAINED),
    "use_qk_norm": ((False,), PRETRAINED),
    "clip_qkv": ((None,), PRETRAINED),
    "use_attention_sinks": ((False,), PRETRAINED),
    "use_logn_attn": ((False,), PRETRAINED),
    "attn_scores_soft_cap": ((-1, 0, None), PRETRAINED),
    "output_logits_soft_cap": ((-1, 0, None), PRETRAINED),
    "use_dynamic_ntk_rope": ((False,), PRETRAINED),
    "use_NTK_by_parts_rope": ((False,), PRETRAINED),
    "use_yarn_rope": ((False,), PRETRAINED),
    "rotary_scaling_factor": ((1,), PRETRAINED),
    "rotary_base_local": ((None,), PRETRAINED),
    "relative_attention_num_buckets": ((None,), PRETRAINED),
}
"""Fields that a HookedGPT does not support: the values that switch them off, and a remedy."""
POST_NORM = ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoeForCausalLM")
"""Values of original_architecture that changed what HookedTransformer computed."""
IGNORED = (
    # Device, initialisation and name of the old model.
    "device", "n_devices", "dtype", "seed", "init_mode", "init_weights", "initializer_range",
    "model_name", "original_architecture", "from_checkpoint", "checkpoint_index",
    "checkpoint_label_type", "checkpoint_value", "n_params", "trust_remote_code",
    "layer_norm_folding", "uses_rms_norm", "ungroup_grouped_query_attention", "use_hook_tokens",
    "tie_word_embeddings",  # the state dict holds both matrices, and they may differ
    # Tokenizers.
    "tokenizer_name", "tokenizer_prepends_bos", "decoder_start_token_id",
    # Details of settings that REFUSED requires to be off.
    "attn_scale", "window_size", "attn_types", "experts_per_token", "norm_topk_prob",
    "quantization_method", "train_seq_length", "relative_attention_max_distance",
    "NTK_by_parts_low_freq_factor", "NTK_by_parts_high_freq_factor", "NTK_by_parts_factor",
    "NTK_original_ctx_len", "yarn_factor", "yarn_attention_factor", "yarn_beta_fast",
    "yarn_beta_slow", "yarn_original_max_position_embeddings", "yarn_truncate",
    "yarn_global_attn_only",
)  # fmt: skip
"""Fields that do not change the results."""


def config_fields(cfg: Any) -> dict[str, Any]:
    """Return the fields of an old config, after checking that all are known."""
    if isinstance(cfg, str | Path):
        cfg = read_json(Path(cfg))
    elif not isinstance(cfg, Mapping):
        cfg = getattr(cfg, "__dict__", cfg)
    if not isinstance(cfg, Mapping):
        raise ValueError(
            "cfg must be a dict, a JSON file or an object with the fields of "
            f"HookedTransformerConfig, got {type(cfg).__name__}"
        )
    known = (*SAME, *TRANSLATED, *FLAGS, "default_prepend_bos", *REFUSED, *IGNORED)
    for name in cfg:
        if name not in known:
            raise ValueError(unknown_name("HookedTransformerConfig field", str(name), known))
    for name in REQUIRED:
        if name not in cfg:
            raise ValueError(
                f"cfg must have the field {name!r}, which has no default in "
                f"HookedTransformerConfig, got {quoted(sorted(cfg))}"
            )
    return dict(cfg)


def read_json(path: Path) -> Any:
    require(not path.is_dir(), "cfg", "a file, not a folder", str(path))
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(
            f"cfg must be a JSON file, got {str(path)!r}; write one with "
            "json.dump(cfg.to_dict(), file, default=str)"
        ) from None


def folded_norms(fields: Mapping[str, Any]) -> bool:
    """Return whether the norms' weights were folded into the weights that follow."""
    return str(fields.get("normalization_type", "LN")).endswith("Pre")


def translate_config(fields: Mapping[str, Any], d_vocab: int) -> ModelConfig:
    """Return the ModelConfig of an old config.

    Args:
        fields: The old config, by its own names.
        d_vocab: Token ids that the embedding has vectors for, where the old config leaves it open
            because its tokenizer knew.

    Raises:
        ValueError: A HookedGPT does not support a field's value.
    """
    check_supported(fields)
    values = {name: fields[name] for name in SAME if fields.get(name) is not None}
    if values.get("n_heads", -1) == -1:
        values["n_heads"] = values["d_model"] // values["d_head"]
    if values.get("d_vocab", -1) == -1:
        values["d_vocab"] = d_vocab
    if values.get("d_vocab_out", -1) in (-1, values["d_vocab"]):
        values["d_vocab_out"] = None
    for name in ("rotary_base", "eps"):
        if is_whole(values.get(name)):  # 10000 for 10000.0
            require_number(name, values[name], 0.0)
            values[name] = float(values[name])
    norm = fields.get("normalization_type", "LN")
    if norm is not None:
        require_choice("normalization_type", norm, tuple(NORMS))
        norm = NORMS[norm]
    act_fn = fields.get("act_fn") or "relu"
    require_choice("act_fn", act_fn, tuple(ACTIVATIONS))
    values |= {"normalization_type": norm, "act_fn": ACTIVATIONS[act_fn]}
    values["positional_embedding_type"] = fields.get("positional_embedding_type", "standard")
    return ModelConfig.from_dict(values)


def check_supported(fields: Mapping[str, Any]) -> None:
    """Raise ValueError if a HookedGPT does not support a field's value."""
    for name in ("d_model", "d_head"):
        require_whole(name, fields[name], 1, LARGEST_SIZE)
    rms = str(fields.get("normalization_type", "LN")).startswith(("RMS", "None"))
    for name, (off, remedy) in REFUSED.items():
        if name in fields and fields[name] not in off and not (name == "final_rms" and rms):
            raise ValueError(
                f"{name} must be {quoted(off[0])} in a HookedGPT, got {quoted(fields[name])}; "
                f"{remedy}"
            )
    scale, d_head = fields.get("attn_scale", -1), fields["d_head"]
    number = isinstance(scale, float) or (is_whole(scale) and abs(scale) <= LARGEST_SIZE)
    if not number or (scale != -1 and not math.isclose(scale, math.sqrt(d_head), rel_tol=1e-6)):
        raise ValueError(
            f"attn_scale must be sqrt(d_head) = {math.sqrt(d_head):.6g} in a HookedGPT, got "
            f"{quoted(scale)}; multiply W_Q and b_Q by sqrt(d_head) / attn_scale, then set it to -1"
        )
    if fields.get("original_architecture") in POST_NORM:
        raise ValueError(
            "original_architecture must not be one that normalises after attention and MLP, got "
            f"{quoted(fields['original_architecture'])}; {PRETRAINED}"
        )
    positions = fields.get("positional_embedding_type", "standard")
    if positions not in ("standard", "rotary"):
        raise ValueError(
            "positional_embedding_type must be standard or rotary in an old checkpoint, got "
            f"{quoted(positions)}; {KEEP}"
        )
