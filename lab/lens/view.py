"""TransformerLens's mutable view of a ModelConfig, which its tools read as model.cfg.

Only the frozen `lab.config.ModelConfig` is saved. In this view, only the use_* flags, device, dtype
and default_prepend_bos can change.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from transformer_lens.config.transformer_lens_config import TransformerLensConfig

from lab.checks import require
from lab.config import ModelConfig
from lab.naming import quoted, unknown_name

SETTINGS = ("device", "dtype", "default_prepend_bos")
"""Fields that can change on a finished model, beside the use_* flags."""


@dataclass(repr=False)
class HookedGPTConfig(TransformerLensConfig):
    """TransformerLens's mutable view of a ModelConfig, with the fields that its tools look for."""

    __slots__ = ("built",)
    """True once every field is set. A slot, because TransformerLens's to_dict copies vars(cfg)."""

    d_vocab_out: int = -1
    use_attn_in: bool = False
    use_hook_mlp_in: bool = False
    attention_dir: str = "causal"
    parallel_attn_mlp: bool = False
    rotary_dim: int | None = None
    rotary_base: float = 10_000.0
    rotary_adjacent_pairs: bool = False
    tie_word_embeddings: bool = False
    seed: int = 0
    init_mode: str = "gpt2"
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        """Skip the base class's derived values: `of` sets every field, checked by ModelConfig."""
        self.built = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field.

        Raises:
            ValueError: There is no such field, it is fixed once the model is built, or a flag would
                be neither true nor false.
        """
        if getattr(self, "built", False):
            check_change(name, value, [field.name for field in dataclasses.fields(self)])
        super().__setattr__(name, value)

    @classmethod
    def of(cls, config: ModelConfig) -> "HookedGPTConfig":
        return cls(
            d_model=config.d_model,
            d_head=config.head_width,
            n_layers=config.n_layers,
            n_ctx=config.n_ctx,
            n_heads=config.n_heads,
            d_mlp=config.mlp_width,
            d_vocab=config.d_vocab,
            d_vocab_out=config.vocab_out,
            device="cpu",
            default_prepend_bos=False,
            positional_embedding_type=config.positional_embedding_type,
            act_fn=config.act_fn,
            normalization_type=config.normalization_type,
            uses_rms_norm=config.normalization_type == "RMS",
            final_rms=config.normalization_type == "RMS",
            n_key_value_heads=config.n_key_value_heads,
            attn_only=config.attn_only,
            gated_mlp=config.gated_mlp,
            attention_dir=config.attention_dir,
            parallel_attn_mlp=config.parallel_attn_mlp,
            rotary_dim=config.rotary_width or None,
            rotary_base=config.rotary_base,
            rotary_adjacent_pairs=config.rotary_adjacent_pairs,
            tie_word_embeddings=config.tie_word_embeddings,
            eps=config.eps,
            seed=config.seed,
            initializer_range=config.initial_std,
        )


class PrunedGPTConfig(HookedGPTConfig):
    """The view of a model with pruned heads, without n_heads: tools would mislabel heads."""

    # Typed as an int for the tools, although it only raises.
    @property
    def n_heads(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Raise ValueError: layers have different numbers of heads, and ids have gaps."""
        raise ValueError(
            "n_heads must be the same heads in every layer for TransformerLens's tools, got a "
            "model with pruned heads; use headlab's probes (they keep the original ids), or these "
            "tools on the unpruned model with gates"
        )

    @n_heads.setter
    def n_heads(self, _: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ignore the value."""


def check_change(name: str, value: object, fields: list[str]) -> None:
    """Raise ValueError unless a field of a finished view may change to this value."""
    changeable = [field for field in fields if field.startswith("use_") or field in SETTINGS]
    if name in changeable:
        if name == "dtype":
            require(isinstance(value, torch.dtype), "cfg.dtype", "a torch.dtype", value)
        elif name != "device":
            require(isinstance(value, bool), f"cfg.{name}", "true or false", value)
    elif name in fields:
        raise ValueError(
            f"cfg.{name} is fixed once the model is built, got {quoted(value)}; build another with "
            "dataclasses.replace(model.config, ...)"
        )
    else:
        kind = "flag" if name.startswith("use_") else "field of cfg"
        raise ValueError(unknown_name(kind, name, changeable))
