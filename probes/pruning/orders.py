"""The orders in which the heads of a model can be pruned.

Every order is found on selection sequences alone. What a model is worth after each removal, on
other sequences, is `probes.pruning.curves`'s; the removal itself is `probes.pruning.removing`'s.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64

from lab.checks import require
from lab.hooked_gpt import HookedGPT
from lab.naming import unknown_name
from lab.tasks.base import Batch
from probes.ablation.ledger import Ledger
from probes.ablation.metrics import Metric
from probes.ablation.sweep import Ablation, HeadSet, sweep_sets
from probes.execution import MEMORY, Execution
from probes.first_order.importance import head_importance
from probes.pruning.hard_concrete import learn_gates
from probes.pruning.removing import pruned_view

MOST_FOR_ORACLE = 9
"""Most heads for which all sets are tried: 2^9 = 512 runs."""

Heads = tuple[tuple[int, int], ...]
"""(layer, head) pairs in original ids, in the order of removal."""
Scores = Float64[np.ndarray, " head"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """What an order is found with."""

    model: HookedGPT
    batch: Batch
    """Selection sequences."""
    metric: Metric
    """The metric to preserve."""
    counts: tuple[int, ...]
    """How many heads are gone after each step, ascending from 0."""
    ablation: Ablation = field(default_factory=Ablation)
    """What replaces a removed head: zeros, or its mean."""
    normalise: str = ""
    """How importances are made comparable; see `probes.first_order.importance`."""
    penalty: float = 0.05
    """What an open gate costs while gates are learned, in nats."""
    seed: int = 0
    """Seed of random and learned orders."""
    memory: int = MEMORY
    """Bytes that activations may take at once."""
    ledger: Ledger = field(default_factory=lambda: Ledger(None))
    """Keeps what was found: exact sweeps, importances, learned gates."""
    tell: Callable[[], None] = lambda: None
    """Called after every step of an order that is found step by step, and every point."""


@dataclass(frozen=True, kw_only=True)
class PruningPath:
    """One way down: the heads that are gone after each step."""

    order: str
    normalise: str = ""
    """How importances were made comparable; empty if the order uses no importances."""
    seed: int | None = None
    """Seed of a random order."""
    removed: tuple[HeadSet, ...]
    """All heads that are gone after each step, sorted."""


def greedy_order(search: Search) -> Heads:
    """Remove in each step the heads whose ablation costs least, every candidate tried exactly.

    With steps of one head that is n (n + 1) / 2 candidates for n heads. They are tried on the model
    that is left, which is smaller, and whose layers below a candidate run once for all of them.
    """

    def harm(model: HookedGPT) -> Scores:
        singles = [(pair,) for pair in model.config.heads()]
        return harms(search, model, singles, f"greedy-{len(singles)}")

    return step_by_step(search, harm)


def iterative_order(search: Search) -> Heads:
    """Remove in each step the least important heads, and score those that are left anew."""
    return step_by_step(search, lambda model: importances(search, model))


def one_shot_order(search: Search) -> Heads:
    """Score all heads once; remove the least important ones first."""
    return ascending(search.model.config.heads(), importances(search, search.model))


def worst_first_order(search: Search) -> Heads:
    """Remove the most important heads first: how bad an order can be."""
    return one_shot_order(search)[::-1]


def learned_order(search: Search) -> Heads:
    """Remove first the heads whose learned gates are closed furthest."""
    heads = search.model.config.heads()

    def learn() -> Scores:
        learned = learn_gates(
            search.model,
            search.batch,
            penalty=search.penalty,
            reference=search.ablation.reference,
            seed=search.seed,
        )
        return learned.log_a.numpy()

    return ascending(heads, search.ledger.kept("learned", (len(heads),), learn))


def random_order(search: Search) -> Heads:
    """Remove heads in an order drawn from the seed alone."""
    heads = search.model.config.heads()
    generator = torch.Generator().manual_seed(search.seed)
    return tuple(heads[i] for i in torch.randperm(len(heads), generator=generator).tolist())


ORDERS = {
    "greedy": greedy_order,
    "one-shot": one_shot_order,
    "iterative": iterative_order,
    "learned": learned_order,
    "random": random_order,
    "worst-first": worst_first_order,
}
ORACLE = "oracle"
"""No order, but the best set of each size out of all there are: what no order can beat."""
ORDER_NAMES = (*ORDERS, ORACLE)
BY_IMPORTANCE = ("one-shot", "iterative", "worst-first")
STEP_BY_STEP = ("greedy", "iterative")


def searches(
    search: Search, orders: Sequence[str], normalise: Sequence[str], seeds: int
) -> list[tuple[str, Search]]:
    """Return what each path of some orders is found with.

    Args:
        search: What is common to all.
        orders: Names out of ORDER_NAMES.
        normalise: The normalisations with which orders by importance are found, each by itself.
        seeds: Random orders: those of the seeds search.seed, search.seed + 1 and so on.

    Raises:
        ValueError: An unknown order, or an oracle of too many heads.
    """
    found = []
    for name in orders:
        if name not in ORDER_NAMES:
            raise ValueError(unknown_name("pruning order", name, ORDER_NAMES))
        if name == ORACLE:
            require(
                len(search.model.config.heads()) <= MOST_FOR_ORACLE,
                "heads of which all sets are tried",
                f"at most {MOST_FOR_ORACLE}; take another order than {ORACLE}",
                len(search.model.config.heads()),
            )
        variants = [search]
        if name in BY_IMPORTANCE:
            variants = [dataclasses.replace(search, normalise=each) for each in normalise]
        elif name == "random":
            variants = [dataclasses.replace(search, seed=search.seed + i) for i in range(seeds)]
        found += [(name, variant) for variant in variants]
    return found


def pruning_path(order: str, search: Search) -> PruningPath:
    """Find the path of one order; see `searches`."""
    if order == ORACLE:
        return PruningPath(order=order, removed=best_sets(search))
    heads = ORDERS[order](search)
    return PruningPath(
        order=order,
        normalise=search.normalise,
        seed=search.seed if order == "random" else None,
        removed=tuple(tuple(sorted(heads[:count])) for count in search.counts),
    )


def best_sets(search: Search) -> tuple[HeadSet, ...]:
    """Return the best set of heads to remove of every size, all of them tried."""
    heads = search.model.config.heads()
    sets = [some for count in search.counts for some in itertools.combinations(heads, count)]
    harm = harms(search, search.model, sets, ORACLE)
    ranked = [sets[i] for i in np.argsort(harm, kind="stable")]
    return tuple(next(s for s in ranked if len(s) == count) for count in search.counts)


def step_by_step(search: Search, score: Callable[[HookedGPT], Scores]) -> Heads:
    """Remove the heads of lowest score in each step, scored on the model that is left."""
    order: Heads = ()
    for count in search.counts:
        if count > len(order):
            left = without(search.model, order, search.ablation)
            order += ascending(left.config.heads(), score(left))[: count - len(order)]
        search.tell()
    return order


def harms(search: Search, model: HookedGPT, sets: Sequence[HeadSet], name: str) -> Scores:
    """Return what each set costs, exactly: the metric without it, so that more is worse."""
    swept = sweep_sets(
        model,
        search.batch,
        sets,
        ablation=search.ablation,
        metrics=[search.metric.name],
        execution=Execution(memory=search.memory, ledger=search.ledger.inner(name)),
    )
    values = swept.means()[1:, 0]
    return -values if search.metric.better == "higher" else values


def importances(search: Search, model: HookedGPT) -> Scores:
    """Return the importance of each head, to first order: of its gate closed onto zeros.

    Mode mean uses zeros here too, although a removed head leaves its mean. The importance is by the
    loss if that is the metric, else by the margin. Heads of a layer without any importance have 0.
    """
    n_left = len(model.config.heads())
    by = "loss" if search.metric.name == "loss" else "margin"

    def measure() -> Scores:
        found = head_importance(
            model, search.batch, normalise=search.normalise, metric=by, memory=search.memory
        )
        return np.nan_to_num(found["importance"].to_numpy(dtype=np.float64), nan=0.0)

    return search.ledger.kept(f"importance-{search.normalise}-{n_left}", (n_left,), measure)


def without(model: HookedGPT, heads: Heads, ablation: Ablation) -> HookedGPT:
    """Return a view of the model without some heads; see `probes.pruning.removing.pruned_view`."""
    if not heads:
        return model
    return pruned_view(model, heads, mode=ablation.mode, reference=ablation.reference)


def ascending(heads: Heads, scores: Scores) -> Heads:
    """Return the heads from the lowest score to the highest; equal ones keep their order."""
    return tuple(heads[i] for i in np.argsort(scores, kind="stable"))
