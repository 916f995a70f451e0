"""Checks and conversions that several families share."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lab.checks import is_whole
from lab.config import ModelConfig
from lab.families.family import ACTIVATIONS, HFConfig
from lab.naming import quoted, unknown_name


def read_activation(key: str, name: object) -> str:
    """Return our name for an activation."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        got = name if isinstance(name, str) else quoted(name)
        raise ValueError(unknown_name(key, got, ACTIVATIONS))
    return ACTIVATIONS[name]


def read_rotary(config: HFConfig) -> Mapping[str, Any]:
    """Return the rotary settings, after checking that wavelengths are not scaled.

    Raises:
        ValueError: The wavelengths are scaled (linear, dynamic, yarn, llama3 ...).
    """
    rotary = config["rope_parameters"]
    kind = rotary.get("rope_type", "default") if isinstance(rotary, Mapping) else rotary
    if not isinstance(rotary, Mapping) or kind != "default":
        raise ValueError(
            "rope_type must be 'default', since a HookedGPT scales no wavelengths (rope_scaling), "
            f"got {quoted(kind)}; analyse the model with TransformerBridge.boot_transformers"
        )
    return rotary


def read_base(rotary: Mapping[str, Any]) -> Any:
    """Return the wavelength base, unchecked: ModelConfig rejects what is not a number."""
    base = rotary["rope_theta"]
    return float(base) if is_whole(base) else base


def attention_bias(config: HFConfig) -> bool:
    return bool(config["attention_bias"])


def own_heads(config: ModelConfig) -> str | None:
    """Return an error unless each query head has its own key head."""
    if config.kv_heads != config.n_heads:
        return f"n_key_value_heads must be n_heads = {config.n_heads}, got {config.kv_heads}"
    if config.head_width * config.n_heads != config.d_model:
        return f"d_head must be d_model / n_heads, got {config.head_width}"
    return None


def even_heads(config: ModelConfig) -> str | None:
    """Return an error unless d_model is a multiple of n_heads, as transformers needs."""
    if config.d_model % config.n_heads:
        return f"d_model must be a multiple of n_heads = {config.n_heads}, got {config.d_model}"
    return None


def has_attention_bias(config: ModelConfig, state: Mapping[str, Tensor]) -> bool:
    """Return whether any attention bias is not 0; transformers can omit all of them."""
    return any(
        bool(state[f"blocks.{layer}.attn.{name}"].any())
        for layer in range(config.n_layers)
        for name in ("b_Q", "b_K", "b_V", "b_O")
    )
