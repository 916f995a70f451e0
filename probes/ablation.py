"""What a model loses without a head: every head and every layer ablated in turn.

An ablation is a gate of 0 on the head's output, filled with zeros or with the head's mean over a
reference set. Gates are an argument of forward, so the variants of one layer run as one batch, and
the layers below it, which no variant changes, run once.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import pandas as pd
import torch
from einops import einsum, repeat
from jaxtyping import Float, Float64
from torch import Tensor

from lab.config import ModelConfig
from lab.evaluation import answer_loss
from lab.gates import GateTensors, Reference
from lab.model import HookedGPT
from lab.naming import head_label, unknown_name
from lab.shapes import Logits, Resid, Tokens
from lab.tasks.base import Batch
from probes.intervals import bootstrap_interval
from probes.pattern_reads import LayerReads
from probes.reads import (
    TOKENS_AT_ONCE,
    as_batch,
    model_device,
    observe_layers,
    probe_input,
    provenance,
    slices_of,
)
from probes.tables import ABLATION, METRICS, digest, make_table

Mode = Literal["zero", "mean"]
MODES: tuple[Mode, ...] = ("zero", "mean")

PREFIX_TOKENS = 4_096
"""Tokens whose lower layers are kept while the variants of a layer run."""

Variant = tuple[int, tuple[int, ...], bool]
SequenceTotals = Float64[np.ndarray, "batch metric"]
Totals = Float64[np.ndarray, "batch run metric"]
Fill = Float[Tensor, "layer 1 pos head d_head"]


def ablation_sweep(
    model: HookedGPT,
    batch: Batch | Tokens,
    mode: str = "zero",
    *,
    reference: Reference | None = None,
    metrics: Iterable[str] = METRICS,
    seed: int = 0,
) -> pd.DataFrame:
    """Ablate every head, and every whole layer: one row per layer, head (or none) and metric.

    delta = ablated - baseline; its interval resamples sequences, the same for both numbers. A
    single head's delta is a lower bound: heads that do the same job stand in for each other, which
    is what the rows of whole layers show.

    Args:
        model: A HookedGPT.
        batch: Sequences of a task, with the rows that its loss counts; or plain tokens,
            whose loss and accuracy are those of every next token (exact_match: of all in a row).
        mode: "zero" or "mean"; a mean needs a reference.
        reference: What fills the gap in mode "mean"; see `mean_reference`.
        metrics: Names out of METRICS in `probes.tables`.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: An unknown mode or metric, a mean without a reference, an empty batch, or
            neither a batch nor token ids.
    """
    wanted = check_request(mode, reference, metrics)
    x = probe_input(model, batch)
    batch = as_batch(batch)
    fill = None if mode == "zero" or reference is None else reference.z.unsqueeze(1)
    variants = all_variants(model.config)
    totals = sweep_totals(model, batch, variants, fill)
    compared = {
        name: compare(totals[:, :, i], answer_counts(batch)[:, i], seed)
        for i, name in enumerate(METRICS)
    }
    rows = [
        {
            "layer": layer,
            "head": None if whole else heads[0],
            "heads": ",".join(head_label(layer, head) for head in heads),
            "metric": name,
            "mode": mode,
            "n_sequences": len(batch),
            "unit": METRICS[name],
            **compared[name][i],
        }
        for i, (layer, heads, whole) in enumerate(variants)
        for name in wanted
    ]
    columns = {name: [row[name] for row in rows] for name in ABLATION.names}
    filled_from = None if fill is None or reference is None else reference
    return make_table(
        columns,
        ABLATION,
        {
            **provenance(model, x.tokens),
            "bootstrap_seed": seed,
            "reference": None if filled_from is None else filled_from.name,
            "reference_sha256": None if filled_from is None else filled_from.sha256,
        },
    )


def mean_reference(
    model: HookedGPT,
    batch: Batch | Tokens,
    *,
    name: str = "reference",
    per_position: bool = True,
) -> Reference:
    """Return the mean z of every head over a set of sequences, to fill the gaps of mean ablations.

    Take a split that the ablation is not measured on. The mean per position keeps what a head does
    at that position whatever the tokens are; the mean over positions removes that too.

    Args:
        model: A HookedGPT.
        batch: The sequences.
        name: What tables call the set.
        per_position: One mean a position, or one over all of them.
    """
    x = probe_input(model, batch)
    sums: dict[int, Float64[Tensor, "pos head d_head"]] = {}

    def observe(layer: int, reads: LayerReads) -> None:
        total = torch.cat([mixed_sum(tile, reads.v) for _, tile in reads.tiles()])
        sums[layer] = sums[layer] + total if layer in sums else total

    for part in slices_of(x, model_device(model)):
        observe_layers(model, part.tokens, observe)
    config = model.config
    dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    shape = (config.n_layers, x.tokens.shape[1], config.n_heads, config.head_width)
    z = torch.zeros(shape, dtype=dtype)
    for layer, total in sums.items():
        z[layer, :, list(config.heads_of(layer))] = (total / len(x.tokens)).to(dtype)
    if not per_position:
        z = z.mean(dim=1, keepdim=True)
    return Reference(name=name, sha256=digest(x.tokens.cpu().numpy().tobytes()), z=z)


def mixed_sum(
    tile: Float[Tensor, "batch head query_pos key_pos"],
    v: Float[Tensor, "batch key_pos head d_head"],
) -> Float64[Tensor, "query_pos head d_head"]:
    """Return z of some rows, summed over the batch, on the CPU."""
    z = einsum(tile, v, "batch head q k, batch k head d -> batch q head d")
    return z.cpu().double().sum(dim=0)


def check_request(
    mode: str, reference: Reference | None, metrics: Iterable[str]
) -> tuple[str, ...]:
    """Return the metrics to report, or say what is wrong with the request."""
    if mode not in MODES:
        raise ValueError(unknown_name("ablation mode", mode, MODES))
    if mode == "mean" and reference is None:
        raise ValueError(
            "reference must be given for mode 'mean', got None; pass "
            "reference=mean_reference(model, task.sample(256, seed=0, split='reference'))"
        )
    wanted = tuple(metrics)
    for name in wanted:
        if name not in METRICS:
            raise ValueError(unknown_name("metric", name, METRICS))
    return wanted


def all_variants(config: ModelConfig) -> list[Variant]:
    """Return (layer, heads, whether it is the whole layer) of every variant, layer by layer."""
    variants: list[Variant] = []
    for layer in range(config.n_layers):
        everything = config.heads_of(layer)
        variants += [(layer, (head,), False) for head in everything]
        variants += [(layer, everything, True)] if everything else []
    return variants


@torch.no_grad()
def sweep_totals(
    model: HookedGPT,
    batch: Batch,
    variants: list[Variant],
    fill: Fill | None,
) -> Totals:
    """Return every sequence's metrics, of the whole model (first run) and of each variant."""
    n_layers = model.config.n_layers
    parts = []
    for part in sequence_slices(batch, model_device(model)):
        runs: list[np.ndarray] = [np.empty(0)] * (1 + len(variants))
        residual = model.forward(part.tokens, stop_at_layer=0)
        for layer in range(n_layers):
            here = [i for i, variant in enumerate(variants) if variant[0] == layer]
            for some in groups(here, TOKENS_AT_ONCE // part.tokens.numel()):
                heads = [variants[i][1] for i in some]
                logits = run_variants(model, residual, layer, heads, fill)
                for i, own in zip(some, logits.chunk(len(some)), strict=True):
                    runs[1 + i] = answer_totals(own, part)
            residual = model.forward(residual, start_at_layer=layer, stop_at_layer=layer + 1)
        runs[0] = answer_totals(model.forward(residual, start_at_layer=n_layers), part)
        parts.append(np.stack(runs, axis=1))
    return np.concatenate(parts)


def run_variants(
    model: HookedGPT,
    residual: Resid,
    layer: int,
    variants: list[tuple[int, ...]],
    fill: Fill | None,
) -> Float[Tensor, "run pos d_vocab"]:
    """Return the logits of all variants of one layer, one after the other along the batch."""
    batch = len(residual)
    g = torch.ones(model.config.n_layers, len(variants) * batch, 1, model.config.n_heads)
    for i, heads in enumerate(variants):
        g[layer, i * batch : (i + 1) * batch, :, list(heads)] = 0.0
    stacked = repeat(residual, "batch pos d -> (variant batch) pos d", variant=len(variants))
    return model.forward(stacked, gates=GateTensors(g=g, fill=fill), start_at_layer=layer)


def groups(items: list[int], size: int) -> Iterator[list[int]]:
    """Yield the items in runs of at most `size`, and of at least one."""
    size = max(1, size)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def sequence_slices(batch: Batch, device: torch.device) -> Iterator[Batch]:
    """Yield the batch a few sequences at a time, on the device of the model."""
    step = max(1, PREFIX_TOKENS // batch.tokens.shape[1])
    for start in range(0, len(batch), step):
        yield batch[start : start + step].to(device)


def answer_totals(logits: Logits, batch: Batch) -> SequenceTotals:
    """Return METRICS of each sequence, each summed over what answer_counts counts."""
    scored = batch.loss_mask
    # A sequence without answers has no mean loss, and adds nothing to the sum.
    losses = answer_loss(logits, batch, reduce="sequence").nan_to_num() * scored.sum(dim=1)
    right = (logits.argmax(dim=-1) == batch.tokens.roll(-1, dims=1)) | ~scored
    totals = [losses, (right & scored).sum(dim=1), right.all(dim=1)]
    return torch.stack([total.cpu().double() for total in totals], dim=1).numpy()


def answer_counts(batch: Batch) -> SequenceTotals:
    """Return what each sequence's METRICS are divided by: answer tokens, answer tokens, one."""
    scored = batch.loss_mask.sum(dim=1).cpu().double()
    return torch.stack([scored, scored, torch.ones_like(scored)], dim=1).numpy()


def compare(
    totals: Float64[np.ndarray, "batch run"], counts: Float64[np.ndarray, " batch"], seed: int
) -> list[dict[str, float]]:
    """Return one metric before and after each ablation, with the interval of the difference."""
    low, high = bootstrap_interval(totals[:, 1:] - totals[:, :1], counts, seed=seed)
    with np.errstate(invalid="ignore"):
        means = totals.sum(axis=0) / counts.sum()
    return [
        {
            "baseline": means[0],
            "ablated": means[1 + i],
            "delta": means[1 + i] - means[0],
            "ci_low": low[i],
            "ci_high": high[i],
        }
        for i in range(len(low))
    ]
