"""How differently two heads attend: the Jensen-Shannon distance of their rows.

Heads whose distance is near 0 attend to the same keys and can stand in for each other. Every pair
needs whole rows of both heads, so rows are built a few at a time, of all heads together.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lab.naming import head_label, quoted, unknown_name
from lab.row_kernels import SCORES_AT_ONCE
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.attention.targets import ProbeInput
from probes.reading.observed_model import (
    ReadableModel,
    head_ids,
    observe_layers,
    probe_input,
    provenance,
    slices_for,
)
from probes.reading.pattern_reads import LayerReads
from probes.schemas.heads import DISTANCES
from probes.tables import make_table

TOKENS_AT_ONCE = 2_048
"""Tokens whose queries and keys (or patterns) of all layers are held at once."""

Heads = Sequence[tuple[int, int]]
Rows = Float[Tensor, "column batch row key_pos"]


def head_distances(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    heads: Collection[tuple[int, int]] | None = None,
    *,
    attention_mask: GivenMask | None = None,
) -> pd.DataFrame:
    """Measure how differently heads attend: one row per pair of heads, each pair once.

    distance = mean over sequences and rows of H((a + b) / 2) - (H(a) + H(b)) / 2, where a and b are
    the two heads' probabilities in a row and H the entropy: 0 where they are equal, ln 2 where they
    share no key, in nats. Rows that see one key only, where all heads are equal, are left out.

    The work grows with the square of the number of heads: 270 heads have 36,315 pairs, which take
    a core two seconds for every 5 sequences of 50 tokens.

    Range: nats, from 0 (equal) to ln 2 = 0.693 (no key in common).

    Source: Clark et al. 2019, What does BERT look at? (there summed over tokens, not averaged).

    Caveat: Heads that look alike may write different things. Many heads rest on the first key, and
    are alike there.

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: A task's batch, or plain tokens.
        heads: (layer, head) of the heads to compare; None: all.
        attention_mask: True (or 1) at real tokens. None: all are real.

    Raises:
        ValueError: The input is empty, or there is no such head.
    """
    x = probe_input(model, batch_or_tokens, attention_mask=attention_mask)
    names, sums = distance_totals(model, x, heads)
    rows = distance_rows(x)
    n_rows = int(rows.sum())
    one, other = np.triu_indices(len(names), k=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(dim=0).numpy()[one, other] / n_rows
    layer, head = np.array(names, dtype=np.int64).reshape(-1, 2).T
    return make_table(
        {
            "layer": layer[one],
            "head": head[one],
            "other_layer": layer[other],
            "other_head": head[other],
            "distance": mean,
            "n_sequences": np.full(len(one), int((rows > 0).sum())),
            "n_rows": np.full(len(one), n_rows),
            "unit": np.full(len(one), "nats"),
        },
        DISTANCES,
        provenance(model, x.tokens),
    )


def distance_totals(
    model: ReadableModel, x: ProbeInput, heads: Collection[tuple[int, int]] | None = None
) -> tuple[Heads, Float64[Tensor, "batch column column"]]:
    """Return the compared heads, and their `distance_sums` on every sequence.

    Raises:
        ValueError: There is no such head.
    """
    names: list[tuple[int, int]] = []
    parts: list[Tensor] = []
    for part in slices_for(model, x, TOKENS_AT_ONCE):
        layers = held_layers(model, part)
        known = [(layer, head) for layer, ids, _ in layers for head in ids]
        names = known if heads is None else sorted(set(map(require_pair, heads)))
        for layer, head in names:
            if (layer, head) not in known:
                labels = [head_label(*pair) for pair in known]
                raise ValueError(unknown_name("head", head_label(layer, head), labels))
        chosen = [
            (reads, [ids.index(head) for where, head in names if where == layer])
            for layer, ids, reads in layers
        ]
        parts.append(distance_sums([(reads, some) for reads, some in chosen if some], part))
    return names, torch.cat(parts)


def require_pair(head: Any) -> tuple[int, int]:
    """Return a head as (layer, head), or say what was given instead."""
    pair = isinstance(head, tuple | list) and len(head) == 2
    if not pair or not all(isinstance(number, int | np.integer) for number in head):
        raise ValueError(
            f"heads must be pairs (layer, head), got {quoted(head)} among them; "
            "lab.naming.parse_head reads L0H3"
        )
    return int(head[0]), int(head[1])


def held_layers(
    model: ReadableModel, x: ProbeInput
) -> list[tuple[int, tuple[int, ...], LayerReads]]:
    """Return (layer, head ids, reads) of all layers, kept beyond the forward pass."""
    layers: list[tuple[int, tuple[int, ...], LayerReads]] = []

    def observe(layer: int, reads: LayerReads) -> None:
        layers.append((layer, head_ids(model, layer, reads.n_heads), reads))

    observe_layers(model, x.tokens, observe, x.real)
    return layers


def distance_rows(x: ProbeInput) -> Int[Tensor, " batch"]:
    """Return how many rows of each sequence are compared: those that see more than one key."""
    return (x.keys_seen().expand(x.tokens.shape) > 1).sum(dim=1).cpu()


def distance_sums(
    layers: Sequence[tuple[LayerReads, list[int]]], x: ProbeInput
) -> Float64[Tensor, "batch column column"]:
    """Return the distance of each pair of heads, summed over the rows of each sequence, on the CPU.

    Args:
        layers: The reads of each layer on the same sequences, and which heads of it to compare, by
            their place in the layer.
        x: The sequences.
    """
    batch, n_pos = x.tokens.shape
    n_heads = sum(len(heads) for _, heads in layers)
    total = torch.zeros(batch, n_heads, n_heads, dtype=torch.float64)
    counted = (x.keys_seen().expand(batch, -1) > 1).cpu()
    step = max(1, SCORES_AT_ONCE // max(1, batch * n_heads * n_pos))
    tiles = zip(*(reads.tiles(step) for reads, _ in layers), strict=True)
    for several in tiles:
        start = several[0][0]
        parts = [
            tile[:, heads].transpose(0, 1).cpu()
            for (_, tile), (_, heads) in zip(several, layers, strict=True)
        ]
        # Rows of padding are NaN; made equal in all heads, they add nothing.
        rows = torch.cat(parts)
        rows = rows.where(counted[:, start : start + rows.shape[2], None], 0.0)
        total += tile_distances(rows)
    return total


def tile_distances(rows: Rows) -> Float64[Tensor, "batch column column"]:
    """Return the distance of each pair of heads, summed over some rows of each sequence."""
    n_heads, batch = rows.shape[:2]
    entropy = torch.special.entr(rows).sum(dim=-1)
    found = torch.zeros(batch, n_heads, n_heads, dtype=torch.float64)
    halved = rows / 2.0
    for head in range(n_heads - 1):
        mixed = torch.special.entr(halved[head + 1 :] + halved[head]).sum(dim=-1)
        own = (entropy[head + 1 :] + entropy[head]) / 2.0
        apart = (mixed - own).clamp(min=0.0, max=math.log(2.0))
        found[:, head, head + 1 :] = apart.sum(dim=-1).double().T
    return found + found.mT
