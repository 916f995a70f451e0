"""What each head of a set adds, averaged over every order in which the set could be taken away.

A head's own ablation asks what it adds to the whole model; leaving it as the last one asks what it
adds to a model without the others. Where heads replace each other, the two differ widely.
Shapley's value is the mean over all orders, and the values of a set sum to its joint effect.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from lab.checks import require_seed, require_whole
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.matched_sets import Head
from probes.ablation.metrics import MetricFunction
from probes.ablation.sweep import Ablation, HeadSet, sweep_sets
from probes.execution import Execution
from probes.intervals import bootstrap_interval, mean_over_rows
from probes.reading.observed_model import as_batch, provenance, require_gates
from probes.schemas.cause import SHAPLEY
from probes.tables import rows_table

MOST_EXACT = 9
"""Heads up to which all 2^n sets are run: 512 runs."""

Chosen = Bool[np.ndarray, "run head"]
"""Which heads each run goes without."""
Weights = Float64[np.ndarray, "head run"]
"""The weight of each run in each head's value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShapleyPlan:
    """Which sets of heads are run, and how their numbers make the heads' values."""

    chosen: Chosen
    """The heads that each run goes without; run 0 is the whole model."""
    orders: tuple[Weights, ...]
    """One for each order that was drawn; a single one, of all orders, where every set is run."""

    @property
    def weights(self) -> Weights:
        """The weight of each run in each head's value."""
        return np.mean(self.orders, axis=0)


def shapley_values(
    model: HookedGPT,
    batch: Batch | Tokens,
    heads: Iterable[Head],
    *,
    ablation: Ablation | None = None,
    metrics: Iterable[str | MetricFunction] = ("loss",),
    orders: int | None = None,
    attention_mask: GivenMask | None = None,
    seed: int = 0,
    execution: Execution | None = None,
) -> pd.DataFrame:
    """Share a set's joint effect out among its heads: one row per head and metric.

    value = mean over the orders of the heads of v(those before it and itself) - v(those before it),
    where v(S) is what the metric changes by when the heads S are ablated. All 2^n sets are run, so
    the values are exact and sum to the joint effect; with `orders` they are means over that many
    random orders, and still sum to it.

    Args:
        model: A HookedGPT.
        batch: A task's batch, or plain tokens.
        heads: Different heads, of any layers, in original ids.
        ablation: What happens to the heads; None: zeros in their place.
        metrics: Names from `probes.ablation.metrics`, or functions.
        orders: Random orders to average over instead of all; needed for more than 9 heads.
        attention_mask: True (or 1) at real tokens; None: all are.
        seed: Seed of the orders and of the bootstrap.
        execution: Memory, progress, ledger and processes of the sweep.

    Raises:
        ValueError: A head that the model does not have, more than 9 of them without `orders`, fewer
            than two orders, or what `sweep_sets` refuses.

    Source: Shapley 1953; for attention heads, Held and Yang 2023.
    """
    require_gates(model)
    ablation = Ablation() if ablation is None else ablation
    gates = HeadGates.ablate(heads, like=model)
    group = gates.heads
    plan = shapley_plan(len(group), orders, seed)
    sets = [subset(group, run) for run in plan.chosen[1:]]
    swept = sweep_sets(
        model,
        batch,
        sets,
        ablation=ablation,
        metrics=metrics,
        attention_mask=attention_mask,
        execution=execution,
    )
    rows = [
        {
            "layer": layer,
            "head": head,
            "heads": gates.label,
            "metric": metric.name,
            "mode": ablation.mode,
            **row,
            "n_sequences": swept.n_sequences,
            "unit": metric.unit,
        }
        for i, metric in enumerate(swept.metrics)
        for (layer, head), row in zip(
            group, value_rows(plan, swept.totals[:, :, i], swept.counts[:, i], seed), strict=True
        )
    ]
    return rows_table(
        rows,
        SHAPLEY,
        {
            **provenance(model, as_batch(batch).tokens),
            "ablation": ablation.to_dict(),
            "bootstrap_seed": seed,
            "orders": orders,
        },
    )


def shapley_plan(n: int, orders: int | None, seed: int) -> ShapleyPlan:
    """Return the sets to run for n heads.

    Raises:
        ValueError: No head, too many heads for all sets, or fewer than two orders.
    """
    if n < 1:
        raise ValueError("heads must be at least one, got none")
    if orders is not None:
        require_whole("orders", orders, 2)
        require_seed(seed)
        return drawn_plan(n, orders, np.random.default_rng(seed))
    if n > MOST_EXACT:
        raise ValueError(
            f"heads must be at most {MOST_EXACT} for exact Shapley values, whose runs double with "
            f"each head, got {n}; pass orders=100 for a mean over random orders"
        )
    runs = np.arange(2**n)
    return ShapleyPlan(chosen=(runs[:, None] >> np.arange(n)) & 1 == 1, orders=(exact_weights(n),))


def exact_weights(n: int) -> Weights:
    """Return the weight of each of the 2^n sets in each value: |S|! (n - |S| - 1)! / n! a step.

    Bit i of a run's number says that head i is ablated in it.

    >>> exact_weights(2).tolist()
    [[-0.5, 0.5, -0.5, 0.5], [-0.5, -0.5, 0.5, 0.5]]
    """
    runs = np.arange(2**n)
    sizes = np.array([int(run).bit_count() for run in runs])
    factor = np.array([math.factorial(k) * math.factorial(n - k - 1) for k in range(n)])
    step = np.append(factor, 0) / math.factorial(n)  # from the whole set no step leads on
    weights = np.zeros((n, len(runs)))
    for head in range(n):
        without = runs[(runs >> head) & 1 == 0]
        weights[head, without] -= step[sizes[without]]
        weights[head, without | (1 << head)] += step[sizes[without]]
    return weights


def drawn_plan(n: int, orders: int, draw: np.random.Generator) -> ShapleyPlan:
    """Return the sets that some random orders pass through; each head alone, and as the last."""
    known: dict[bytes, int] = {}
    chosen: list[np.ndarray] = []

    def run_of(taken: np.ndarray) -> int:
        key = taken.tobytes()
        if key not in known:
            known[key] = len(chosen)
            chosen.append(taken.copy())
        return known[key]

    run_of(np.zeros(n, dtype=bool))
    steps: list[list[tuple[int, int, int]]] = []
    for _ in range(orders):
        taken, own = np.zeros(n, dtype=bool), []
        for head in draw.permutation(n):
            before = run_of(taken)
            taken[head] = True
            own.append((int(head), before, run_of(taken)))
        steps.append(own)
    for head in range(n):
        alone = np.arange(n) == head
        run_of(alone)
        run_of(~alone)
    found = []
    for own in steps:
        weights = np.zeros((n, len(chosen)))
        for head, before, after in own:
            weights[head, before] -= 1.0
            weights[head, after] += 1.0
        found.append(weights)
    return ShapleyPlan(chosen=np.array(chosen), orders=tuple(found))


def subset(group: Sequence[Head], chosen: Bool[np.ndarray, " head"]) -> HeadSet:
    """Return the chosen ones of some heads."""
    return tuple(head for head, taken in zip(group, chosen, strict=True) if taken)


def value_rows(
    plan: ShapleyPlan,
    totals: Float64[np.ndarray, "batch run"],
    counts: Float64[np.ndarray, " batch"],
    seed: int,
) -> list[dict[str, float]]:
    """Return the numbers of each head for one metric.

    Args:
        plan: Which heads each run went without.
        totals: The metric of each sequence and run, summed over its rows.
        counts: Rows of each sequence.
        seed: Seed of the bootstrap.
    """
    means = mean_over_rows(totals, counts)
    values = plan.weights @ means
    low, high = bootstrap_interval(totals @ plan.weights.T, counts, seed=seed)
    drawn = np.stack([order @ means for order in plan.orders])
    error = np.where(np.isnan(values), np.nan, 0.0)
    if len(drawn) > 1:
        error = drawn.std(axis=0, ddof=1) / math.sqrt(len(drawn))
    sizes = plan.chosen.sum(axis=1)
    n = plan.chosen.shape[1]
    whole = int((sizes == n).argmax())
    rows = []
    for head in range(n):
        alone = int(((sizes == 1) & plan.chosen[:, head]).argmax())
        rest = int(((sizes == n - 1) & ~plan.chosen[:, head]).argmax())
        rows.append(
            {
                "value": values[head],
                "ci_low": low[head],
                "ci_high": high[head],
                "std_error": error[head],
                "alone": means[alone] - means[0],
                "last": means[whole] - means[rest],
                "joint": means[whole] - means[0],
                "n_runs": len(plan.chosen),
            }
        )
    return rows
