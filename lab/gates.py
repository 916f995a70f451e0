"""HeadGates: interventions that scale heads and fill in other values.

Every intervention on heads is z <- g * z + (1 - g) * fill, just before `hook_z` and W_O. A
HeadGates is frozen data that can be saved, compared and put into an address; `tensors` turns it
into the two tensors that forward multiplies with. Gates are not state of a model, so they are safe
in threads and batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lab.checks import (
    as_tuples,
    checked_fields,
    require,
    require_number,
    require_text,
    require_whole,
)
from lab.config import ModelConfig
from lab.naming import head_label, quoted, unknown_name
from lab.positions import Positions
from lab.shapes import HeadVectors


@runtime_checkable
class Configured(Protocol):
    """An object with a ModelConfig, such as a HookedGPT."""

    @property
    def config(self) -> ModelConfig:
        """The frozen description of the model."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """The mean z of every head over a named set of sequences, which replaces an ablated head's z.

    `z` is per position, or has pos = 1 when it is the mean over positions too.
    """

    name: str
    """Name of the set in tables, for example 'reversal/reference/256'."""
    sha256: str
    """Digest of the tokens, the model and whether means are per position, so that two sets of one
    name are not confused."""
    z: Float[Tensor, "layer pos head d_head"]
    """Mean z, before W_O."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Donors:
    """z of every head in several donor sequences, which replaces an ablated head's own.

    The effect of a resample ablation is the mean of the effects of the donors, never the effect of
    their mean.
    """

    name: str
    """Name of the set in tables, for example 'reversal/reference/8'."""
    sha256: str
    """Digest of the donors' tokens and the model, so that two sets of one name are not confused."""
    z: Float[Tensor, "donor layer pos head d_head"]
    """z of each donor, before W_O."""

    def references(self) -> tuple[Reference, ...]:
        """Return each donor as a Reference; the i-th is called name/i."""
        return tuple(
            Reference(name=f"{self.name}/{i}", sha256=self.sha256, z=z)
            for i, z in enumerate(self.z)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class GateTensors:
    """The tensors that forward multiplies with; axes of size 1 are broadcast."""

    g: Float[Tensor, "layer #batch #pos head"]
    """1 keeps a head's z, 0 replaces it by the fill."""
    fill: Float[Tensor, "layer #batch #fill_pos head d_head"] | None = None
    """What replaces z; None: zeros."""

    def __post_init__(self) -> None:
        """Check that the two tensors have the same layers and heads."""
        if self.fill is not None:
            same = self.fill.shape[::3] == self.g.shape[::3]
            require(same, "fill", "of as many layers and heads as g", tuple(self.fill.shape))

    def like(self, weight: Tensor) -> "GateTensors":
        """Return the same gates on a weight's device and in its dtype."""
        place = {"device": weight.device, "dtype": weight.dtype}
        fill = None if self.fill is None else self.fill.to(**place)
        return GateTensors(g=self.g.to(**place), fill=fill)

    def apply(
        self, layer: int, z: HeadVectors, positions: Positions, head_ids: tuple[int, ...]
    ) -> HeadVectors:
        """Return g * z + (1 - g) * fill for one layer.

        Args:
            layer: Layer of z.
            z: z of the heads, before W_O.
            positions: Position of each vector of z.
            head_ids: Original ids of z's heads: fewer than g has in a pruned model.
        """
        g, fill = self.of(layer, positions, head_ids)
        return g * z if fill is None else g * z + (1 - g) * fill

    def edit(
        self, layer: int, z: HeadVectors, positions: Positions, head_ids: tuple[int, ...]
    ) -> HeadVectors:
        """Return what `apply` adds to z, exactly 0 where the fill is z; see there."""
        g, fill = self.of(layer, positions, head_ids)
        return (g - 1) * (z if fill is None else z - fill)

    def of(
        self, layer: int, positions: Positions, head_ids: tuple[int, ...]
    ) -> tuple[Tensor, Tensor | None]:
        """Return g [#batch, #pos, head, 1] and the fill of one layer's positions and heads."""
        g = at_positions(self.g[layer], positions).unsqueeze(-1)
        fill = self.fill
        if fill is not None:
            fill = at_positions(fill[layer], positions)
        if len(head_ids) < g.shape[-2]:
            chosen = list(head_ids)
            g, fill = g[..., chosen, :], None if fill is None else fill[..., chosen, :]
        return g, fill


def check_gates(gates: Any, config: ModelConfig, batch: int) -> None:
    """Raise ValueError unless gates are GateTensors of a model's size; see GateTensors.

    Args:
        gates: The argument of forward.
        config: The model; heads have their original ids, also in a pruned model.
        batch: Sequences of this call.
    """
    if not isinstance(gates, GateTensors):
        got = list(gates.shape) if isinstance(gates, Tensor) else quoted(gates)
        raise ValueError(
            "gates must be HeadGates or GateTensors, "
            f"got {type(gates).__name__} {got}; see HeadGates.ablate"
        )
    sizes = (config.n_layers, config.n_heads)
    for name, values, rest in (("g", gates.g, ()), ("fill", gates.fill, (config.head_width,))):
        if values is None:
            continue
        shape = tuple(values.shape)
        fits = len(shape) == 4 + len(rest) and (shape[0], *shape[3:]) == (*sizes, *rest)
        if not (fits and (shape[1] == 1 or shape[1] == batch)):
            wanted = ", ".join(map(str, (sizes[0], f"1 or {batch}", "1 or pos", sizes[1], *rest)))
            raise ValueError(
                f"{name} of the gates must be of shape [{wanted}] for this model and batch, "
                f"got {list(shape)}"
            )


def check_fill(z: Tensor, config: ModelConfig, n_pos: int) -> None:
    """Raise ValueError unless z fits the heads of the model.

    Args:
        z: z of a Reference or of Donors: [..., layer, pos, head, d_head].
        config: The model.
        n_pos: Tokens of the ablated sequences.
    """
    layers, covered, heads, width = z.shape[-4:]
    wanted = (config.n_layers, config.n_heads, config.head_width)
    if (layers, heads, width) != wanted:
        raise ValueError(
            "the fill must come from a model with the same layers, heads and d_head "
            f"{wanted}, got {(layers, heads, width)}; compute it with this model"
        )
    if covered != 1 and covered < n_pos:
        raise ValueError(
            f"the fill must cover every position, got {covered} for sequences of "
            f"{n_pos}; take sequences of the same length, or the mean over positions"
        )


def at_positions(values: Tensor, positions: Positions) -> Tensor:
    """Take the values of these positions along axis 1, unless it is broadcast."""
    if values.shape[1] == 1:
        return values
    last = int(positions.max())
    if last >= values.shape[1]:
        raise ValueError(
            f"gates must cover every position, got {values.shape[1]} positions for a sequence of "
            f"{last + 1}; take a reference of the same length, or its mean over positions"
        )
    if positions.ndim == 1:
        return values[:, positions]
    rows = torch.arange(len(positions), device=values.device).unsqueeze(1)
    return values.expand(len(positions), *values.shape[1:])[rows, positions]


def whole_numbers(values: Any) -> Any:
    """Convert integers of NumPy, pandas or torch to Python ints; return anything else unchanged."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        return values
    numbers = []
    for value in values:
        try:
            numbers.append(value if isinstance(value, bool) else index(value))
        except TypeError:
            numbers.append(value)
    return tuple(numbers)


@dataclass(frozen=True, kw_only=True)
class HeadGates:
    """A set of heads scaled by one value: frozen, hashable, JSON-able.

    Useful pattern: `model(tokens, gates=HeadGates.ablate([(0, 1)], like=model))`.
    """

    heads: tuple[tuple[int, int], ...]
    """(layer, head) pairs, sorted, in the ids of the original model."""
    value: float = 0.0
    """The gate g of these heads; every other head has 1."""
    positions: tuple[int, ...] | None = None
    """Positions at which the gate acts; None: all."""
    fill: str | None = None
    """Name of the Reference that replaces z; None: zeros."""
    fill_sha256: str | None = None
    """Digest of that reference."""

    def __post_init__(self) -> None:
        """Check the values and sort the heads."""
        require(isinstance(self.heads, tuple), "heads", "(layer, head) pairs", self.heads)
        for pair in self.heads:
            is_pair = isinstance(pair, tuple) and len(pair) == 2
            require(is_pair, "a head", "a (layer, head) pair", pair)
            for number in pair:
                require_whole("a layer or head number", number, 0)
        require_number("value", self.value, 0.0, 1.0)
        if self.positions is not None:
            require(isinstance(self.positions, tuple), "positions", "numbers", self.positions)
        for position in self.positions or ():
            require_whole("a position", position, 0)
        for name in ("fill", "fill_sha256"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name))
        object.__setattr__(self, "heads", tuple(sorted({(a, b) for a, b in self.heads})))
        if self.positions is not None:
            object.__setattr__(self, "positions", tuple(sorted(set(self.positions))))

    @classmethod
    def ablate(
        cls,
        heads: Iterable[Sequence[int]],
        *,
        like: Configured,
        fill: Reference | None = None,
        positions: Sequence[int] | None = None,
        value: float = 0.0,
    ) -> "HeadGates":
        """Describe the ablation of some heads of a model.

        Pairs may be lists or rows of a table or array, with integers of any library.

        >>> from lab import HookedGPT, ModelConfig
        >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4))
        >>> gates = HeadGates.ablate([(0, 1)], like=model)
        >>> model(torch.tensor([[0, 1, 2]]), gates=gates).shape, gates.label
        (torch.Size([1, 3, 5]), 'L0H1')

        Raises:
            ValueError: The model has no such head.
        """
        gates = cls(
            heads=tuple(whole_numbers(pair) for pair in heads),
            value=value,
            positions=None if positions is None else whole_numbers(positions),
            fill=None if fill is None else fill.name,
            fill_sha256=None if fill is None else fill.sha256,
        )
        gates.check(like.config)
        return gates

    @property
    def label(self) -> str:
        """The heads, as labels.

        >>> HeadGates(heads=((1, 3), (0, 1))).label
        'L0H1,L1H3'
        """
        return ",".join(head_label(layer, head) for layer, head in self.heads)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that from_dict reads back."""
        return {
            "heads": [list(pair) for pair in self.heads],
            "value": self.value,
            "positions": None if self.positions is None else list(self.positions),
            "fill": self.fill,
            "fill_sha256": self.fill_sha256,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "HeadGates":
        """Build from plain data; an unknown key is an error."""
        values = checked_fields(cls, data)
        for name in ("heads", "positions"):
            values[name] = as_tuples(values.get(name))
        return cls(**values)

    def check(self, config: ModelConfig) -> None:
        """Raise ValueError unless the model has all these heads."""
        known = {head_label(layer, head) for layer, head in config.heads()}
        for layer, head in self.heads:
            label = head_label(layer, head)
            if label not in known and layer < config.n_layers and head < config.n_heads:
                raise ValueError(
                    f"head {label} was pruned from this model; name a head that it has"
                )
            if label not in known:
                raise ValueError(unknown_name("head", label, known))
        for position in self.positions or ():
            require(
                position < config.n_ctx, "a position", f"below n_ctx = {config.n_ctx}", position
            )

    def tensors(self, model: Configured, references: Iterable[Reference] = ()) -> GateTensors:
        """Return the tensors that forward multiplies with, in float64 on the CPU.

        Forward rounds them to the dtype of the weights, once.

        Args:
            model: The model whose heads these are.
            references: References in which the fill is looked up by name and digest.

        Raises:
            ValueError: No such head, or the fill is not among the references.
        """
        config = model.config
        self.check(config)
        n_pos = 1 if self.positions is None else config.n_ctx
        g = torch.ones(config.n_layers, 1, n_pos, config.n_heads, dtype=torch.float64)
        where = slice(None) if self.positions is None else list(self.positions)
        for layer, head in self.heads:
            g[layer, 0, where, head] = self.value
        if self.fill is None:
            return GateTensors(g=g)
        for reference in references:
            if (reference.name, reference.sha256) == (self.fill, self.fill_sha256):
                return GateTensors(g=g, fill=reference.z.unsqueeze(1))
        raise ValueError(
            f"gates filled from {quoted(self.fill)} need that reference; "
            "pass gates.tensors(model, [reference]) instead"
        )
