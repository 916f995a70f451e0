"""Models whose heads are known, because their weights were written down: `plant`.

What a head attends to and writes is `probes.planted.one_hot_codes`; here these maps become the
weights of a HookedGPT, in a rotated basis on request, and exactly so under LayerNorm, RMSNorm,
grouped-query attention and rotary positions.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional as F

from lab.checks import require, require_seed, require_whole
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.naming import head_label
from lab.tasks.base import Task
from lab.tasks.registry import get_task
from lab.vocab import SPECIAL_SYMBOLS
from probes.planted.heads import PlantedHead
from probes.planted.one_hot_codes import (
    ROTARY_BASE,
    ROTARY_WIDTH,
    Codes,
    Map,
    key_map,
    make_codes,
    output_map,
    query_map,
    value_map,
    width,
)
from probes.schemas.labels import PLANTED
from probes.tables import make_table

Norm = Literal["LN", "RMS"] | None
Basis = Float64[Tensor, "new old"]
Layers = tuple[tuple[PlantedHead, ...], ...]
Weights = dict[str, Tensor]
HeadMap = tuple[Float64[Tensor, "d_model d_head"], Float64[Tensor, " d_head"]]
"""W and b of a head's queries, keys or values."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Planted:
    """A model, and what is known of its heads."""

    model: HookedGPT
    """The model, in float64 by default."""
    layers: Layers
    """Its heads, layer by layer."""
    codes: Codes
    """What its residual stream means, before any rotation."""
    rotated: bool
    """Whether stream and heads are rotated."""

    @property
    def task(self) -> Task:
        """The reversal task that its reversal heads answer."""
        n_symbols = self.codes.d_vocab - len(SPECIAL_SYMBOLS)
        return get_task("reversal", length=self.codes.word, n_symbols=n_symbols)

    @property
    def truth(self) -> pd.DataFrame:
        """The table of what each head is: one row a head."""
        heads = [
            (layer, index, head)
            for layer, row in enumerate(self.layers)
            for index, head in enumerate(row)
        ]
        columns = {
            "layer": [layer for layer, _, _ in heads],
            "head": [index for _, index, _ in heads],
            "truth": [head.label for _, _, head in heads],
            "kind": [head.kind for _, _, head in heads],
            "variant": [head.variant for _, _, head in heads],
            "beta": [head.beta for _, _, head in heads],
            "distance": [head.distance for _, _, head in heads],
            "parts": [parts_text(head) for _, _, head in heads],
            "silent": [head.writes == "nothing" for _, _, head in heads],
            "redundant_with": [self.twins(layer, index) for layer, index, _ in heads],
        }
        return make_table(columns, PLANTED, {"model": self.model.config.to_dict()})

    def twins(self, layer: int, index: int) -> str:
        """Return the heads of the same layer that look where a head looks, written L0H1,L0H2."""
        looks = [dataclasses.replace(h, writes="mark", variant="") for h in self.layers[layer]]
        same = [i for i, look in enumerate(looks) if look == looks[index] and i != index]
        return ",".join(head_label(layer, i) for i in same)


def plant(
    layers: Sequence[Sequence[PlantedHead]],
    *,
    word: int = 8,
    d_vocab: int = 28,
    n_ctx: int | None = None,
    norm: Norm = None,
    rotary: bool = False,
    kv_heads: int | None = None,
    rotate: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Planted:
    """Build a model whose heads are the given ones.

    Every visible key that is no target scores 0, so a head of gain beta with one target puts
    e^beta / (e^beta + q) on it in row q, exactly: see `probes.planted.patterns`. Under a norm this
    stays exact because every position holds equally many ones, so that the norm is one known affine
    map; heads that write tokens or places have to be sharp for it (beta 20 or more).

    >>> planted = plant([[PlantedHead(kind="previous"), PlantedHead(kind="uniform")]])
    >>> planted.truth["truth"].tolist()
    ['previous', 'uniform']

    Args:
        layers: The heads of each layer, equally many. An induction head needs a head of an earlier
            layer that looks at q - 1 and writes tokens; a pointer, one that looks at the earlier
            copy and writes places.
        word: n of the reversal task, whose sequences have 2n + 2 tokens.
        d_vocab: Number of token ids; ids 0 and 1 are BOS and SEP.
        n_ctx: Longest sequence; None: 2n + 2.
        norm: The norm before attention and unembedding.
        rotary: Rotary positions in place of codes of places.
        kv_heads: Key and value heads, shared by equally many heads; None: one each.
        rotate: Seed of random rotations of the residual stream and of the heads' insides; None:
            every code has its own coordinate.
        dtype: What the weights are rounded to.

    Raises:
        ValueError: Layers of different sizes, a head that cannot be built in such a model, or one
            that reads what no earlier head writes.
    """
    rows = tuple(tuple(row) for row in layers)
    require_whole("word", word, 1)
    n_ctx = 2 * word + 2 if n_ctx is None else n_ctx
    require(len({len(row) for row in rows}) == 1, "layers", "of one size", [*map(len, rows)])
    check_heads(rows, norm=norm, rotary=rotary)
    codes = make_codes(
        d_vocab=d_vocab,
        n_ctx=n_ctx,
        word=word,
        rotary=rotary,
        marks=sum(map(len, rows)),
        written={head.writes for row in rows for head in row},
    )
    config = ModelConfig(
        n_layers=len(rows),
        n_heads=len(rows[0]),
        n_key_value_heads=kv_heads,
        d_model=width(codes.stream),
        d_head=max(width(codes.key), width(codes.value)),
        d_vocab=d_vocab,
        n_ctx=n_ctx,
        attn_only=True,
        normalization_type=norm,
        positional_embedding_type="rotary" if rotary else "standard",
        rotary_dim=ROTARY_WIDTH if rotary else None,
        rotary_base=ROTARY_BASE,
    )
    draw = None
    if rotate is not None:
        require_seed(rotate)
        draw = torch.Generator().manual_seed(rotate)
    model = HookedGPT(config).double()
    model.load_state_dict(model.state_dict() | planted_weights(rows, codes, config, draw))
    return Planted(model=model.to(dtype), layers=rows, codes=codes, rotated=rotate is not None)


def parts_text(head: PlantedHead) -> str:
    """Return what a mixed head is made of, in the words of the labels table; empty: one thing.

    >>> parts_text(PlantedHead(kind="mixed", share=0.7))
    'previous 0.70 + first 0.30'
    """
    if head.kind != "mixed":
        return ""
    shares = (head.share, 1.0 - head.share)
    return " + ".join(f"{n} {share:.2f}" for n, share in zip(head.parts, shares, strict=True))


def check_heads(rows: Layers, *, norm: Norm, rotary: bool) -> None:
    """Raise ValueError for a head that could not do in such a model what it is meant to."""
    written: list[str] = []
    for layer, row in enumerate(rows):
        for index, head in enumerate(row):
            at, kind = head_label(layer, index), head.entry
            if rotary and (kind.absolute or head.writes == "places"):
                raise ValueError(
                    f"{at} must be a head without places in a model with rotary positions, got "
                    f"{head.kind!r} that writes {head.writes}; plant it with rotary=False"
                )
            if kind.needs is not None and kind.needs not in written:
                raise ValueError(
                    f"{at}, of kind {head.kind!r}, must follow a head that writes {kind.needs}, "
                    f"got none; plant one with writes={kind.needs!r} in an earlier layer"
                )
            marks = [i for i, first in enumerate(rows[0]) if first.writes == "mark"]
            if head.kind == "backup" and (layer == 0 or head.primary not in marks):
                raise ValueError(
                    f"the primary of the backup head {at} must be a head of layer 0 that marks its "
                    f"presence, one of {marks}, got {head.primary}; plant the backup in layer 1"
                )
            if norm is not None and head.writes.endswith("copy") and layer < len(rows) - 1:
                raise ValueError(
                    f"{at}, which copies, must be in the last layer of a model with a norm, got "
                    f"layer {layer}; leave the norm out"
                )
        written += [head.writes for head in row]
    for what in ("tokens", "places"):
        require(written.count(what) <= 1, f"heads that write {what}", "one", written.count(what))


def planted_weights(
    rows: Layers, codes: Codes, config: ModelConfig, draw: torch.Generator | None
) -> Weights:
    """Return the weights that a model of planted heads does not start with, in float64.

    Args:
        rows: The heads.
        codes: Where the codes stand.
        config: The model's.
        draw: Where rotations come from; None: none.
    """
    stream, norm = codes.stream, config.normalization_type
    basis = stream_basis(config.d_model, draw, keep_mean=norm == "LN")
    weights = {"embed.W_E": one_hot_rows(stream["token"], config.d_model) @ basis}
    if not codes.rotary:
        weights["pos_embed.W_pos"] = one_hot_rows(stream["place"], config.d_model) @ basis
    weights["unembed.W_U"] = basis.T @ one_hot_rows(stream["said"], config.d_model).T
    ones = 1 if codes.rotary else 2  # how many each position holds: its token, its place
    for layer, row in enumerate(rows):
        of_one_code = through_norm(norm, ones / config.d_model, config.eps)
        of_layer = layer_weights(row, layer * len(row), codes, config, of_one_code, basis, draw)
        weights |= {f"blocks.{layer}.attn.{name}": value for name, value in of_layer.items()}
        ones += sum(head.writes != "nothing" for head in row)
    return weights


def layer_weights(
    row: tuple[PlantedHead, ...],
    first_mark: int,
    codes: Codes,
    config: ModelConfig,
    reading: Callable[[Map], Map],
    basis: Basis,
    draw: torch.Generator | None,
) -> Weights:
    """Return the weights of one layer's attention.

    Args:
        row: Its heads.
        first_mark: Number of its first head among all heads of the model.
        codes: Where the codes stand.
        config: The model's.
        reading: Turns a map of codes into one of normalised codes.
        basis: Rotation of the stream.
        draw: Where the rotations inside the heads come from; None: none.
    """
    d_head = config.head_width
    fixed = ROTARY_WIDTH if codes.rotary else 0
    inside = [
        (head_basis(d_head, draw, fixed=fixed), head_basis(d_head, draw))
        for _ in range(config.kv_heads)
    ]

    def into(one: Map, turn: Basis) -> HeadMap:
        W, b = reading(one)
        padding = (0, d_head - len(b))
        return basis.T @ F.pad(W, padding) @ turn, F.pad(b, padding) @ turn

    queries, outputs = [], []
    for index, head in enumerate(row):
        looks, values = inside[config.kv_head(index)]
        W, b = into(query_map(head, codes), looks)
        queries.append((W * d_head**0.5, b * d_head**0.5))  # the scores divide by it
        written = output_map(head, first_mark + index, codes)
        written = F.pad(written, (0, 0, 0, d_head - len(written)))
        outputs.append(values.T @ written @ basis)
    stacked = {"W_O": torch.stack(outputs)}
    keys = [into(key_map(codes), looks) for looks, _ in inside]
    moved_values = [into(value_map(codes), values) for _, values in inside]
    for letter, maps in (("Q", queries), ("K", keys), ("V", moved_values)):
        stacked[f"W_{letter}"] = torch.stack([W for W, _ in maps])
        stacked[f"b_{letter}"] = torch.stack([b for _, b in maps])
    return stacked


def through_norm(norm: Norm, share: float, eps: float) -> Callable[[Map], Map]:
    """Return what turns a map of codes into the same map of normalised codes.

    Where every position holds the same share of ones among its numbers, LayerNorm subtracts that
    share from every number and divides by sqrt(share (1 - share) + eps); RMSNorm only divides, by
    sqrt(share + eps). Both are undone exactly.
    """
    if norm is None:
        return lambda one: one
    mean = share if norm == "LN" else 0.0
    scale = math.sqrt(share - mean**2 + eps)

    def read(one: Map) -> Map:
        W, b = one
        return W * scale, b + mean * W.sum(dim=0)

    return read


def one_hot_rows(block: slice, width: int) -> Float64[Tensor, "row d_model"]:
    """Return a row for each code of a block of the stream."""
    return torch.eye(width, dtype=torch.float64)[block]


def stream_basis(width: int, draw: torch.Generator | None, *, keep_mean: bool) -> Basis:
    """Return a rotation of the stream, one that leaves every mean as it is where a norm takes it.

    Such a rotation turns what is orthogonal to (1, 1, .. 1), and nothing else.
    """
    if not keep_mean or draw is None:
        return head_basis(width, draw)
    start = torch.randn(width, width, generator=draw, dtype=torch.float64)
    start[:, 0] = 1.0
    frame = torch.linalg.qr(start).Q
    return frame @ head_basis(width, draw, fixed=1) @ frame.T


def head_basis(width: int, draw: torch.Generator | None, *, fixed: int = 0) -> Basis:
    """Return a random rotation (or reflection) that leaves the first coordinates as they are."""
    basis = torch.eye(width, dtype=torch.float64)
    if draw is not None:
        rest = width - fixed
        numbers = torch.randn(rest, rest, generator=draw, dtype=torch.float64)
        basis[fixed:, fixed:] = torch.linalg.qr(numbers).Q
    return basis
