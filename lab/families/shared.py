"""Questions that several families ask of a config."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lab.checks import is_whole
from lab.config import ModelConfig
from lab.families.family import ACTIVATIONS, HFConfig
from lab.naming import quoted, unknown_name


def read_activation(key: str, name: object) -> str:
    """Return our name of an activation."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        got = name if isinstance(name, str) else quoted(name)
        raise ValueError(unknown_name(key, got, ACTIVATIONS))
    return ACTIVATIONS[name]


def read_rotary(config: HFConfig) -> Mapping[str, Any]:
    """Return the rotary settings, once they are the plain ones.

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
    """Return the wavelength base, unchecked: ModelConfig refuses what is not a number."""
    base = rotary["rope_theta"]
    return float(base) if is_whole(base) else base


def attention_bias(config: HFConfig) -> bool:
    return bool(config["attention_bias"])


def own_heads(config: ModelConfig) -> str | None:
    """Say that each query head must have a key head of its own."""
    if config.kv_heads != config.n_heads:
        return f"n_key_value_heads must be n_heads = {config.n_heads}, got {config.kv_heads}"
    if config.head_width * config.n_heads != config.d_model:
        return f"d_head must be d_model / n_heads, got {config.head_width}"
    return None


def even_heads(config: ModelConfig) -> str | None:
    """Say that transformers divides d_model by the number of heads."""
    if config.d_model % config.n_heads:
        return f"d_model must be a multiple of n_heads = {config.n_heads}, got {config.d_model}"
    return None


def has_attention_bias(config: ModelConfig, state: Mapping[str, Tensor]) -> bool:
    """Tell whether any attention bias is not 0; transformers can leave all of them out."""
    return any(
        bool(state[f"blocks.{layer}.attn.{name}"].any())
        for layer in range(config.n_layers)
        for name in ("b_Q", "b_K", "b_V", "b_O")
    )
