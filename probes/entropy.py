"""How widely each head spreads its attention, position by position.

Entropy is in nats. A head that rests on key 0 looks focused whatever it does with the rest, so
every row is measured a second time with key 0 hidden: that is the sink-free entropy.
"""

import math

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from lab.reads import AttentionReads
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.reads import (
    ReadableModel,
    head_ids,
    model_device,
    observe_layers,
    probe_input,
    provenance,
    slices_of,
)
from probes.tables import ENTROPY, make_table

SILENT_BELOW = 1e-3
"""A row that leaves less than this beside key 0 is silent: what it does with the rest is noise."""

SUMS = ("entropy", "sink_mass", "sink_free", "silent")
"""What is summed over sequences for every row."""


def entropy_profile(model: ReadableModel, batch_or_tokens: Batch | Tokens) -> pd.DataFrame:
    """Measure the entropy of every row: one row per layer, head and query position.

    H(q) = -sum_k A[q, k] ln A[q, k], mean over sequences, in nats, in 0 .. ln(q + 1); normalised =
    H(q) / ln(q + 1); effective_keys = exp(H(q)). sink_free is the entropy of the row with key 0
    hidden and the others renormalised, over the sequences whose row is not silent. NaN: the
    normalised values where only one key is visible, everything sink-free where only key 0 is, or
    where all are silent.

    Args:
        model: A HookedGPT.
        batch_or_tokens: A task's batch, or plain tokens.

    Raises:
        ValueError: The batch is empty.
    """
    x = probe_input(batch_or_tokens)
    n_sequences, n_pos = x.tokens.shape
    layers: dict[int, Float64[np.ndarray, "sums head query_pos"]] = {}

    def observe(layer: int, reads: AttentionReads) -> None:
        sums = row_sums(reads).numpy()
        layers[layer] = layers[layer] + sums if layer in layers else sums

    for part in slices_of(x, model_device(model)):
        observe_layers(model, part.tokens, observe)
    parts = [
        profile_columns(layer, head_ids(model, layer, sums.shape[1]), sums, n_sequences)
        for layer, sums in sorted(layers.items())
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["query_pos"] = np.tile(np.arange(n_pos), len(columns["layer"]) // n_pos)
    columns["n_sequences"] = np.full(len(columns["layer"]), n_sequences)
    columns["unit"] = np.full(len(columns["layer"]), "nats")
    return make_table(
        {name: columns[name] for name in ENTROPY.names}, ENTROPY, provenance(model, x.tokens)
    )


def row_sums(reads: AttentionReads) -> Tensor:
    """Return SUMS of one layer over the batch: [sum, head, query_pos], float64 on the CPU."""
    rows = torch.arange(reads.q.shape[1], device=reads.q.device)
    sink_mass = reads.cells(rows, torch.zeros_like(rows)).cpu().double()
    silent = 1.0 - sink_mass < SILENT_BELOW
    sink_free = reads.sink_free().entropy().cpu().double().masked_fill(silent, 0.0)
    terms = [reads.entropy().cpu().double(), sink_mass, sink_free, silent.double()]
    return torch.stack([term.sum(dim=0) for term in terms])


def profile_columns(
    layer: int,
    heads: tuple[int, ...],
    sums: Float64[np.ndarray, "sums head query_pos"],
    n_sequences: int,
) -> dict[str, np.ndarray]:
    """Return one layer's columns, head after head."""
    entropy, sink_mass, sink_free, n_silent = sums
    n_heads, n_pos = entropy.shape
    rows = np.arange(n_pos)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(rows >= 1, np.log(rows + 1.0), math.nan)
        most_sink_free = np.where(rows >= 2, np.log(rows), math.nan)
        entropy = entropy / n_sequences
        # No row of the input is left in a mean over nothing: 0 / 0 is NaN, as it should be.
        sink_free = sink_free / (n_sequences - n_silent)
    values = {
        "entropy": entropy,
        "normalised": entropy / most,
        "effective_keys": np.exp(entropy),
        "sink_mass": sink_mass / n_sequences,
        "sink_free": sink_free,
        "sink_free_normalised": sink_free / most_sink_free,
        # Row 0 sees nothing but key 0: it has no rest to be silent about.
        "silent": np.where(rows >= 1, n_silent / n_sequences, math.nan),
    }
    return {
        "layer": np.full(n_heads * n_pos, layer),
        "head": np.repeat(np.array(heads, dtype=np.int64), n_pos),
        **{name: np.broadcast_to(value, entropy.shape).ravel() for name, value in values.items()},
    }
