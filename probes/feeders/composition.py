"""Which later head could read what an earlier head writes, by the weights alone.

A composition score is weak evidence: it knows neither the norms' division, nor the MLPs between,
nor which tokens the heads attend to. What breaks without the earlier head is in
`probes.feeders.scores`.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float64
from torch import Tensor

from lab.checks import require_choice
from lab.naming import head_label, unknown_name
from probes.attention.distances import require_pair
from probes.reading.observed_model import ReadableModel, head_ids, provenance, require_finite
from probes.schemas.cause import COMPOSITION
from probes.tables import rows_table
from probes.writing.head_weights import (
    block_of,
    head_weight,
    key_heads,
    output_weights,
    part_of,
    through_norm,
    value_weights,
    written_shape,
)

Kind = Literal["Q", "K", "V"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Whether the later head's queries, keys or values do the reading."""
RANDOM_PAIRS = 64
"""Pairs of random heads whose mean score is subtracted."""

Write = Float64[Tensor, "writer d_value d_model"]
Read = Float64[Tensor, "reader d_model d_other"]


def composition_scores(
    model: ReadableModel,
    kinds: Iterable[str] = KINDS,
    *,
    readers: Collection[tuple[int, int]] | None = None,
    writers: Collection[tuple[int, int]] | None = None,
) -> pd.DataFrame:
    """Score how much each head reads of what each earlier head writes: one row a pair and kind.

    score = |W_OV of the writer . R| / (|W_OV| |R|) in Frobenius norms, from 0 to 1, where R is
    W_QK of the reader (Q), W_QK transposed (K) or its W_OV (V), and W_OV = W_V W_O, W_QK =
    W_Q W_K^T. The weights of the norms before attention are folded in, as `fold_ln` does.
    excess = score - chance, where chance is the mean score of random matrices of these shapes.
    A grouped-query head reads with the key and value weights of its group. Rotary positions turn q
    against k: scores of Q and K are those at distance 0.

    NaN: a head whose weights are all 0.

    Range: from 0 to 1; random heads score about 1 / sqrt(d_model).

    Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.

    Caveat: Weak evidence: the division of norms, MLPs and where the heads attend are left out, and
    so are rotary positions. Ablate the earlier head and observe the later one.

    Args:
        model: A HookedGPT, or a TransformerLens model that shows its weights head by head.
        kinds: Any of "Q", "K" and "V".
        readers: (layer, head) of the later heads; None: all.
        writers: (layer, head) of the earlier heads; None: all.

    Raises:
        ValueError: An unknown kind, no such head, or the model does not show its weights, or one
            of them is NaN or infinite.
    """
    wanted = tuple(kinds)
    for kind in wanted:
        require_choice("composition", kind, KINDS)
    require_finite(model)
    heads = heads_by_layer(model)
    reading = chosen_heads(readers, heads, "reader")
    writing = chosen_heads(writers, heads, "writer")
    rows: list[dict[str, Any]] = []
    written: dict[int, Write] = {}
    for layer, here in reading.items():
        for earlier in writing:
            if earlier < layer and earlier not in written:
                written[earlier] = writes_of(model, earlier)[places(heads, writing, earlier)]
        for kind in wanted:
            read = reads_of(model, layer, kind)[places(heads, reading, layer)]
            for earlier, write in written.items():
                if earlier >= layer:
                    continue
                scores = pair_scores(write, read).numpy()
                chance = random_score(*write.shape[1:], read.shape[2])
                rows += [
                    {
                        "layer": layer,
                        "head": head,
                        "from_layer": earlier,
                        "from_head": other,
                        "kind": kind,
                        "score": scores[j, i],
                        "chance": chance,
                        "excess": scores[j, i] - chance,
                        "unit": "score",
                    }
                    for i, head in enumerate(here)
                    for j, other in enumerate(writing[earlier])
                ]
    return rows_table(rows, COMPOSITION, provenance(model, None))


def heads_by_layer(model: ReadableModel) -> dict[int, tuple[int, ...]]:
    """Return the original ids of the heads of each layer that has one."""
    found = {}
    for layer in range(len(part_of(model, "blocks"))):
        ids = head_ids(model, layer, len(output_weights(model, layer)))
        if ids:
            found[layer] = ids
    return found


def chosen_heads(
    heads: Collection[tuple[int, int]] | None,
    known: Mapping[int, tuple[int, ...]],
    what: str,
) -> dict[int, tuple[int, ...]]:
    """Return the chosen heads by layer, in order; None: all that are known.

    Raises:
        ValueError: A head is unknown.
    """
    if heads is None:
        return dict(known)
    found: dict[int, list[int]] = {}
    for layer, head in sorted({require_pair(head) for head in heads}):
        if head not in known.get(layer, ()):
            labels = [head_label(place, each) for place, ids in known.items() for each in ids]
            raise ValueError(unknown_name(what, head_label(layer, head), labels))
        found.setdefault(layer, []).append(head)
    return {layer: tuple(ids) for layer, ids in found.items()}


def places(
    heads: Mapping[int, tuple[int, ...]], chosen: Mapping[int, tuple[int, ...]], layer: int
) -> list[int]:
    """Return the indices of the chosen heads of a layer in its weights."""
    return [heads[layer].index(head) for head in chosen[layer]]


def writes_of(model: ReadableModel, layer: int) -> Write:
    """Return matrices with the norms of every head's W_V W_O times anything on the right.

    W_V is replaced by the triangle of its QR decomposition: d_value rows in the place of d_model.
    """
    values, _ = value_weights(model, layer)
    values = through_norm(part_of(block_of(model, layer), "ln1"), values)
    triangle = torch.linalg.qr(values, mode="r").R
    return triangle @ output_weights(model, layer).cpu().double()


def reads_of(model: ReadableModel, layer: int, kind: str) -> Read:
    """Return matrices with the norms of what every head reads, times anything on the left."""
    norm = part_of(block_of(model, layer), "ln1")
    if kind == "V":
        values, _ = value_weights(model, layer)
        return through_norm(norm, values) @ written_shape(output_weights(model, layer))
    queries, keys = head_weight(model, layer, "W_Q"), head_weight(model, layer, "W_K")
    keys = keys[key_heads(model, layer, len(queries), len(keys))]
    own, other = (queries, keys) if kind == "Q" else (keys, queries)
    triangle = torch.linalg.qr(through_norm(norm, other), mode="r").R
    return through_norm(norm, own) @ triangle.mT


def pair_scores(write: Write, read: Read) -> Float64[Tensor, "writer reader"]:
    """Return |W R| / (|W| |R|) of every writer and reader."""
    product = einsum(write, read, "writer v m, reader m o -> writer reader v o")
    norms = torch.outer(write.flatten(1).norm(dim=1), read.flatten(1).norm(dim=1))
    return product.flatten(2).norm(dim=2) / norms.where(norms > 0, math.nan)


@lru_cache(maxsize=16)
def random_score(d_value: int, d_model: int, d_other: int) -> float:
    """Return the mean score of RANDOM_PAIRS pairs of heads whose weights are normal numbers.

    Just below 1 / sqrt(d_model), the root of its mean square: the wider the heads, the closer.
    """
    generator = torch.Generator().manual_seed(0)
    scores = []
    for _ in range(RANDOM_PAIRS):
        sizes = ((d_model, d_value), (d_value, d_model), (d_model, d_other), (d_other, d_model))
        values, output, own, other = (
            torch.randn(1, *size, dtype=torch.float64, generator=generator) for size in sizes
        )
        write = torch.linalg.qr(values, mode="r").R @ output
        read = own @ torch.linalg.qr(other.mT, mode="r").R.mT
        scores.append(pair_scores(write, read).item())
    return float(np.mean(scores))
