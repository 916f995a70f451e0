"""How important each head is to first order: how fast a metric changes with the head's gate.

One forward and one backward pass for all heads; exact ablation takes one pass per head.
`probes.first_order.agreement` measures how good the estimate is on your model.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float64

from lab.checks import require_choice
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.metrics import MetricFunction
from probes.execution import MEMORY
from probes.first_order.head_gradients import GateGradients, gate_gradients
from probes.intervals import (
    bootstrap_interval,
    mean_over_rows,
    percentile_interval,
    resampled_means,
)
from probes.reading.observed_model import provenance
from probes.schemas.first_order import IMPORTANCE
from probes.tables import make_table

Reduction = Literal["example", "token", "batch"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
Normalisation = Literal["none", "layer", "param"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)

PerHead = Float64[np.ndarray, " head"]
Means = Float64[np.ndarray, "*resample head"]


def head_importance(
    model: HookedGPT,
    batch: Batch | Tokens,
    reduce: str = "example",
    normalise: str = "none",
    metric: str | MetricFunction = "loss",
    *,
    attention_mask: GivenMask | None = None,
    memory: int = MEMORY,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate how important each head is: one row per layer and head.

    G[b, p, h] is the derivative of the metric, the mean over all scored rows, with respect to the
    gate of head h at position p of sequence b. importance is, by `reduce`,
    "example": sum over b of |sum over p of G|, the definition of the paper;
    "token": sum over b and p of |G|, as the authors' code computes it;
    "batch": |sum over b and p of G|, as other libraries do: sequences that disagree cancel.
    So token >= example >= batch. gradient, the sum with its sign, is what the metric gains per
    unit of the gate: -gradient is the first-order estimate of the head's zero ablation.

    Range: the metric's unit, from 0.

    Source: Michel et al. 2019, Are sixteen heads really better than one?

    Caveat: A model that answers everything right has next to no loss to lose, and no gradient: take
    the margin there. Normalised by layer, the heads of an idle layer look as important as those of
    a working one: compare both.

    >>> from probes import repeated_batch
    >>> from probes.planted import PlantedHead, plant
    >>> copy = PlantedHead(kind="induction", writes="copy")
    >>> model = plant([[PlantedHead(kind="previous", writes="tokens")], [copy]]).model
    >>> batch = repeated_batch(model, block=5)
    >>> head_importance(model, batch, metric="margin")["importance"].round(2).tolist()
    [0.06, 1.0]

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Sequences of a task, or plain tokens, where every next token is scored.
        reduce: "example", "token" or "batch".
        normalise: "none"; "layer": divided by the root of the sum of squares of its layer; "param":
            by the millions of parameters removed with the head (a key head by its readers' share).
        metric: "loss" or "margin", or a function as in `probes.ablation.metrics` with a gradient.
        attention_mask: True at real tokens; rows at padding, or that predict it, do not count.
        memory: Bytes that activations may take at once.
        seed: Seed of the bootstrap over sequences.

    Raises:
        ValueError: An unknown reduction, normalisation or metric, or an empty batch.
    """
    require_choice("reduce", reduce, REDUCTIONS)
    require_choice("normalise", normalise, NORMALISATIONS)
    found = gate_gradients(model, batch, metric, attention_mask=attention_mask, memory=memory)
    low, high = bootstrap_interval(found.signed, found.counts, seed=seed)
    raw, ends = reduced(found, reduce), absolute_interval(low, high)
    if reduce != "batch":
        ends = bootstrap_interval(sequence_values(found, reduce), found.counts, seed=seed)
    importance = normalised(raw, normalise, found.heads, model.config)
    if normalise == "layer":
        ci_low, ci_high = layer_interval(found, reduce, seed)
    else:
        ci_low, ci_high = (normalised(end, normalise, found.heads, model.config) for end in ends)
    layer, head = np.array(found.heads, dtype=np.int64).reshape(-1, 2).T
    n = len(found.heads)
    return make_table(
        {
            "layer": layer,
            "head": head,
            "metric": np.full(n, found.metric.name),
            "reduce": np.full(n, reduce),
            "normalise": np.full(n, normalise),
            "importance": importance,
            "ci_low": ci_low,
            "ci_high": ci_high,
            "gradient": mean_over_rows(found.signed, found.counts),
            "gradient_ci_low": low,
            "gradient_ci_high": high,
            "n_sequences": np.full(n, found.n_sequences),
            "unit": np.full(n, unit_of(found.metric.unit, normalise)),
        },
        IMPORTANCE,
        {
            **provenance(model, batch.tokens if isinstance(batch, Batch) else batch),
            "bootstrap_seed": seed,
        },
    )


def reduced(found: GateGradients, reduce: str) -> PerHead:
    """Return the importance of each head before it is normalised."""
    if reduce == "batch":
        return np.abs(mean_over_rows(found.signed, found.counts))
    return mean_over_rows(sequence_values(found, reduce), found.counts)


def sequence_values(found: GateGradients, reduce: str) -> Float64[np.ndarray, "sequence head"]:
    """Return what each sequence adds to an importance, times its scored rows."""
    return np.abs(found.signed) if reduce == "example" else found.absolute


def absolute_interval(low: PerHead, high: PerHead) -> tuple[PerHead, PerHead]:
    """Return the interval of an absolute value from the interval of the value."""
    ends = np.abs(np.stack([low, high]))
    return np.where(low * high > 0, ends.min(axis=0), 0.0 * ends[0]), ends.max(axis=0)


def layer_interval(found: GateGradients, reduce: str, seed: int) -> tuple[PerHead, PerHead]:
    """Return the interval of importance divided by its layer's, which is resampled with it."""
    batch = reduce == "batch"
    totals = found.signed if batch else sequence_values(found, reduce)
    means = resampled_means(totals, found.counts, seed=seed)
    if not len(means):
        return np.full(len(found.heads), np.nan), np.full(len(found.heads), np.nan)
    return percentile_interval(shares_of_layer(np.abs(means), found.heads))


def normalised(
    importance: Means, normalise: str, heads: Sequence[tuple[int, int]], config: ModelConfig
) -> Means:
    """Return importance by what it is divided by."""
    if normalise == "layer":
        return shares_of_layer(importance, heads)
    if normalise == "param":
        return importance * 1e6 / [head_parameters(config, layer, head) for layer, head in heads]
    return importance


def unit_of(unit: str, normalise: str) -> str:
    """Return the unit of an importance that was divided by something, of a metric's own."""
    return {
        "layer": "parts of the layer's L2 norm",
        "param": f"{unit} / million parameters",
    }.get(normalise, unit)


def shares_of_layer(importance: Means, heads: Sequence[tuple[int, int]]) -> Means:
    """Return importance over the root of the sum of squares of the layer; NaN in an idle one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return importance / layer_sizes(importance, heads)


def layer_sizes(importance: Means, heads: Sequence[tuple[int, int]]) -> Means:
    """Return for each head the root of the sum of squares of its layer."""
    layers = np.array([layer for layer, _ in heads], dtype=np.int64)
    same = layers == layers[:, None]
    return np.sqrt(importance**2 @ same)


def head_parameters(config: ModelConfig, layer: int, head: int) -> float:
    """Return the parameters removed with a head: its own, and its share of the key head it reads.

    >>> config = ModelConfig(n_layers=1, n_heads=4, d_model=8, d_vocab=9, n_ctx=4)
    >>> head_parameters(config, 0, 1) == 4 * 8 * 2 + 3 * 2
    True
    """
    own, shared = config.d_model * config.head_width, config.kv_head(head)
    readers = sum(config.kv_head(other) == shared for other in config.heads_of(layer))
    return 2 * own + config.head_width + 2 * (own + config.head_width) / readers
