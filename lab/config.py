"""Frozen descriptions of a model, a training run and sampling: checked, saved as JSON, no torch.

Every class can be written to a file and read back.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lab.checks import (
    as_tuples,
    checked_fields,
    is_whole,
    require,
    require_choice,
    require_number,
    require_seed,
    require_text,
    require_whole,
)

SCHEMA_VERSION = 1
"""Version of the JSON files of a run folder; a newer one is rejected, an older one upgraded."""

LARGEST_SIZE = 2**24
"""Largest width, vocabulary or context."""
MOST_LAYERS = MOST_HEADS = 10_000
"""Layers, and heads of a layer: their ids have at most four digits, as in L9999H9999."""
LONGEST_SINUSOIDAL = 2**16
"""Largest context of sinusoidal positions: their table is computed, not read from a file."""

PositionalEmbedding = Literal["standard", "sinusoidal", "rotary", "none"]
Activation = Literal["gelu", "gelu_new", "relu", "silu", "solu", "solu_ln"]
Precision = Literal["auto", "fp32", "bf16"]
SWITCHES = (
    "attn_only",
    "gated_mlp",
    "parallel_attn_mlp",
    "rotary_adjacent_pairs",
    "tie_word_embeddings",
)
"""Fields of a ModelConfig that are true or false."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A decoder-only Transformer, in TransformerLens's field names.

    Pre-norm blocks; attention scores are scaled by 1 / sqrt(d_head). The defaults are GPT-2's;
    Llama and GPT-NeoX are other values of the same fields (see `lab.pretrained`).
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
    """Non-linearity of the MLP (gelu_new: the tanh approximation; solu_ln: a LayerNorm follows)."""
    positional_embedding_type: PositionalEmbedding = "standard"
    """standard (learned vectors), sinusoidal (fixed waves), rotary (q and k turn) or none."""
    rotary_base: float = 10_000.0
    """Wavelength base of rotary positions."""
    rotary_dim: int | None = None
    """Dimensions of a head that rotary positions rotate; None: all."""
    rotary_adjacent_pairs: bool = False
    """Rotate dimension pairs (2i, 2i + 1), as GPT-J does, instead of (i, i + rotary_dim / 2)."""
    attention_dir: Literal["causal", "bidirectional"] = "causal"
    """Whether a position sees earlier ones only."""
    n_key_value_heads: int | None = None
    """Number of key and value heads (grouped-query attention); None: one for each query head."""
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
    initializer_range: float | None = 0.02
    """Standard deviation of the initial weights; None: HookedTransformer's 0.8 / sqrt(d_model)."""
    seed: int = 0
    """Seed of the initial weights."""
    kept_heads: tuple[tuple[int, ...], ...] | None = None
    """Original ids of the heads that a physically pruned model still has, by layer; None: all."""

    def __post_init__(self) -> None:
        """Check every value, so that no broken configuration exists."""
        require_whole("n_layers", self.n_layers, 1, MOST_LAYERS)
        require_whole("n_heads", self.n_heads, 1, MOST_HEADS)
        for name in ("d_model", "d_vocab", "n_ctx"):
            require_whole(name, getattr(self, name), 1, LARGEST_SIZE)
        for name in ("d_head", "d_mlp", "rotary_dim", "n_key_value_heads", "d_vocab_out"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1, LARGEST_SIZE)
        require_seed(self.seed)
        require_choice("act_fn", self.act_fn, get_args(Activation))
        require_choice(
            "positional_embedding_type",
            self.positional_embedding_type,
            ("standard", "sinusoidal", "rotary", "none"),
        )
        require_number("rotary_base", self.rotary_base, 1.0)
        require_number("eps", self.eps, 0.0)
        if self.initializer_range is not None:
            require_number("initializer_range", self.initializer_range, 0.0)
        for name in SWITCHES:
            value = getattr(self, name)
            require(isinstance(value, bool), name, "true or false", value)
        require_choice("attention_dir", self.attention_dir, ("causal", "bidirectional"))
        if self.normalization_type is not None:
            require_choice("normalization_type", self.normalization_type, ("LN", "RMS"))
        require(
            not (self.gated_mlp and self.act_fn == "solu_ln"),
            "act_fn",
            "another than solu_ln in a gated MLP, which has no place for its norm",
            self.act_fn,
        )
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
            if self.rotary_dim is None and self.d_head is None:
                raise ValueError(
                    f"d_model / n_heads must be even for rotary positions, got {self.d_model} / "
                    f"{self.n_heads} = {self.rotary_width}; change one of them, or give an even "
                    "d_head or rotary_dim"
                )
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
        if self.positional_embedding_type == "sinusoidal":
            if self.d_model % 2:
                raise ValueError(
                    f"d_model must be even for sinusoidal positions, got {self.d_model}"
                )
            if self.n_ctx > LONGEST_SINUSOIDAL:
                raise ValueError(
                    f"n_ctx must be at most {LONGEST_SINUSOIDAL} for sinusoidal positions, got "
                    f"{self.n_ctx}; rotary ones have no such limit"
                )

    def kv_head(self, head: int) -> int:
        """Return the key head that a query head reads."""
        return head * self.kv_heads // self.n_heads

    def kv_heads_of(self, layer: int) -> tuple[int, ...]:
        """Return the original ids of a layer's key heads: those that a query head still reads."""
        return tuple(sorted({self.kv_head(head) for head in self.heads_of(layer)}))

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """Return the original ids of a layer's heads, in the order of its weights."""
        return tuple(range(self.n_heads)) if self.kept_heads is None else self.kept_heads[layer]

    def heads(self) -> tuple[tuple[int, int], ...]:
        """Return every head of the model as (layer, head), in original ids."""
        return tuple((i, head) for i in range(self.n_layers) for head in self.heads_of(i))

    def n_heads_of(self, layer: int) -> int:
        """Return the number of heads of a layer."""
        return self.n_heads if self.kept_heads is None else len(self.kept_heads[layer])

    @property
    def n_parameters(self) -> int:
        """Number of parameters of a model of this config.

        >>> ModelConfig(n_layers=2, n_heads=4, d_model=64, d_vocab=28, n_ctx=32).n_parameters
        105756
        """
        width, d_head, mlp = self.d_model, self.head_width, self.mlp_width
        norm = {"LN": 2 * width, "RMS": width, None: 0}[self.normalization_type]
        each_layer = norm + width
        if not self.attn_only:
            each_layer += norm + (3 if self.gated_mlp else 2) * width * mlp + mlp + width
            each_layer += 2 * mlp if self.act_fn == "solu_ln" else 0
        heads = sum(self.n_heads_of(layer) for layer in range(self.n_layers))
        key_heads = heads
        if self.kept_heads is not None:
            key_heads = sum(len(self.kv_heads_of(layer)) for layer in range(self.n_layers))
        elif self.kv_heads != self.n_heads:
            key_heads = self.n_layers * self.kv_heads
        attention = heads * (2 * width + 1) * d_head + key_heads * 2 * (width + 1) * d_head
        positions = self.n_ctx if self.positional_embedding_type == "standard" else 0
        vectors = positions + self.d_vocab
        vectors += 0 if self.tie_word_embeddings else self.vocab_out
        return attention + self.n_layers * each_layer + vectors * width + norm + self.vocab_out

    @property
    def head_width(self) -> int:
        """d_head, or its default d_model // n_heads."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def initial_std(self) -> float:
        """initializer_range, or HookedTransformer's default of it."""
        return (
            0.8 / math.sqrt(self.d_model)
            if self.initializer_range is None
            else self.initializer_range
        )

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
        values["kept_heads"] = as_tuples(values.get("kept_heads"))
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
    """Learning rate at the end of the cosine, as a share of the peak."""
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
        require_text("task", self.task)
        require(isinstance(self.model, ModelConfig), "model", "a ModelConfig", self.model)
        for name in ("length", "n_symbols", "batch_size", "eval_sequences"):
            require_whole(name, getattr(self, name), 1, LARGEST_SIZE)
        for name in ("accumulate", "steps", "eval_every", "checkpoint_every"):
            require_whole(name, getattr(self, name), 1)
        require_whole("warmup_steps", self.warmup_steps, 0)
        require_seed(self.seed)
        for name in ("learning_rate", "weight_decay"):
            require_number(name, getattr(self, name), 0.0)
        require_number("final_lr_share", self.final_lr_share, 0.0, 1.0)
        require_number("grad_clip", self.grad_clip, 0.0)
        require(self.grad_clip > 0, "grad_clip", "more than 0", self.grad_clip)
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        require(pair, "betas", "two numbers from 0 to below 1", self.betas)
        for beta in self.betas:
            require_number("betas", beta, 0.0, 1.0)
            require(beta < 1, "betas", "two numbers from 0 to below 1", self.betas)
        require_text("device", self.device)
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
        if "betas" in values:
            values["betas"] = as_tuples(values["betas"])
        return cls(**values)


HOTTEST = 1e4
"""Highest temperature: above it, samples are practically uniform."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleConfig:
    """Settings for sampling the next token."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens; None: all."""
    top_p: float | None = None
    """Keep the fewest tokens whose probabilities reach p; None: all."""
    seed: int = 0
    """Seed of the samples of one call."""

    def __post_init__(self) -> None:
        """Check every value."""
        require_number("temperature", self.temperature, 0.0, HOTTEST)
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
        ids = isinstance(heads, tuple) and all(is_whole(h) and 0 <= h < n_heads for h in heads)
        in_order = ids and all(one < next_ for one, next_ in itertools.pairwise(heads))
        require(in_order, f"kept_heads[{layer}]", rule, heads)
