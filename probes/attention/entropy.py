"""How widely each head spreads its attention, position by position.

Entropy is in nats. A head that rests on key 0 looks focused whatever it does with the rest, so
every row is measured a second time with key 0 hidden: that is the sink-free entropy.
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.attention.targets import ProbeInput
from probes.reading.observed_model import (
    ReadableModel,
    head_ids,
    measured_layers,
    probe_input,
    provenance,
)
from probes.reading.pattern_reads import LayerReads
from probes.schemas.heads import ENTROPY
from probes.tables import make_table

SILENT_BELOW = 1e-3
"""A row that leaves less than this beside key 0 is silent: what it does with the rest is noise."""

SUMS = ("entropy", "sink_mass", "sink_free", "silent", "real", "rest", "most", "most_sink_free")
"""What is summed over sequences for every row: real counts the rows that are no padding, rest those
of them that see more than key 0, and the last two are the entropies of a head that spreads evenly.
"""

RowSums = Float64[Tensor, "sums head query_pos"]


def entropy_profile(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    *,
    attention_mask: GivenMask | None = None,
) -> pd.DataFrame:
    """Measure the entropy of every row: one row per layer, head and query position.

    H(q) = -sum_k A[q, k] ln A[q, k], mean over sequences, in nats, in 0 .. ln(n); normalised =
    H(q) / ln(n), where the row sees n keys: q + 1 in a causal model, all in a bidirectional one;
    effective_keys = exp(H(q)). sink_free is the entropy of the row with key 0 hidden and the others
    renormalised, over the sequences whose row is not silent. NaN: the normalised values where only
    one key is visible, everything sink-free where only key 0 is, or where all are silent.

    Range: nats, from 0 to ln(n); normalised from 0 to 1.

    Source: Clark et al. 2019, What does BERT look at?; sink-free after Gu et al. 2025.

    Caveat: A head that rests on the first key looks focused: with 0.9 there and the rest spread
    over 63 keys, normalised is 0.18 and sink-free 1.00. Rows with few keys are coarse.

    >>> from probes.planted import PlantedHead, plant
    >>> model = plant([[PlantedHead(kind="previous"), PlantedHead(kind="uniform")]]).model
    >>> table = entropy_profile(model, torch.tensor([[2, 3, 4]]))
    >>> table["effective_keys"].round(2).tolist()  # of head 0, then of head 1
    [1.0, 1.0, 1.0, 1.0, 2.0, 3.0]

    Args:
        model: A HookedGPT or any TransformerLens model.
        batch_or_tokens: A task's batch, or plain tokens.
        attention_mask: True (or 1) at real tokens. A row counts in the sequences where it is real,
            key 0 is the first real one, and ln(n) is the mean over those sequences; query_pos stays
            the place in the tensor, padding included. None: all are real.

    Raises:
        ValueError: The batch is empty.
    """
    x = probe_input(model, batch_or_tokens, attention_mask=attention_mask)
    layers = measured_layers(model, x, lambda _, reads, part: row_sums(reads, part), torch.add)
    return entropy_table(model, x, layers)


def entropy_table(
    model: ReadableModel, x: ProbeInput, layers: Mapping[int, list[Tensor]]
) -> pd.DataFrame:
    """Return the table of `entropy_profile` from what `row_sums` found.

    Args:
        model: The model.
        x: The whole input.
        layers: The sums of each layer, a slice of the input after the other.
    """
    n_sequences, n_pos = x.tokens.shape
    seen = x.keys_seen()[0].cpu().double().numpy() if x.real is None else None
    parts = [
        profile_columns(layer, head_ids(model, layer, found[0].shape[1]), sum_of(found), seen)
        for layer, found in layers.items()
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["query_pos"] = np.tile(np.arange(n_pos), len(columns["layer"]) // n_pos)
    columns["n_sequences"] = np.full(len(columns["layer"]), n_sequences)
    columns["unit"] = np.full(len(columns["layer"]), "nats")
    return make_table(
        {name: columns[name] for name in ENTROPY.names}, ENTROPY, provenance(model, x.tokens)
    )


def sum_of(parts: list[Tensor]) -> Float64[np.ndarray, "sums head query_pos"]:
    """Return what `row_sums` found over all slices."""
    return torch.stack(parts).sum(dim=0).numpy()


def row_sums(reads: LayerReads, x: ProbeInput) -> RowSums:
    """Return SUMS of one layer over the batch, on the CPU."""
    batch, n_pos = x.tokens.shape
    rows = torch.arange(n_pos, device=reads.device).expand(batch, -1)
    sink_mass = reads.cells(rows, x.first_real().expand(-1, n_pos)).cpu().double()
    seen = x.keys_seen().cpu().double().unsqueeze(1).expand_as(sink_mass)
    real, rest = seen >= 1.0, seen >= 2.0
    silent = rest & (1.0 - sink_mass < SILENT_BELOW)
    loud = rest & ~silent
    # Rows of padding are NaN: where, because NaN times 0 is NaN.
    terms = [
        torch.where(real, reads.entropy().cpu().double(), 0.0),
        torch.where(real, sink_mass, 0.0),
        torch.where(loud, reads.sink_free().entropy().cpu().double(), 0.0),
        silent.double(),
        real.double(),
        rest.double(),
        torch.where(real, seen.log(), 0.0),
        torch.where(loud, (seen - 1.0).log(), 0.0),
    ]
    return torch.stack([term.sum(dim=0) for term in terms])


def profile_columns(
    layer: int,
    heads: tuple[int, ...],
    sums: Float64[np.ndarray, "sums head query_pos"],
    seen: Float64[np.ndarray, " query_pos"] | None,
) -> dict[str, np.ndarray]:
    """Return one layer's columns, head after head.

    Args:
        layer: The layer.
        heads: Its heads.
        sums: What `row_sums` made of all sequences.
        seen: Keys that each row sees; None: with padding that differs between sequences.
    """
    entropy, sink_mass, sink_free, silent, real, rest, most, most_sink_free = sums
    n_heads, n_pos = entropy.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        # No row of the input is left in a mean over nothing: 0 / 0 is NaN, as it should be.
        loud = rest - silent
        most = most / real if seen is None else np.log(seen)
        most_sink_free = most_sink_free / loud if seen is None else np.log(seen - 1.0)
        entropy, sink_free = entropy / real, sink_free / loud
        values = {
            "entropy": entropy,
            "normalised": entropy / np.where(most > 0.0, most, math.nan),
            "effective_keys": np.exp(entropy),
            "sink_mass": sink_mass / real,
            "sink_free": sink_free,
            "sink_free_normalised": sink_free
            / np.where(most_sink_free > 0.0, most_sink_free, math.nan),
            # A row that sees nothing but key 0 has no rest to be silent about.
            "silent": silent / rest,
        }
    return {
        "layer": np.full(n_heads * n_pos, layer),
        "head": np.repeat(np.array(heads, dtype=np.int64), n_pos),
        **{name: np.broadcast_to(value, entropy.shape).ravel() for name, value in values.items()},
    }
