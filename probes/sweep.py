"""The exact sweep: what a model loses without each of many sets of heads.

Nothing is estimated here: every set of heads is ablated and the model runs on. Sets may be of any
size, over any layers. What is made of the numbers, tables and labels, is decided elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from lab.config import ModelConfig, require_choice, require_number
from lab.gates import Donors, GateTensors, HeadGates, Reference
from lab.inputs import checked_mask
from lab.model import HookedGPT
from lab.shapes import GivenMask, PositionMask, Tokens
from lab.tasks.base import Batch
from probes.intervals import bootstrap_interval
from probes.metrics import DEFAULT_METRICS, Metric, MetricFunction, get_metrics
from probes.reads import as_batch, model_device, probe_input

HeadSet = tuple[tuple[int, int], ...]
"""(layer, head) pairs in the ids of the original model; none at all is the whole model."""
MODES = ("zero", "mean", "resample")
Fill = Float[Tensor, "layer 1 #pos head d_head"]
Totals = Float64[np.ndarray, "sequence run metric"]
Progress = Callable[[int, int], None]
"""Called with (done, total) now and then; done == total at the end."""

MEMORY = 2**30
"""Bytes that the activations of one chunk of a sweep may take, unless one set needs more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ablation:
    """What happens to the heads of a set: z <- value * z + (1 - value) * fill."""

    mode: str = "zero"
    """zero: the fill is zeros; mean: a reference; resample: each donor in turn, and the mean of
    what they do."""
    value: float = 0.0
    """The gate of the heads: 0 removes them, 1 leaves them alone."""
    positions: tuple[int, ...] | None = None
    """Positions at which it happens; None: all."""
    reference: Reference | None = None
    """The fill of mode mean; see `probes.ablation.mean_reference`."""
    donors: Donors | None = None
    """The fills of mode resample; see `probes.ablation.head_donors`."""

    def __post_init__(self) -> None:
        """Check that there is a fill, and only the one that the mode needs."""
        require_choice("ablation mode", self.mode, MODES)
        require_number("value", self.value, 0.0, 1.0)
        if self.mode == "mean" and self.reference is None:
            raise ValueError(
                "reference must be given for mode 'mean', got None; pass "
                "reference=mean_reference(model, task.sample(256, seed=0, split='reference'))"
            )
        if self.mode == "resample" and self.donors is None:
            raise ValueError(
                "donors must be given for mode 'resample', got None; pass "
                "donors=head_donors(model, task.sample(8, seed=0, split='reference'))"
            )

    @property
    def filled_from(self) -> Reference | Donors | None:
        """What fills the gaps; None: zeros."""
        return {"mean": self.reference, "resample": self.donors}.get(self.mode)

    def fills(self) -> list[Fill | None]:
        """Return what fills the gaps: one fill a run, whose results are averaged."""
        filled_from = self.filled_from
        if isinstance(filled_from, Donors):
            return [reference.z.unsqueeze(1) for reference in filled_from.references()]
        return [None if filled_from is None else filled_from.z.unsqueeze(1)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the provenance of a table."""
        filled_from = self.filled_from
        return {
            "mode": self.mode,
            "value": self.value,
            "positions": None if self.positions is None else list(self.positions),
            "fill": None if filled_from is None else filled_from.name,
            "fill_sha256": None if filled_from is None else filled_from.sha256,
            "n_donors": len(filled_from.z) if isinstance(filled_from, Donors) else None,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Deltas:
    """ablated - baseline of every set and metric, with its interval."""

    delta: Float64[np.ndarray, "set metric"]
    ci_low: Float64[np.ndarray, "set metric"]
    """Lower end of the 95 % interval: sequences are resampled, the same for both numbers."""
    ci_high: Float64[np.ndarray, "set metric"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Swept:
    """What a sweep measured, sequence by sequence. Run 0 is the whole model, run 1 + i set i."""

    sets: tuple[HeadSet, ...]
    metrics: tuple[Metric, ...]
    totals: Totals
    """Sums over the scored rows of each sequence."""
    counts: Float64[np.ndarray, "sequence metric"]
    """What they are divided by: scored rows, or 1 where the metric is of whole sequences."""

    def means(self) -> Float64[np.ndarray, "run metric"]:
        """Return every metric of every run; NaN where nothing was scored."""
        with np.errstate(invalid="ignore"):
            return self.totals.sum(axis=0) / self.counts.sum(axis=0)

    def deltas(self, *, seed: int = 0) -> Deltas:
        """Return what each set changes, with the bootstrap interval over sequences."""
        means, changes = self.means(), self.totals[:, 1:] - self.totals[:, :1]
        ends = [
            bootstrap_interval(changes[:, :, i], self.counts[:, i], seed=seed)
            for i in range(len(self.metrics))
        ]
        low, high = (np.stack(end, axis=1) for end in zip(*ends, strict=True))
        return Deltas(delta=means[1:] - means[:1], ci_low=low, ci_high=high)


def sweep_sets(
    model: HookedGPT,
    batch: Batch | Tokens,
    sets: Iterable[Iterable[Sequence[int]]],
    *,
    ablation: Ablation | None = None,
    metrics: Iterable[str | MetricFunction] = DEFAULT_METRICS,
    attention_mask: GivenMask | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Swept:
    """Ablate each set of heads and measure the model on every sequence.

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Sequences of a task, with the rows that its loss counts; or plain tokens, of which
            every next token counts.
        sets: Any sets of (layer, head) pairs, in original ids.
        ablation: What happens to the heads; None: zeros take their place.
        metrics: Names out of METRICS in `probes.metrics`, or functions of the same form.
        attention_mask: True at real tokens; rows at padding, or that predict it, do not count.
        memory: Bytes that activations may take at once: speed, not results, depends on it.
        progress: Called with (runs done, runs in all).

    Raises:
        ValueError: No sequence, a head that the model has not, or an unknown metric.
    """
    ablation = Ablation() if ablation is None else ablation
    measured = get_metrics(metrics)
    probe_input(model, batch)
    scored = scored_batch(as_batch(batch), attention_mask)
    wanted = tuple(
        HeadGates.ablate(heads, like=model, positions=ablation.positions).heads for heads in sets
    )
    real = None
    if attention_mask is not None:
        real = checked_mask(attention_mask, *scored.tokens.shape)
    unique = list(dict.fromkeys(wanted))
    parts = []
    for rows in sequence_slices(scored):
        mask = None if real is None else real[rows]
        parts.append(plain_totals(model, scored[rows], unique, ablation, measured, mask))
    totals = np.concatenate(parts)
    runs = [0, *(1 + unique.index(heads) for heads in wanted)]
    if progress is not None:
        progress(len(unique), len(unique))
    return Swept(
        sets=wanted,
        metrics=measured,
        totals=totals[:, runs],
        counts=row_counts(scored, measured),
    )


def scored_batch(batch: Batch, attention_mask: GivenMask | None) -> Batch:
    """Return the batch without rows at padding, or whose next token is."""
    if attention_mask is None:
        return batch
    real = checked_mask(attention_mask, *batch.tokens.shape, batch.tokens.device)
    followed = real & real.roll(-1, dims=1)
    return Batch(batch.tokens, batch.loss_mask & followed, batch.sources)


def sequence_slices(batch: Batch) -> Iterator[slice]:
    """Yield the sequences a few at a time."""
    step = max(1, 16_384 // batch.tokens.shape[1])
    for start in range(0, len(batch), step):
        yield slice(start, start + step)


@torch.no_grad()
def plain_totals(
    model: HookedGPT,
    batch: Batch,
    sets: Sequence[HeadSet],
    ablation: Ablation,
    metrics: tuple[Metric, ...],
    real: PositionMask | None,
) -> Totals:
    """Run the whole model once a set, with gates."""
    if real is not None:
        real = real.to(model_device(model))
    batch = batch.to(model_device(model))
    rows = batch.loss_mask
    baseline = model.forward(batch.tokens, attention_mask=real)[rows]
    targets = batch.tokens.roll(-1, dims=1)[rows]
    totals = [row_totals(baseline, targets, baseline, rows, metrics)]
    for heads in sets:
        runs = []
        for gates in set_gates(model.config, heads, ablation, model):
            logits = model.forward(batch.tokens, gates=gates, attention_mask=real)[rows]
            runs.append(row_totals(logits, targets, baseline, rows, metrics))
        totals.append(np.mean(runs, axis=0))
    return np.stack(totals, axis=1)


def set_gates(
    config: ModelConfig, heads: HeadSet, ablation: Ablation, model: HookedGPT
) -> list[GateTensors]:
    """Return the gates of one set, one for each fill."""
    gates = HeadGates.ablate(
        heads, like=model, positions=ablation.positions, value=ablation.value
    ).tensors(model)
    return [GateTensors(g=gates.g, fill=fill) for fill in ablation.fills()]


def row_totals(
    logits: Float[Tensor, "row d_vocab"],
    targets: Int[Tensor, " row"],
    baseline: Float[Tensor, "row d_vocab"],
    rows: Bool[Tensor, "sequence pos"],
    metrics: tuple[Metric, ...],
) -> Float64[np.ndarray, "sequence metric"]:
    """Return every metric summed over the scored rows of each sequence."""
    full = torch.promote_types(logits.dtype, torch.float32)
    logits, baseline = logits.to(full), baseline.to(full)
    sequence = rows.nonzero()[:, 0]
    counts = rows.sum(dim=1)
    totals = []
    for metric in metrics:
        values = metric.of_rows(logits, targets, baseline).double()
        total = torch.zeros(len(rows), dtype=torch.float64, device=values.device)
        total.index_add_(0, sequence, values)
        # A sequence of which nothing is scored has nothing wrong.
        totals.append((total == counts).double() if metric.per == "sequence" else total)
    return torch.stack(totals, dim=1).cpu().numpy()


def row_counts(batch: Batch, metrics: tuple[Metric, ...]) -> Float64[np.ndarray, "sequence metric"]:
    """Return what each sequence's totals are divided by."""
    scored = batch.loss_mask.sum(dim=1).cpu().double()
    ones = torch.ones_like(scored)
    counts = [ones if metric.per == "sequence" else scored for metric in metrics]
    return torch.stack(counts, dim=1).numpy()
