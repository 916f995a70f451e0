"""The options of a pruning curve: its steps, random orders and metrics."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.checks import require, require_whole
from lab.gates import Reference, whole_numbers
from lab.naming import unknown_name
from probes.ablation.metrics import Metric, get_metrics

CURVE_METRICS = ("loss", "token_accuracy", "exact_match", "margin")
MOST_STEPS = 40
"""Heads up to which every single removal is a step; of more, a curve has FEW_STEPS."""
FEW_STEPS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class PruningPlan:
    """How the heads of a model are removed step by step, and what is reported."""

    steps: Sequence[int] | None = None
    """How many heads are gone at each point, ascending; None: every number of them, in a model of
    more than 40 heads 20 numbers. Fewer steps make a greedy or iterative order coarser, because
    all heads of a step are chosen at once."""
    seeds: int = 20
    """Random orders to compare with."""
    metric: str | None = None
    """Metric to preserve; None: the margin if the model answers at least 99 % of the selection's
    tokens correctly, else the loss."""
    metrics: str | Sequence[str] = CURVE_METRICS
    """What is reported, out of CURVE_METRICS; the metric that is chosen by always is."""
    normalise: str | Sequence[str] = ("none", "layer")
    """How importances are made comparable, out of NORMALISATIONS in
    `probes.first_order.importance`: orders by importance come once with each. By layer, heads of
    an idle layer look as important as those that work."""
    mode: str = "zero"
    """zero or mean."""
    reference: Reference | None = None
    """In mode mean, the mean over positions of every head's z; see `prune_heads`. Orders by
    importance do not use it: theirs is the importance under zeros."""
    penalty: float = 0.05
    """What an open gate costs in a learned order, in nats."""

    def __post_init__(self) -> None:
        """Check what needs no model."""
        require_whole("seeds", self.seeds, 0)
        curve_metrics(self.reported("loss" if self.metric is None else self.metric))

    def reported(self, chosen_by: str) -> list[str]:
        """Return the names of the metrics that are reported, of an order chosen by one of them."""
        named = names_of(self.metrics)
        return named if chosen_by in named else [*named, chosen_by]


def curve_steps(n_heads: int, steps: Sequence[int] | None) -> tuple[int, ...]:
    """Return how many heads are gone at each point, from 0 on.

    Raises:
        ValueError: Numbers out of range or out of order.
    """
    require(n_heads > 0, "a model to prune", "one with heads", "one without")
    if steps is None:
        fine = n_heads if n_heads <= MOST_STEPS else FEW_STEPS
        return tuple(i * n_heads // fine for i in range(fine + 1))
    counts = tuple(whole_numbers(steps))
    for count in counts:
        require_whole("steps", count, 0, n_heads)
    ascending = all(one < next_ for one, next_ in itertools.pairwise(counts))
    require(ascending and bool(counts), "steps", "different numbers of heads, ascending", counts)
    return counts if counts[0] == 0 else (0, *counts)


def names_of(given: str | Iterable[str]) -> list[str]:
    """Return names as a tuple, also if a single name is given."""
    return [given] if isinstance(given, str) else list(given)


def curve_metrics(names: Iterable[str]) -> tuple[Metric, ...]:
    """Return metrics by name: those that compare with nothing, as a pruned model is alone."""
    wanted = list(names)
    for name in wanted:
        if name not in CURVE_METRICS:
            raise ValueError(unknown_name("metric of a pruned model", str(name), CURVE_METRICS))
    return get_metrics(wanted)
