"""How small a model can get: what is left of it after each removal, on sequences held out.

The orders are `probes.pruning.orders`'s, the measurements `probes.pruning.points`'s.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.checks import require, require_number, require_seed, require_whole
from lab.gates import Reference, whole_numbers
from lab.model import HookedGPT
from lab.naming import unknown_name
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.ablation.ledger import known_by, open_ledger, tensor_digest
from probes.ablation.metrics import Metric, get_metrics
from probes.ablation.sweep import (
    Ablation,
    HeadSet,
    require_answers,
    sweep_sets,
)
from probes.execution import Execution
from probes.intervals import bootstrap_interval
from probes.pruning.orders import (
    STEP_BY_STEP,
    PruningPath,
    Search,
    pruning_path,
    searches,
)
from probes.pruning.points import Point, head_labels, measured_points
from probes.pruning.removing import check_filling
from probes.reading.reads import as_batch, probe_input, provenance
from probes.schemas.cause import PRUNING, RANDOM_BAND, REMOVABLE
from probes.tables import checked_table, digest, make_table

CURVE_METRICS = ("loss", "token_accuracy", "exact_match", "margin")
MOST_STEPS = 40
"""Heads up to which every single removal is a step; of more, a curve has FEW_STEPS."""
FEW_STEPS = 20
SOLVED = 0.99
"""Token accuracy from which a model has next to no loss to lose: its margin says more."""
WITHIN = (0.01, 0.05)
"""What may be lost, as a share, of the two questions that everybody asks."""


def pruning_curve(
    model: HookedGPT,
    batch: Batch | Tokens,
    order: str | Sequence[str] = "greedy",
    *,
    held_out: Batch | Tokens,
    steps: Sequence[int] | None = None,
    seeds: int = 20,
    metric: str | None = None,
    metrics: str | Iterable[str] = CURVE_METRICS,
    normalise: str | Sequence[str] = ("none", "layer"),
    mode: str = "zero",
    reference: Reference | None = None,
    penalty: float = 0.05,
    seed: int = 0,
    execution: Execution | None = None,
) -> pd.DataFrame:
    """Remove heads step by step: one row per order, step and metric, random orders beside it.

    The order is found on `batch` and its value read off `held_out`, so that a head which was
    spared by luck shows. See `removable` and `random_band` for what a curve says.

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Selection sequences, of a task or plain tokens.
        order: "greedy" (every candidate tried in every step), "one-shot" (by first-order
            importance), "iterative" (that, scored anew after each step), "learned" (gates that a
            penalty closes), "worst-first" (one-shot, reversed), "oracle" (the best of all sets, up
            to 9 heads), "random"; or several of them.
        held_out: Other sequences, to report on; attrs["shared_sequences"] counts those that are in
            `batch` too.
        steps: How many heads are gone at each point, ascending; None: every number of them, of
            more than 40 heads 20 numbers. Fewer steps make a greedy or iterative order coarser,
            because all heads of a step are chosen at once.
        seeds: Random orders that stand beside the others; 0: none.
        metric: What is to suffer least; None: the margin of a model that answers at least 99 % of
            the selection's tokens right, and so has no loss to lose, otherwise the loss.
        metrics: What is reported, out of CURVE_METRICS; the metric that is chosen by always is.
        normalise: How importances are made comparable, out of NORMALISATIONS in
            `probes.first_order.importance`: orders by importance come once with each. By layer,
            heads of an idle layer look as important as those that work.
        mode: "zero" or "mean".
        reference: In mode "mean", the mean over positions of every head's z; see `prune_heads`.
            Orders by importance do not know of it: theirs is the importance under zeros.
        penalty: What an open gate costs in a learned order, in nats.
        seed: Of random and learned orders, and of the bootstrap.
        execution: Memory, progress (in steps) and ledger of the curve; no processes of your own.

    Raises:
        ValueError: An unknown name, steps out of range, the same sequences twice, sequences
            without a scored row, a reference that cannot be folded in, or the ledger of another
            request.
    """
    execution = Execution() if execution is None else execution
    execution.require_default("pruning_curve", "processes")
    require_whole("seeds", seeds, 0)
    require_seed(seed)
    asked = names_of(order)
    orders = list(dict.fromkeys([*asked, "random"] if seeds else asked))
    require(bool(orders), "order", "at least one name", "none")
    if "random" in orders:
        require_whole("seeds", seeds, 1)
    check_filling(model, mode, reference)
    selection, others = as_batch(batch), as_batch(held_out)
    probe_input(model, batch)
    x = probe_input(model, held_out)
    require_scored(model, selection, "the selection")
    require_scored(model, others, "held_out")
    shared = shared_sequences(selection, others)
    named = names_of(metrics)
    curve_metrics(named)  # says what is wrong before any work
    (chosen_by,) = curve_metrics([metric or metric_for(model, selection)])
    reported = curve_metrics(named if chosen_by.name in named else [*named, chosen_by.name])
    search = Search(
        model=model,
        batch=selection,
        metric=chosen_by,
        counts=curve_steps(len(model.config.heads()), steps),
        ablation=Ablation(mode="mean" if mode == "mean" else "zero", reference=reference),
        penalty=penalty,
        seed=seed,
        memory=execution.memory,
    )
    wanted = searches(search, orders, names_of(normalise), seeds)
    in_steps = sum(name in STEP_BY_STEP for name, _ in wanted)
    tell = counter((len(wanted) + in_steps) * len(search.counts), execution)
    with open_ledger(execution, lambda: manifest_of(search, wanted, others, reported)) as kept:
        paths = [
            pruning_path(name, dataclasses.replace(each, tell=tell, ledger=kept))
            for name, each in wanted
        ]
        measuring = dataclasses.replace(search, tell=tell, ledger=kept)
        points = measured_points(measuring, paths, others, reported)
    about = {
        **provenance(model, x.tokens),
        "selection_sha256": digest(selection.tokens.cpu().contiguous().numpy().tobytes()),
        "shared_sequences": shared,
        "chosen_by": chosen_by.name,
        "penalty": penalty,
        "bootstrap_seed": seed,
        "reference": None if reference is None else reference.name,
        "reference_sha256": None if reference is None else reference.sha256,
    }
    return curve_table(search, paths, points, about)


def manifest_of(
    search: Search,
    wanted: Sequence[tuple[str, Search]],
    held_out: Batch,
    metrics: Sequence[Metric],
) -> dict[str, Any]:
    """Return what the bits of a curve depend on, as plain data."""
    tokens = [values for of in (search.batch, held_out) for values in (of.tokens, of.loss_mask)]
    return {
        **known_by(search.model, *tokens),
        "orders": [[name, each.normalise, each.seed] for name, each in wanted],
        "steps": list(search.counts),
        "ablation": search.ablation.to_dict(),
        "fills": tensor_digest(*(fill for fill in search.ablation.fills() if fill is not None)),
        "chosen_by": search.metric.name,
        "metrics": [metric.name for metric in metrics],
        "penalty": search.penalty,
        "memory": search.memory,
    }


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
    """Return names, also of one that stands by itself."""
    return [given] if isinstance(given, str) else list(given)


def require_scored(model: HookedGPT, batch: Batch, what: str) -> None:
    """Raise ValueError unless some row of a batch counts and the model can say every answer."""
    require(bool(batch.loss_mask.any()), f"scored rows of {what}", "at least 1", 0)
    require_answers(batch, model.config.vocab_out)


def shared_sequences(selection: Batch, held_out: Batch) -> int:
    """Count the sequences that are reported on though the order is chosen by the same tokens.

    Of a small task there may be some in any two draws.

    Raises:
        ValueError: The two are the same.
    """
    chosen, reported = selection.tokens.tolist(), held_out.tokens.tolist()
    if chosen == reported:
        raise ValueError(
            "held_out must be other sequences than those of the selection, got the same ones; "
            "draw them from another split"
        )
    known = {tuple(row) for row in chosen}
    return sum(tuple(row) in known for row in reported)


def curve_metrics(names: Iterable[str]) -> tuple[Metric, ...]:
    """Return metrics by name: those that compare with nothing, as a pruned model is alone."""
    wanted = list(names)
    for name in wanted:
        if name not in CURVE_METRICS:
            raise ValueError(unknown_name("metric of a pruned model", str(name), CURVE_METRICS))
    return get_metrics(wanted)


def metric_for(model: HookedGPT, batch: Batch) -> str:
    """Return what says most about a model: the margin once it is solved, else the loss."""
    accuracy = sweep_sets(model, batch, (), metrics=["token_accuracy"]).means()[0, 0]
    return "margin" if accuracy >= SOLVED else "loss"


def counter(total: int, execution: Execution) -> Callable[[], None]:
    """Return a function that reports one step more each time it is called."""
    done = itertools.count(1)
    return lambda: execution.tell(next(done), total)


def curve_table(
    search: Search,
    paths: Sequence[PruningPath],
    points: Mapping[HeadSet, Point],
    about: Mapping[str, Any],
) -> pd.DataFrame:
    """Return the table of pruning curves."""
    sets = list(points)
    whole = points[()].held_out
    totals = np.stack([points[heads].held_out.totals[:, 0] for heads in sets])
    heads_of_all = search.model.config.heads()
    measured: dict[tuple[HeadSet, int], dict[str, float]] = {}
    for j in range(len(whole.metrics)):
        runs, counts = totals[:, :, j].T, whole.counts[:, j]
        low, high = bootstrap_interval(runs, counts, seed=search.seed)
        changes = runs - whole.totals[:, :1, j]
        less, more = bootstrap_interval(changes, counts, seed=search.seed)
        for i, heads in enumerate(sets):
            point = points[heads]
            held_out = point.held_out.means()[0, j]
            selection = point.selection
            measured[heads, j] = {
                "selection": math.nan if selection is None else selection.means()[0, j],
                "held_out": held_out,
                "ci_low": low[i],
                "ci_high": high[i],
                "delta": held_out - whole.means()[0, j],
                "delta_ci_low": less[i],
                "delta_ci_high": more[i],
            }
    rows = [
        {
            "order": path.order,
            "normalise": path.normalise,
            "seed": path.seed,
            "n_removed": len(gone),
            "n_kept": len(heads_of_all) - len(gone),
            "removed": head_labels(set(gone) - set(before)),
            "kept": head_labels(set(heads_of_all) - set(gone)),
            "metric": metric.name,
            "mode": search.ablation.mode,
            **measured[gone, j],
            "n_parameters": points[gone].n_parameters,
            "cache_bytes": points[gone].cache_bytes,
            "n_sequences": len(whole.totals),
            "unit": metric.unit,
        }
        for path in paths
        for before, gone in itertools.pairwise(((), *path.removed))
        for j, metric in enumerate(whole.metrics)
    ]
    return make_table({name: [row[name] for row in rows] for name in PRUNING.names}, PRUNING, about)


def random_band(curve: pd.DataFrame) -> pd.DataFrame:
    """Return what random orders of a pruning curve leave: one row per step and metric.

    Raises:
        ValueError: The curve has no random order.
    """
    checked_table(curve, PRUNING)
    drawn = curve[curve["order"] == "random"]
    require(len(drawn) > 0, "a curve with a band", "one of random orders (seeds=20)", "none")
    groups = drawn.groupby(["n_removed", "n_kept", "metric", "unit"], sort=False)["held_out"]
    band = groups.agg(low="min", median="median", high="max", n_orders="count").reset_index()
    columns = {name: band[name].tolist() for name in RANDOM_BAND.names}
    return make_table(columns, RANDOM_BAND, known_of(curve))


def removable(
    curve: pd.DataFrame, within: float | Sequence[float] = WITHIN, metric: str | None = None
) -> pd.DataFrame:
    """Say how many heads of a pruning curve can go: one row per order and tolerance.

    The most heads at whose removal the held-out metric is worse than the whole model's by at most
    this share of it. It need not hold at every step before: a model may get better on the way.

    Args:
        curve: A table of `pruning_curve`.
        within: Shares: 0.01 is 1 %, 0 is no loss at all.
        metric: Of which metric; None: the one that the order was chosen by.

    Raises:
        ValueError: The curve has no such metric, or a share is out of range.
    """
    checked_table(curve, PRUNING)
    wanted = curve.attrs["chosen_by"] if metric is None else metric
    known = curve["metric"].unique().tolist()
    if wanted not in known:
        raise ValueError(unknown_name("metric of this curve", wanted, known))
    (better,) = (each.better for each in get_metrics([wanted]))
    of_metric = curve[curve["metric"] == wanted]
    worse = of_metric["delta"] if better == "lower" else -of_metric["delta"]
    lost = worse / (of_metric["held_out"] - of_metric["delta"]).abs()
    rows = []
    for share in [within] if isinstance(within, int | float) else within:
        require_number("within", share, 0.0)
        kept = of_metric[(lost <= share) | (worse <= 0)]
        for (order, normalise), group in kept.groupby(["order", "normalise"], sort=False):
            most = group.groupby("seed", dropna=False)["n_removed"].max()
            rows.append(
                {
                    "order": order,
                    "normalise": normalise,
                    "metric": wanted,
                    "within": share,
                    "removable": most.median(),
                    "low": most.min(),
                    "high": most.max(),
                    "n_heads": int((of_metric["n_kept"] + of_metric["n_removed"]).max()),
                    "n_orders": len(most),
                }
            )
    columns = {name: [row[name] for row in rows] for name in REMOVABLE.names}
    return make_table(columns, REMOVABLE, known_of(curve))


def known_of(curve: pd.DataFrame) -> dict[str, Any]:
    """Return the provenance of a curve, for a table that is made of it."""
    return {str(name): value for name, value in curve.attrs.items()}
