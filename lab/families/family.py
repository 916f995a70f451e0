"""Family: tables that convert config and weights to and from those of a HookedGPT."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from lab.config import ModelConfig
from lab.naming import quoted, unknown_name
from lab.weights import DTYPES, expected_shapes

HFConfig = Mapping[str, Any]
"""A transformers config as its to_dict() gives it: all keys there, rotary settings standardised."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Activations of transformers that a HookedGPT computes, by its own names."""

COMMON: Mapping[str, tuple[object, ...]] = {
    "is_causal": (True, None),
    "is_encoder_decoder": (False, None),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "attention_chunk_size": (None,),
}
"""Keys of any config that change the results, and the values that a HookedGPT supports."""

HEAD = "lm_head.weight"
"""The unembedding, in every family."""


def always(_: HFConfig) -> bool:
    return True


def untied(config: HFConfig) -> bool:
    return not config["tie_word_embeddings"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One of their tensors, and ours that it contains.

    "h.{}.x" and our names below a block apply to each layer. The einops pattern goes from their
    axes to ours; the axis `part` numbers several of our tensors in one of theirs. A tensor without
    any of ours must be zero; its pattern is its one axis.
    """

    theirs: str
    ours: tuple[str, ...]
    pattern: str | None = None
    when: Callable[[HFConfig], bool] = always
    """Predicate: which configs have the tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family of transformers models."""

    name: str
    """Its model_type."""
    model_class: str
    """The class with a language model's head."""
    prefix: str
    """Prefix of all tensor names but the head's; files of headless models lack it."""
    sizes: Mapping[str, str]
    """Fields of a ModelConfig, and the equivalent keys."""
    fixed: Mapping[str, object]
    """Fields of a ModelConfig that are the same for the whole family."""
    allowed: Mapping[str, tuple[object, ...]]
    """Keys that change the results, and the values that a HookedGPT supports."""
    rules: tuple[Rule, ...]
    """The rule of every tensor."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Older names of tensors."""
    passed_over: str = r"(?!)"
    """Pattern of the names of tensors that are not weights: masks, wavelengths."""
    read_more: Callable[[HFConfig], dict[str, Any]]
    """Computes ModelConfig fields that need more than a table."""
    write_more: Callable[[ModelConfig, Mapping[str, Tensor]], dict[str, Any]]
    """Computes keys of a transformers config that need more than a table."""
    misfit: Callable[[ModelConfig], str | None] = lambda _: None
    """Says why a config with the right fixed fields does not belong to the family."""

    def model_config(self, config: HFConfig) -> ModelConfig:
        """Return the description of the same model.

        Raises:
            ValueError: The config asks for something that a HookedGPT does not compute.
        """
        for key, values in {**COMMON, **self.allowed}.items():
            if config.get(key, values[0]) not in values:
                raise ValueError(
                    f"{key} must be {values[0]} in a {self.name} model, got "
                    f"{quoted(config[key])}, which a HookedGPT does not compute; analyse it with "
                    "TransformerBridge.boot_transformers"
                )
        sizes = {ours: config[theirs] for ours, theirs in self.sizes.items()}
        return ModelConfig(**sizes, **self.fixed, **self.read_more(config))

    def hf_config(self, config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the transformers config of a model that fits."""
        values = {
            "d_mlp": config.mlp_width,
            "d_head": config.head_width,
            "n_key_value_heads": config.kv_heads,
        }
        sizes = {
            theirs: values.get(ours, getattr(config, ours)) for ours, theirs in self.sizes.items()
        }
        return {**sizes, **self.write_more(config, state)}

    def mismatches(self, config: ModelConfig) -> list[str]:
        """Return the fields of a config that do not fit the family."""
        return [
            f"{name} must be {value!r}, got {getattr(config, name)!r}"
            for name, value in self.fixed.items()
            if getattr(config, name) != value
        ]

    def active_rules(self, config: HFConfig, n_layers: int) -> Iterator[Rule]:
        """Yield the rules of one model, with every layer's number in its names."""
        for rule in self.rules:
            if not rule.when(config):
                continue
            if "{}" not in rule.theirs:
                yield rule
                continue
            for layer in range(n_layers):
                ours = tuple(f"blocks.{layer}.{name}" for name in rule.ours)
                yield dataclasses.replace(rule, theirs=rule.theirs.format(layer), ours=ours)

    def located(self, names: Iterator[str]) -> dict[str, str]:
        """Return a file's tensor names, by the family's present names."""
        weights = [name for name in names if not re.search(self.passed_over, name)]
        headless = not any(name.startswith(self.prefix) for name in weights)
        found = {}
        for name in weights:
            known = self.aliases.get(name, name)
            if headless and not known.startswith("lm_head."):
                known = self.prefix + known
            found[known] = name
        return found


def axis_sizes(rule: Rule, config: ModelConfig) -> dict[str, int]:
    """Return the sizes that a rule's pattern needs."""
    sizes = {"head": config.n_heads, "kv_head": config.kv_heads, "part": len(rule.ours)}
    named = set(re.findall(r"\w+", rule.pattern or ""))
    return {axis: size for axis, size in sizes.items() if axis in named}


def to_theirs(rule: Rule, ours: list[Tensor], config: ModelConfig) -> Tensor:
    if rule.pattern is None:
        return ours[0].clone()
    left, _, right = rule.pattern.partition("->")
    stacked = torch.stack(ours) if len(ours) > 1 else ours[0]
    made = rearrange(stacked, f"{right} -> {left}", **axis_sizes(rule, config))
    return made.clone(memory_format=torch.contiguous_format)


def to_ours(rule: Rule, theirs: Tensor, config: ModelConfig, dtype: torch.dtype) -> list[Tensor]:
    """Return our tensors from one of theirs, without a copy."""
    made = theirs
    if rule.pattern is not None:
        made = rearrange(theirs, rule.pattern, **axis_sizes(rule, config))
    parts = made.unbind(0) if len(rule.ours) > 1 else (made,)
    return [part.to(dtype).contiguous() for part in parts]


def their_shapes(family: Family, hf: HFConfig, config: ModelConfig) -> Iterator[tuple[Rule, tuple]]:
    """Yield every rule of a model with the shape that their tensor must have."""
    shapes = dict(expected_shapes(config))
    for rule in family.active_rules(hf, config.n_layers):
        if not rule.ours:
            yield rule, (config.mlp_width,)
            continue
        ours = [torch.empty(shapes[name], device="meta") for name in rule.ours]
        yield rule, tuple(to_theirs(rule, ours, config).shape)


def with_own_head(
    family: Family,
    hf: HFConfig,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: Callable[[str], Tensor],
) -> HFConfig:
    """Return a config whose tie_word_embeddings agrees with the weights.

    A config may ask for tied embeddings where the weights hold an lm_head of other numbers;
    transformers then computes with the lm_head, and so do we.
    """
    located = family.located(iter(shapes))
    embedding, head = located.get(family.rules[0].theirs), located.get(HEAD)
    if untied(hf) or embedding is None or head is None:
        return hf
    if shapes[embedding] == shapes[head]:
        first, second = tensor(embedding), tensor(head)
        if first.dtype != second.dtype:
            first, second = first.double(), second.double()
        if first.is_meta or second.is_meta or torch.equal(first, second):
            return hf
    return {**hf, "tie_word_embeddings": False}


def read_state(
    family: Family,
    hf: HFConfig,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: Callable[[str], Tensor],
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield our weights from theirs, one of their tensors at a time; missing biases are 0.

    Args:
        family: The family.
        hf: Their config.
        shapes: The shape of each of their tensors: all are checked before one is read.
        tensor: Reads a tensor by name, into memory of its own.
        dtype: Of our weights; None: theirs, and float32 for half precision.

    Raises:
        ValueError: A tensor is missing, unknown, of another shape, or holds what a HookedGPT has
            no place for.
    """
    config = family.model_config(hf)
    located = family.located(iter(shapes))
    ruled = list(their_shapes(family, hf, config))
    known = [rule.theirs for rule, _ in ruled]
    for rule, shape in ruled:
        name = located.get(rule.theirs)
        if name is None or shapes[name] != shape:
            got = "no such tensor" if name is None else quoted(list(shapes[name]))
            raise ValueError(
                f"{rule.theirs} must be a tensor of shape {list(shape)}, as the config says, got "
                f"{got}; use weights and config of one {family.name} language model"
            )
    # Tied weights may hold the unembedding too: the same numbers, or with_own_head unties them.
    extra = set(located) - set(known) - {HEAD}
    if extra:
        raise ValueError(unknown_name(f"{family.name} tensor", min(extra), known))
    made: set[str] = set()
    for rule, _ in ruled:
        theirs = tensor(located[rule.theirs])
        if theirs.is_meta or theirs.dtype not in DTYPES.values():
            got = "no numbers (it is on the meta device)" if theirs.is_meta else theirs.dtype
            raise ValueError(
                f"{rule.theirs} must be in memory, in 16 to 64-bit floating point, got {got}; "
                "load the model whole and without quantisation"
            )
        if dtype is None:
            dtype = theirs.dtype if theirs.dtype == torch.float64 else torch.float32
        if not rule.ours and theirs.any():
            raise ValueError(
                f"{rule.theirs} must be 0 in a HookedGPT, whose gated MLP has no place for it, got "
                "other numbers; analyse the model with TransformerBridge.boot_transformers"
            )
        if rule.ours:
            yield from zip(rule.ours, to_ours(rule, theirs, config, dtype), strict=True)
            made.update(rule.ours)
    for name, shape in expected_shapes(config):
        if name not in made and not (config.tie_word_embeddings and name == "unembed.W_U"):
            yield name, torch.zeros(shape, dtype=dtype)


def write_state(
    family: Family, hf: HFConfig, config: ModelConfig, state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    made = {}
    for rule in family.active_rules(hf, config.n_layers):
        if rule.ours:
            made[rule.theirs] = to_theirs(rule, [state[name] for name in rule.ours], config)
        else:
            made[rule.theirs] = state["unembed.b_U"].new_zeros(config.mlp_width)
    return made
