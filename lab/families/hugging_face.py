"""Convert a HookedGPT to a transformers model with the same logits, or say why it is impossible."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.families.family import Family, write_state
from lab.families.registry import FAMILIES
from lab.model import GPT
from lab.weights import expected_shapes

FOLD_ERROR = {torch.float64: 1e-10}
"""Largest error of a folded bias, as a share of its largest number; other dtypes: 1e-5."""

State = dict[str, Tensor]


def to_hf(model: GPT) -> Any:
    """Return a transformers model with the same logits, in memory of its own.

    The class follows from the config: LayerNorm with positions that are added becomes
    GPT2LMHeadModel, RMSNorm with rotary ones LlamaForCausalLM, LayerNorm with rotary ones
    GPTNeoXForCausalLM. What these do not support is rewritten where that is exact: waves as
    learned positions, no MLP as one of zeros, b_U as a part of ln_final.b.

    Raises:
        ValueError: No family computes the same, or an exact rewriting does not exist.
    """
    import transformers
    from accelerate import init_empty_weights

    check_exportable(model.config)
    config, state = rewritten(model)
    family = fitting_family(config)
    values = family.hf_config(config, state)
    model_class = getattr(transformers, family.model_class)
    # A task's vocabulary, or a model without a tokenizer, has no BOS or EOS token.
    ids = {
        key: getattr(model.tokenizer, key, None)
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    hf_config = model_class.config_class(**values, **ids, dtype=model.W_E.dtype)
    theirs = write_state(family, hf_config.to_dict(), config, state)
    with init_empty_weights():  # draws no random numbers, so the global generator does not change
        hf = model_class(hf_config)
    if config.tie_word_embeddings:
        theirs["lm_head.weight"] = theirs[family.rules[0].theirs]
    hf.load_state_dict(theirs, strict=True, assign=True)
    hf.tie_weights()
    return hf.to(model.W_E.device).eval()


def check_exportable(config: ModelConfig) -> None:
    """Raise ValueError for settings that no family of transformers supports."""
    if config.kept_heads is not None:
        raise ValueError(
            "model must be unpruned to become one of transformers, whose layers have the same "
            "number of heads, got one with pruned heads; export the unpruned model"
        )
    for name, wanted in (("attention_dir", "causal"), ("d_vocab_out", None)):
        got = getattr(config, name)
        if got not in (wanted, config.d_vocab):
            raise ValueError(
                f"{name} must be {wanted} to become a transformers model, got {got!r}; "
                "no family that headlab writes computes it"
            )


def rewritten(model: GPT) -> tuple[ModelConfig, State]:
    """Return config and weights of a model with the same logits that a family supports."""
    config, state = model.config, dict(model.state_dict())
    changes: dict[str, Any] = {"d_vocab_out": None}
    if config.positional_embedding_type == "sinusoidal":
        changes["positional_embedding_type"] = "standard"
        state["pos_embed.W_pos"] = model.W_pos
    elif config.positional_embedding_type == "none":
        changes["positional_embedding_type"] = "standard"
    if config.attn_only:
        changes |= {"attn_only": False, "d_mlp": 1, "act_fn": "gelu", "parallel_attn_mlp": False}
        changes["gated_mlp"] = config.normalization_type == "RMS"
    if config.rotary_adjacent_pairs:
        changes["rotary_adjacent_pairs"] = False
        unpair(state, config)
    if config.gated_mlp and not config.attn_only:
        for layer in range(config.n_layers):
            mlp = f"blocks.{layer}.mlp."
            moved = state[mlp + "b_in"] @ state[mlp + "W_out"]
            state[mlp + "b_out"] = state[mlp + "b_out"] + moved
    if config.normalization_type == "LN" or state["unembed.b_U"].any():
        fold_output_bias(state, config)
    config = dataclasses.replace(config, **changes)
    zeros = state["unembed.b_U"].new_zeros
    return config, {
        name: state[name] if name in state else zeros(shape)
        for name, shape in expected_shapes(config)
    }


def unpair(state: State, config: ModelConfig) -> None:
    """Reorder query and key dimensions from pairs (2i, 2i + 1) to (i, i + half)."""
    width = config.rotary_width
    order = [*range(0, width, 2), *range(1, width, 2), *range(width, config.head_width)]
    for layer in range(config.n_layers):
        for name in ("W_Q", "b_Q", "W_K", "b_K"):
            key = f"blocks.{layer}.attn.{name}"
            state[key] = state[key][..., order]


def fold_output_bias(state: State, config: ModelConfig) -> None:
    """Move b_U into ln_final.b: W_U^T b = b_U has an exact solution if W_U has full column rank.

    Raises:
        ValueError: It has none, or the model has no ln_final.b.
    """
    bias = state["unembed.b_U"]
    if not bias.any():
        return
    if config.normalization_type != "LN":
        raise ValueError(
            "b_U must be 0 to become a transformers model, which has no output bias, got other "
            f"numbers with {config.normalization_type or 'no'} normalisation, whose last norm has "
            "no bias to hold them; set b_U to 0"
        )
    W_U, target = state["unembed.W_U"].double(), bias.double()
    solution = torch.linalg.pinv(W_U.T) @ target
    folded = (state["ln_final.b"].double() + solution).to(bias.dtype)
    error = (folded.double() - state["ln_final.b"].double()) @ W_U - target
    if error.abs().max() > FOLD_ERROR.get(bias.dtype, 1e-5) * target.abs().max():
        raise ValueError(
            "b_U must be 0 to become a transformers model, which has no output bias, or W_U must "
            f"have full column rank so that ln_final.b can hold it, got d_vocab = {config.d_vocab} "
            f"with d_model = {config.d_model} in {bias.dtype}; set b_U to 0"
        )
    state["ln_final.b"] = folded


def fitting_family(config: ModelConfig) -> Family:
    """Return the family that computes what a config describes.

    Raises:
        ValueError: No family does; the message says how the closest one differs.
    """
    mismatches = {family.name: family.mismatches(config) for family in FAMILIES}
    closest = min(FAMILIES, key=lambda family: len(mismatches[family.name]))
    why = next(iter(mismatches[closest.name]), None) or closest.misfit(config)
    if why is None:
        return closest
    raise ValueError(
        f"{why}, to become a {closest.model_class}, the closest of transformers' models that "
        "headlab writes; analyse this model as it is"
    )
