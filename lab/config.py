"""Frozen descriptions of a model, a training run and sampling: checked, saved as JSON, no torch.

What is here can be written to a file and read back. What is computed from it lives elsewhere.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lab.naming import unknown_name

SCHEMA_VERSION = 1
"""Version of the JSON files of a run folder; a newer one is refused, an older one upgraded."""

PositionalEmbedding = Literal["standard", "sinusoidal", "rotary", "none"]
Activation = Literal["gelu", "gelu_new", "relu", "silu"]
Precision = Literal["auto", "fp32", "bf16"]


def require(holds: bool, what: str, rule: str, got: object) -> None:
    """Raise ValueError in the project's one wording unless the rule holds."""
    if not holds:
        raise ValueError(f"{what} must be {rule}, got {got!r}")


def require_whole(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless value is a whole number of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, name, f"a whole number of at least {least}", value)


def require_seed(value: Any) -> None:
    """Raise ValueError unless value can seed every generator that is used here."""
    require_whole("seed", value, 0)
    require(value < 2**63, "seed", "below 2**63", value)


def require_number(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raise ValueError unless value is a finite number in [low, high]."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and low <= value <= high):
        span = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
        require(False, name, f"a number {span}", value)


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError, with a suggestion, unless value is one of the choices."""
    if value not in choices:
        raise ValueError(unknown_name(name, str(value), choices))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A decoder-only Transformer, in TransformerLens's field names.

    Pre-norm blocks with LayerNorm; attention scores are scaled by 1 / sqrt(d_head).
    """

    n_layers: int
    """Number of blocks."""
    n_heads: int
    """Attention heads in each block."""
    d_model: int
    """Width of the residual stream."""
    d_vocab: int
    """Number of token ids."""
    n_ctx: int
    """Longest sequence, in tokens."""
    d_head: int | None = None
    """Width of a head; None: d_model // n_heads."""
    d_mlp: int | None = None
    """Hidden width of the MLP; None: 4 * d_model."""
    act_fn: Activation = "gelu"
    """Non-linearity of the MLP (gelu_new is the tanh approximation)."""
    positional_embedding_type: PositionalEmbedding = "standard"
    """standard (learned vectors), sinusoidal (fixed waves), rotary (q and k turn) or none."""
    rotary_base: float = 10_000.0
    """Wavelength base of rotary positions."""
    rotary_dim: int | None = None
    """Dimensions of a head that rotary positions turn; None: all."""
    attention_dir: Literal["causal", "bidirectional"] = "causal"
    """Whether a position sees earlier ones only."""
    n_key_value_heads: int | None = None
    """Key and value heads, each shared by as many query heads; None: one for each query head."""
    normalization_type: Literal["LN", "RMS"] | None = "LN"
    """LN (LayerNorm), RMS (RMSNorm) or None: no normalisation."""
    attn_only: bool = False
    """Leave the MLPs out."""
    gated_mlp: bool = False
    """act(x W_gate) * (x W_in) in the MLP: with silu, SwiGLU."""
    parallel_attn_mlp: bool = False
    """Let attention and MLP of a block read the same stream, as in GPT-NeoX."""
    d_vocab_out: int | None = None
    """Number of outputs, when it is not d_vocab."""
    tie_word_embeddings: bool = False
    """Use the transposed embedding as the unembedding: one parameter for both."""
    eps: float = 1e-5
    """Added to the variance in LayerNorm."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights; biases start at 0."""
    seed: int = 0
    """Seed of the initial weights."""
    kept_heads: tuple[tuple[int, ...], ...] | None = None
    """Original ids of the heads that a physically pruned model still has, by layer; None: all."""

    def __post_init__(self) -> None:
        """Check every value, so that no broken configuration exists."""
        for name in ("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx"):
            require_whole(name, getattr(self, name), 1)
        for name in ("d_head", "d_mlp", "rotary_dim", "n_key_value_heads", "d_vocab_out"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1)
        require_seed(self.seed)
        require_choice("act_fn", self.act_fn, ("gelu", "gelu_new", "relu", "silu"))
        require_choice(
            "positional_embedding_type",
            self.positional_embedding_type,
            ("standard", "sinusoidal", "rotary", "none"),
        )
        require_number("rotary_base", self.rotary_base, 1.0)
        require_number("eps", self.eps, 0.0)
        require_number("initializer_range", self.initializer_range, 0.0)
        for name in ("tie_word_embeddings", "attn_only", "gated_mlp", "parallel_attn_mlp"):
            value = getattr(self, name)
            require(isinstance(value, bool), name, "true or false", value)
        require_choice("attention_dir", self.attention_dir, ("causal", "bidirectional"))
        if self.normalization_type is not None:
            require_choice("normalization_type", self.normalization_type, ("LN", "RMS"))
        self.check_sizes()
        if self.kept_heads is not None:
            check_kept_heads(self.kept_heads, self.n_layers, self.n_heads)

    def check_sizes(self) -> None:
        """Raise ValueError unless the sizes fit each other."""
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model must be a multiple of n_heads, got {self.d_model} and {self.n_heads}; "
                "change one of them or give d_head"
            )
        if self.rotary_width % 2 or self.rotary_width > self.head_width:
            name = "d_head" if self.rotary_dim is None else "rotary_dim"
            raise ValueError(
                f"{name} must be even for rotary positions and at most d_head = {self.head_width}, "
                f"got {self.rotary_width}"
            )
        if self.n_heads % self.kv_heads:
            raise ValueError(
                f"n_heads must be a multiple of n_key_value_heads, got {self.n_heads} and "
                f"{self.kv_heads}"
            )
        if self.tie_word_embeddings and self.vocab_out != self.d_vocab:
            raise ValueError(
                f"d_vocab_out must be d_vocab = {self.d_vocab} with tied embeddings, "
                f"got {self.vocab_out}"
            )
        if self.positional_embedding_type == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model must be even for sinusoidal positions, got {self.d_model}")

    def kv_head(self, head: int) -> int:
        """Return the key head that a query head reads."""
        return head * self.kv_heads // self.n_heads

    def kv_heads_of(self, layer: int) -> tuple[int, ...]:
        """Return the original ids of a layer's key heads: those that a query head still reads."""
        return tuple(sorted({self.kv_head(head) for head in self.heads_of(layer)}))

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """Return the original ids of a layer's heads, in the order of its weights."""
        return tuple(range(self.n_heads)) if self.kept_heads is None else self.kept_heads[layer]

    @property
    def head_width(self) -> int:
        """d_head, or its default d_model // n_heads."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def kv_heads(self) -> int:
        """n_key_value_heads, or its default n_heads."""
        return self.n_heads if self.n_key_value_heads is None else self.n_key_value_heads

    @property
    def rotary_width(self) -> int:
        """rotary_dim, or its default d_head; 0 without rotary positions."""
        if self.positional_embedding_type != "rotary":
            return 0
        return self.head_width if self.rotary_dim is None else self.rotary_dim

    @property
    def vocab_out(self) -> int:
        """d_vocab_out, or its default d_vocab."""
        return self.d_vocab if self.d_vocab_out is None else self.d_vocab_out

    @property
    def mlp_width(self) -> int:
        """d_mlp, or its default 4 * d_model."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data that from_dict reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """Build from plain data; an unknown key is an error with a suggestion."""
        values = checked_fields(cls, data)
        if isinstance(values.get("kept_heads"), list):
            values["kept_heads"] = tuple(
                tuple(heads) if isinstance(heads, list) else heads for heads in values["kept_heads"]
            )
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One training run: a task, a model and the recipe (AdamW, warm-up, cosine, clipping)."""

    task: str
    """Name of the task; `headlab train --help` lists them."""
    length: int = 10
    """Symbols before the separator (reversal, copy) or in one block (induction)."""
    n_symbols: int = 26
    """Number of different symbols."""
    model: ModelConfig
    """The model to train."""
    steps: int = 1_000
    """Optimiser steps."""
    batch_size: int = 128
    """Sequences in one optimiser step, over all processes and accumulated micro-batches."""
    accumulate: int = 1
    """Micro-batches in one optimiser step of one process."""
    learning_rate: float = 3e-3
    """Peak learning rate, reached after the warm-up."""
    final_lr_share: float = 0.1
    """Share of the peak that the cosine ends at."""
    warmup_steps: int = 100
    """Steps of linear warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    weight_decay: float = 0.1
    """AdamW's weight decay, on matrices only."""
    grad_clip: float = 1.0
    """Largest norm of the gradient."""
    eval_every: int = 100
    """Steps between evaluations; the last step is always evaluated."""
    eval_sequences: int = 2_000
    """Held-out sequences in an evaluation."""
    checkpoint_every: int = 100
    """Steps between checkpoints; step 0 and the last step are always kept."""
    seed: int = 0
    """Seed of the data."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """auto (bf16 autocast on a GPU that has it, else fp32), fp32 or bf16."""

    def __post_init__(self) -> None:
        """Check every value, so that no broken configuration exists."""
        for name in ("length", "n_symbols", "batch_size", "accumulate", "steps"):
            require_whole(name, getattr(self, name), 1)
        for name in ("eval_every", "checkpoint_every", "eval_sequences"):
            require_whole(name, getattr(self, name), 1)
        require_whole("warmup_steps", self.warmup_steps, 0)
        require_seed(self.seed)
        for name in ("learning_rate", "weight_decay"):
            require_number(name, getattr(self, name), 0.0)
        require_number("final_lr_share", self.final_lr_share, 0.0, 1.0)
        require(self.grad_clip > 0, "grad_clip", "more than 0", self.grad_clip)
        require(
            len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas),
            "betas",
            "two numbers from 0 to below 1",
            self.betas,
        )
        require_choice("precision", self.precision, ("auto", "fp32", "bf16"))
        if self.batch_size % self.accumulate:
            raise ValueError(
                "batch_size must be a multiple of accumulate, "
                f"got {self.batch_size} and {self.accumulate}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data that from_dict reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TrainConfig":
        """Build from plain data; an unknown key is an error with a suggestion."""
        values = checked_fields(cls, data)
        if isinstance(values.get("model"), Mapping):
            values["model"] = ModelConfig.from_dict(values["model"])
        if isinstance(values.get("betas"), list):
            values["betas"] = tuple(values["betas"])
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleConfig:
    """How the next token is drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens; None: all."""
    top_p: float | None = None
    """Keep the fewest tokens whose probabilities reach p; None: all."""
    seed: int = 0
    """Seed of the draws of this call."""

    def __post_init__(self) -> None:
        """Check every value."""
        require_number("temperature", self.temperature, 0.0)
        if self.top_k is not None:
            require_whole("top_k", self.top_k, 1)
        if self.top_p is not None:
            require_number("top_p", self.top_p, 0.0, 1.0)
            require(self.top_p > 0, "top_p", "more than 0", self.top_p)
        require_seed(self.seed)


def check_kept_heads(kept: tuple[tuple[int, ...], ...], n_layers: int, n_heads: int) -> None:
    """Raise ValueError unless every layer lists some of its heads, in order."""
    require(
        isinstance(kept, tuple) and len(kept) == n_layers,
        "kept_heads",
        f"a list of {n_layers} lists, one a layer",
        kept,
    )
    for layer, heads in enumerate(kept):
        rule = f"different head ids from 0 to {n_heads - 1}, in order"
        in_order = isinstance(heads, tuple) and [h for h in range(n_heads) if h in heads] == list(
            heads
        )
        require(in_order, f"kept_heads[{layer}]", rule, heads)


def checked_fields(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data as keyword arguments of a config class, or say what is unknown or missing."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{cls.__name__} must be a JSON object, got {type(data).__name__}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    for name in data:
        if name not in known:
            raise ValueError(unknown_name(f"{cls.__name__} key", str(name), known))
    for name, f in known.items():
        no_default = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if no_default and name not in data:
            raise ValueError(
                f"{cls.__name__} must have the key {name!r}, got {', '.join(data) or 'none'}"
            )
    return dict(data)
