"""How far first-order estimates agree with exact ablations: on your own model, on your own data.

Estimates cost two passes; exact ablation costs one pass per head. This module compares them by
rank and by their top heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64
from scipy.stats import rankdata

from lab.checks import require_choice, require_whole
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.metrics import MetricFunction
from probes.ablation.sweep import Ablation, Swept, sweep_sets
from probes.execution import Execution
from probes.first_order.attribution_patching import ablation_gradients, estimate_columns
from probes.first_order.head_gradients import GateGradients, gate_gradients
from probes.first_order.importance import (
    NORMALISATIONS,
    REDUCTIONS,
    normalised,
    sequence_values,
)
from probes.intervals import mean_over_rows, percentile_interval, resampled_means
from probes.reading.observed_model import as_batch, provenance
from probes.schemas.first_order import AGREEMENT, FIRST_ORDER
from probes.tables import make_table, rows_table

MOST_COMPARED = 10
"""Heads at the top that are compared, unless half of the heads are fewer."""

PerHead = Float64[np.ndarray, "resample head"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstOrderPlan:
    """Which estimates a study compares."""

    top: int | None = None
    """Heads at the top that are compared; None: 10, or half of all if that is fewer."""
    grad_drop: bool = False
    """Compare GradDrop too: one more backward pass for each layer."""
    reduce: str = "example"
    """Which importance is compared normalised too."""
    normalise: str = "layer"
    """What it is divided by; "none": nothing."""

    def __post_init__(self) -> None:
        """Check names and numbers."""
        require_choice("reduce", self.reduce, REDUCTIONS)
        require_choice("normalise", self.normalise, NORMALISATIONS)
        if self.top is not None:
            require_whole("top", self.top, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstOrderStudy:
    """Exact ablations of single heads beside the estimates of them."""

    heads: pd.DataFrame
    """One row a head: what its ablation changes, and what each estimate says of it."""
    agreement: pd.DataFrame
    """One row an estimate: how far it agrees with the exact changes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimator:
    """One way to rank heads without ablating them."""

    name: str
    signed: bool
    """Whether it has the sign of the change: it is compared with that, not with its size."""
    totals: Float64[np.ndarray, "sequence head"]
    """What each sequence adds, times its scored rows."""
    of_means: Callable[[PerHead], PerHead]
    """What is made of the means over rows."""


def first_order_study(
    model: HookedGPT,
    batch: Batch | Tokens,
    ablation: Ablation | None = None,
    metric: str | MetricFunction = "loss",
    *,
    plan: FirstOrderPlan | None = None,
    attention_mask: GivenMask | None = None,
    execution: Execution | None = None,
    seed: int = 0,
) -> FirstOrderStudy:
    """Ablate every head exactly, estimate the same to first order, and compare.

    Estimates: attribution patching of this very ablation, with its sign, against the exact delta;
    Michel's importance by example, by token, by batch, and one of them normalised, and GradDrop if
    asked for, none of which has a sign, against the size of the delta.

    spearman = the rank correlation over heads; shared = the heads among the `top` of both.

    Range: correlation from -1 to 1; shared from 0 to top, by chance top^2 / heads.

    Source: ours: each estimate is known, and its worth on your model is measured.

    Caveat: With few heads the correlation is rough: its interval resamples sequences only.

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Sequences of a task, or plain tokens, where every next token is scored.
        ablation: What happens to a head; None: zeros take its place. Importance is always of zeros.
        metric: "loss" or "margin", or a function as in `probes.ablation.metrics` with a gradient.
        plan: Which estimates are compared, and how many heads at the top; None: the defaults.
        attention_mask: True at real tokens; rows at padding, or that predict it, do not count.
        execution: Memory, progress, ledger and processes of the exact sweep.
        seed: Seed of the bootstrap over sequences.

    Raises:
        ValueError: An unknown metric, one without a first order, or an empty batch.
    """
    ablation = Ablation() if ablation is None else ablation
    execution = Execution() if execution is None else execution
    plan = FirstOrderPlan() if plan is None else plan
    options: dict[str, Any] = {"attention_mask": attention_mask, "memory": execution.memory}
    found = ablation_gradients(model, batch, ablation, metric, grad_drop=plan.grad_drop, **options)
    plain = ablation.mode == "zero" and ablation.positions is None
    importance = found if plain else gate_gradients(model, batch, metric, **options)
    swept = sweep_sets(
        model,
        batch,
        [[head] for head in found.heads],
        ablation=ablation,
        metrics=[metric],
        attention_mask=attention_mask,
        execution=execution,
    )
    about = {
        **provenance(model, as_batch(batch).tokens),
        "bootstrap_seed": seed,
        "ablation": ablation.to_dict(),
    }
    heads = head_table(found, importance, swept, ablation, about, seed)
    n_heads = len(found.heads)
    half = min(MOST_COMPARED, max(1, n_heads // 2))
    most = half if plan.top is None else min(plan.top, n_heads)
    exact = swept.totals[:, 1:, 0] - swept.totals[:, :1, 0]
    rows = [
        agreement_row(each, exact, found.counts, most, seed)
        | {
            "metric": found.metric.name,
            "mode": ablation.mode,
            "n_heads": n_heads,
            "n_sequences": found.n_sequences,
            "unit": "rank correlation",
        }
        for each in estimators(found, importance, model.config, plan)
    ]
    return FirstOrderStudy(heads=heads, agreement=rows_table(rows, AGREEMENT, about))


def head_table(
    found: GateGradients,
    importance: GateGradients,
    swept: Swept,
    ablation: Ablation,
    about: dict[str, Any],
    seed: int,
) -> pd.DataFrame:
    """Return the exact changes and the estimates, head by head."""
    estimates = estimate_columns(found, "z", ablation.mode, seed, 1.0 - ablation.value)
    means, changes = swept.means()[:, 0], swept.deltas(seed=seed)
    counts = importance.counts
    columns = {
        "baseline": np.full(len(found.heads), means[0]),
        "ablated": means[1:],
        "delta": changes.delta[:, 0],
        "ci_low": changes.ci_low[:, 0],
        "ci_high": changes.ci_high[:, 0],
        "estimate": estimates["estimate"],
        "estimate_ci_low": estimates["ci_low"],
        "estimate_ci_high": estimates["ci_high"],
        "grad_drop": estimates["grad_drop"],
        "importance": mean_over_rows(np.abs(importance.signed), counts),
        "importance_token": mean_over_rows(importance.absolute, counts),
        "importance_batch": np.abs(mean_over_rows(importance.signed, counts)),
    }
    columns |= {
        name: estimates[name] for name in ("layer", "head", "metric", "mode", "n_sequences", "unit")
    }
    return make_table({name: columns[name] for name in FIRST_ORDER.names}, FIRST_ORDER, about)


def estimators(
    found: GateGradients,
    importance: GateGradients,
    config: ModelConfig,
    plan: FirstOrderPlan,
) -> list[Estimator]:
    """Return every way to rank heads that is compared; how far a gate closes changes no rank."""

    def as_is(means: PerHead) -> PerHead:
        return means

    def comparable(means: PerHead) -> PerHead:
        return normalised(np.abs(means), plan.normalise, found.heads, config)

    chosen: list[tuple[str, bool, PerHead, Callable[[PerHead], PerHead]]] = [
        ("attribution patching", True, -found.signed, as_is)
    ]
    for each in REDUCTIONS:
        batch, name = each == "batch", f"importance by {each}"
        totals = importance.signed if batch else sequence_values(importance, each)
        chosen.append((name, False, totals, np.abs if batch else as_is))
        if each == plan.reduce and plan.normalise != "none":
            chosen.append((f"{name} / {plan.normalise}", False, totals, comparable))
    if found.dropped is not None:
        chosen.append(("GradDrop", False, found.dropped, as_is))
    return [
        Estimator(name=name, signed=signed, totals=totals, of_means=of_means)
        for name, signed, totals, of_means in chosen
    ]


def agreement_row(
    estimator: Estimator,
    exact: Float64[np.ndarray, "sequence head"],
    counts: Float64[np.ndarray, " sequence"],
    top: int,
    seed: int,
) -> dict[str, Any]:
    """Return how far one estimator agrees with the exact changes."""
    size = (lambda means: means) if estimator.signed else np.abs

    def correlation(estimate: PerHead, change: PerHead) -> Float64[np.ndarray, " resample"]:
        return rank_correlations(estimator.of_means(estimate), size(change))

    means = [mean_over_rows(totals, counts)[None] for totals in (estimator.totals, exact)]
    draws = [resampled_means(totals, counts, seed=seed) for totals in (estimator.totals, exact)]
    low = high = np.full(1, np.nan)
    if len(draws[0]):
        low, high = percentile_interval(correlation(draws[0], draws[1])[:, None])
    estimate, change = np.abs(estimator.of_means(means[0])[0]), np.abs(means[1][0])
    picked = [set(np.argsort(-values, kind="stable")[:top]) for values in (estimate, change)]
    return {
        "estimator": estimator.name,
        "compared_with": "delta" if estimator.signed else "size of delta",
        "spearman": correlation(means[0], means[1])[0],
        "ci_low": low[0],
        "ci_high": high[0],
        "top": top,
        "shared": len(picked[0] & picked[1]),
        "shared_chance": top**2 / max(1, len(change)),
    }


def rank_correlations(one: PerHead, other: PerHead) -> Float64[np.ndarray, " resample"]:
    """Return Spearman's rank correlation in each resample; NaN where all heads are equal."""
    if not one.shape[1]:
        return np.full(len(one), np.nan)
    ranks = [rankdata(values, axis=1) for values in (one, other)]
    a, b = (values - values.mean(axis=1, keepdims=True) for values in ranks)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
