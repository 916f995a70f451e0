"""Attribution patching: every ablation and every exchange of activations, to first order.

The effect of putting n' in the place of an activation n is about (n' - n) . dM/dn, so that one
backward pass estimates it for all heads at once. It is good for what heads write and bad where a
softmax is saturated. For queries and keys the softmax is recomputed, and only the rest is linear.
`probes.first_order.agreement` measures how good the estimates are on your model.
"""

from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from lab.attention import fused_attention, mix_values
from lab.attention_reads import AttentionReads
from lab.checks import require, require_choice
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.shapes import GivenMask, HeadVectors, Tokens
from lab.tasks.base import Batch
from probes.ablation.metrics import MetricFunction
from probes.ablation.sweep import Ablation
from probes.execution import MEMORY
from probes.first_order.head_gradients import GateGradients, gate_gradients
from probes.intervals import bootstrap_interval, mean_over_rows
from probes.reading.observed_model import (
    as_batch,
    model_device,
    provenance,
    require_gates,
    require_unhooked,
)
from probes.schemas.first_order import ESTIMATES
from probes.tables import digest, make_table

Node = Literal["z", "q", "k", "v"]
NODES: tuple[Node, ...] = get_args(Node)
"""What of a head is exchanged: what it writes, or one of the three things that it is made of."""
Softmax = Literal["recomputed", "linear"]

Fill = Float[Tensor, "layer batch pos head d_head"]


def estimated_ablations(
    model: HookedGPT,
    batch: Batch | Tokens,
    ablation: Ablation | None = None,
    metric: str | MetricFunction = "loss",
    *,
    grad_drop: bool = False,
    attention_mask: GivenMask | None = None,
    memory: int = MEMORY,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate what ablating each head changes: one row per layer and head.

    estimate = (1 - value) (fill - z) . dM/dz, the first-order estimate of `delta` in
    `ablation_sweep`; for zeros it is -dM/dg. Of several donors it is the mean, which is the
    estimate of their mean: effects to first order are linear in the fill.

    grad_drop = mean over layers l of |estimate without the gradient through layer l|, per example:
    large where the direct effect and that through a later layer cancel. It has no sign.

    Range: the metric's unit, with its sign.

    Source: Nanda 2023, Attribution patching; Kramar et al. 2024, AtP*.

    Caveat: The estimate is linear in what a head writes: saturation and replacement do not show;
    where direct and indirect effects cancel it is 0 (grad_drop is not).

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Sequences of a task, or plain tokens, where every next token is scored.
        ablation: What happens to a head, as in `sweep_sets`; None: zeros take its place.
        metric: "loss" or "margin", or a function as in `probes.ablation.metrics` with a gradient.
        grad_drop: Compute that column: one more backward pass for each layer.
        attention_mask: True at real tokens; rows at padding, or that predict it, do not count.
        memory: Bytes that activations may take at once.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: An unknown metric, or one without a first order, or an empty batch.
    """
    ablation = Ablation() if ablation is None else ablation
    found = ablation_gradients(
        model,
        batch,
        ablation,
        metric,
        grad_drop=grad_drop,
        attention_mask=attention_mask,
        memory=memory,
    )
    columns = estimate_columns(found, "z", ablation.mode, seed, 1.0 - ablation.value)
    about = {"bootstrap_seed": seed, "ablation": ablation.to_dict()}
    tokens = as_batch(batch).tokens
    return make_table(columns, ESTIMATES, {**provenance(model, tokens), **about})


def estimated_patches(
    model: HookedGPT,
    batch: Batch | Tokens,
    other: Batch | Tokens,
    nodes: Iterable[str] = NODES,
    metric: str | MetricFunction = "loss",
    *,
    softmax: str = "recomputed",
    memory: int = MEMORY,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate what another example's activations would change: one row per node, layer and head.

    Node "z" exchanges what a head writes at all positions; "q", "k" and "v" its queries, keys or
    values (those that it reads, where heads share them). estimate = (z' - z) . dM/dz, where z' is
    what the head makes of the exchanged activations: exact up to what it writes, and linear in what
    follows. With softmax="linear" z' is linear in q and k too: plain attribution patching, which
    next to nothing comes through where attention is sharp.

    Source: Kramar et al. 2024, AtP* (the q/k fix, here for all positions of a head at once).

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Sequences of a task, or plain tokens, where every next token is scored.
        other: As many sequences, equally long: activations of the i-th go into the i-th.
        nodes: Any of "z", "q", "k" and "v".
        metric: "loss" or "margin", or a function as in `probes.ablation.metrics` with a gradient.
        softmax: "recomputed" or "linear".
        memory: Bytes that activations may take at once.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: An unknown node or metric, or sequences of another shape.
    """
    wanted = tuple(dict.fromkeys(nodes))
    require(bool(wanted), "nodes", "at least one of z, q, k and v", wanted)
    for node in wanted:
        require_choice("node", node, NODES)
    require_choice("softmax", softmax, get_args(Softmax))
    tokens, others = as_batch(batch).tokens, as_batch(other).tokens
    if tokens.shape != others.shape:
        raise ValueError(
            f"other must have the shape {list(tokens.shape)} of the batch, a sequence for each, "
            f"got {list(others.shape)}"
        )
    parts: list[dict[str, Any]] = []
    for node in wanted:
        found = gate_gradients(
            model,
            batch,
            metric,
            fill=lambda rows, node=node: exchanged(
                model, tokens[rows], others[rows], node, softmax
            ),
            memory=memory,
        )
        parts.append(estimate_columns(found, node, "example", seed))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in ESTIMATES.names}
    about = {
        "bootstrap_seed": seed,
        "softmax": softmax,
        "other_sha256": digest(others.cpu().contiguous().numpy().tobytes()),
    }
    return make_table(columns, ESTIMATES, {**provenance(model, tokens), **about})


def ablation_gradients(
    model: HookedGPT,
    batch: Batch | Tokens,
    ablation: Ablation,
    metric: str | MetricFunction,
    **options: Any,
) -> GateGradients:
    """Return dM/dg with what an ablation puts in the place of z; options as of gate_gradients."""
    require_gates(model)
    HeadGates.ablate((), like=model, positions=ablation.positions)  # for its checks
    fills = ablation.fills()
    fill = None if fills[0] is None else torch.stack([f for f in fills if f is not None]).mean(0)
    return gate_gradients(
        model, batch, metric, fill=lambda _: fill, positions=ablation.positions, **options
    )


def estimate_columns(
    found: GateGradients, node: str, mode: str, seed: int, share: float = 1.0
) -> dict[str, Any]:
    """Return the rows of one node.

    Args:
        found: dM/dg with what is put in the place of z as the fill.
        node: What is exchanged.
        mode: What fills the gap.
        seed: Seed of the bootstrap.
        share: How far the gate closes.
    """
    n = len(found.heads)
    totals = -share * found.signed
    low, high = bootstrap_interval(totals, found.counts, seed=seed)
    layer, head = np.array(found.heads, dtype=np.int64).reshape(-1, 2).T
    without = np.full(n, np.nan)
    if found.dropped is not None:
        without = mean_over_rows(share * found.dropped, found.counts)
    return {
        "layer": layer,
        "head": head,
        "node": np.full(n, node),
        "mode": np.full(n, mode),
        "metric": np.full(n, found.metric.name),
        "estimate": mean_over_rows(totals, found.counts),
        "ci_low": low,
        "ci_high": high,
        "grad_drop": without,
        "n_sequences": np.full(n, found.n_sequences),
        "unit": np.full(n, found.metric.unit),
    }


@torch.no_grad()
def exchanged(model: HookedGPT, tokens: Tokens, others: Tokens, node: str, softmax: str) -> Fill:
    """Return z of every head with one of its parts from other sequences."""
    config = model.config
    clean, corrupt = (all_reads(model, some.to(model_device(model))) for some in (tokens, others))
    shape = (config.n_layers, *tokens.shape, config.n_heads, config.head_width)
    fill = torch.zeros(shape, dtype=model.cfg.dtype, device=model.device)
    for layer, (own, other) in enumerate(zip(clean, corrupt, strict=True)):
        z = other.mean_value() if node == "z" else exchanged_z(own, other, node, softmax)
        fill[layer, :, :, list(config.heads_of(layer))] = z.to(fill.dtype)
    return fill


def all_reads(model: HookedGPT, tokens: Tokens) -> list[AttentionReads]:
    """Return the reads of every layer, kept beyond the forward pass."""
    require_unhooked(model)
    found: list[AttentionReads] = []
    model.forward(tokens, return_type=None, observe=lambda _, reads: found.append(reads))
    return found


def exchanged_z(
    reads: AttentionReads, other: AttentionReads, node: str, softmax: str
) -> HeadVectors:
    """Return z of one layer with its q, k or v from another run."""
    own, foreign = ({"q": each.q, "k": each.k, "v": each.v} for each in (reads, other))
    if softmax == "recomputed" or node == "v":  # in v it is linear anyway
        q, k, v = (own | {node: foreign[node]}).values()
        return fused_attention(q, k, v, scale=reads.scale, sight=reads.sight)
    q, k, _ = (own | {node: foreign[node] - own[node]}).values()
    scores = einsum(q * reads.scale, k, "batch q head d, batch k head d -> batch head q k")
    pattern = reads.pattern()
    # The derivative of a softmax: each probability grows as its score outgrows their mean.
    growth = pattern * (scores - (pattern * scores).sum(dim=-1, keepdim=True))
    return reads.mean_value() + mix_values(growth, reads.v)
