"""How small a model can get: what is left of it after each removal, on sequences held out.

The orders are `probes.pruning.orders`'s, the measurements `probes.pruning.curve_points`'s.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lab.checks import require, require_number, require_seed, require_whole
from lab.hooked_gpt import HookedGPT
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
from probes.pruning.curve_points import Point, head_labels, measured_points
from probes.pruning.orders import (
    STEP_BY_STEP,
    PruningPath,
    Search,
    pruning_path,
    searches,
)
from probes.pruning.plan import PruningPlan, curve_metrics, curve_steps, names_of
from probes.pruning.removing import check_filling
from probes.reading.observed_model import as_batch, probe_input, provenance
from probes.schemas.cause import PRUNING, RANDOM_BAND, REMOVABLE
from probes.tables import checked_table, digest, make_table

SOLVED = 0.99
"""Token accuracy from which a model has next to no loss to lose: its margin says more."""
WITHIN = (0.01, 0.05)
"""The default tolerances of `removable`, as shares of the metric."""


def pruning_curve(
    model: HookedGPT,
    batch: Batch | Tokens,
    order: str | Sequence[str] = "greedy",
    *,
    held_out: Batch | Tokens,
    plan: PruningPlan | None = None,
    seed: int = 0,
    execution: Execution | None = None,
) -> pd.DataFrame:
    """Remove heads step by step: one row per order, step and metric, random orders beside it.

    The order is chosen on `batch` and measured on `held_out`, so that a head spared by luck
    shows. See `removable` and `random_band` for what a curve says.

    >>> from probes import repeated_batch
    >>> from probes.planted import PlantedHead, plant
    >>> copy = PlantedHead(kind="induction", writes="copy")
    >>> model = plant([[PlantedHead(kind="previous", writes="tokens")], [copy]]).model
    >>> batch, held_out = (repeated_batch(model, block=5, seed=seed) for seed in (0, 1))
    >>> plan = PruningPlan(seeds=2, metric="loss", metrics="loss")
    >>> table = pruning_curve(model, batch, "greedy", held_out=held_out, plan=plan)
    >>> greedy = table[table["order"] == "greedy"]
    >>> greedy[["n_removed", "removed"]].values.tolist()
    [[0, ''], [1, 'L1H0'], [2, 'L0H0']]

    Args:
        model: A HookedGPT; it is left as it is.
        batch: Selection sequences, of a task or plain tokens.
        order: "greedy" (every candidate tried in every step), "one-shot" (by first-order
            importance), "iterative" (that, scored anew after each step), "learned" (gates that a
            penalty closes), "worst-first" (one-shot, reversed), "oracle" (the best of all sets, up
            to 9 heads), "random"; or several of them.
        held_out: Other sequences, to report on; attrs["shared_sequences"] counts those that are in
            `batch` too.
        plan: Steps, random orders, metrics and what fills the gaps; None: the defaults.
        seed: Seed of random and learned orders, and of the bootstrap.
        execution: Memory, progress (in steps) and ledger of the curve; no processes of your own.

    Raises:
        ValueError: An unknown name, steps out of range, the same sequences twice, sequences
            without a scored row, a reference that cannot be folded in, or the ledger of another
            request.
    """
    execution = Execution() if execution is None else execution
    execution.require_default("pruning_curve", "processes")
    plan = PruningPlan() if plan is None else plan
    require_seed(seed)
    asked = names_of(order)
    orders = list(dict.fromkeys([*asked, "random"] if plan.seeds else asked))
    require(bool(orders), "order", "at least one name", "none")
    if "random" in orders:
        require_whole("seeds", plan.seeds, 1)
    check_filling(model, plan.mode, plan.reference)
    selection, others = as_batch(batch), as_batch(held_out)
    probe_input(model, batch)
    x = probe_input(model, held_out)
    require_scored(model, selection, "the selection")
    require_scored(model, others, "held_out")
    shared = shared_sequences(selection, others)
    chosen_by = metric_for(model, selection) if plan.metric is None else plan.metric
    reported = curve_metrics(plan.reported(chosen_by))
    search = Search(
        model=model,
        batch=selection,
        metric=curve_metrics([chosen_by])[0],
        counts=curve_steps(len(model.config.heads()), plan.steps),
        ablation=Ablation(mode=plan.mode, reference=plan.reference),
        penalty=plan.penalty,
        seed=seed,
        memory=execution.memory,
    )
    wanted = searches(search, orders, names_of(plan.normalise), plan.seeds)
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
        "chosen_by": chosen_by,
        "penalty": plan.penalty,
        "bootstrap_seed": seed,
        "reference": None if plan.reference is None else plan.reference.name,
        "reference_sha256": None if plan.reference is None else plan.reference.sha256,
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


def require_scored(model: HookedGPT, batch: Batch, what: str) -> None:
    """Raise ValueError unless a row is scored and every answer is in the output vocabulary."""
    require(bool(batch.loss_mask.any()), f"scored rows of {what}", "at least 1", 0)
    require_answers(batch, model.config.vocab_out)


def shared_sequences(selection: Batch, held_out: Batch) -> int:
    """Count the held-out sequences whose tokens are also in the selection.

    Any two draws of a small task may share some.

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


def metric_for(model: HookedGPT, batch: Batch) -> str:
    """Return the default metric: the margin if the model has solved the task, else the loss."""
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
    """Count the removable heads of a pruning curve: one row per order and tolerance.

    The count is the largest number of removed heads at which the held-out metric is worse than the
    whole model's by at most this share. It need not hold at every step before: a model may get
    better on the way.

    Args:
        curve: A table of `pruning_curve`.
        within: Shares: 0.01 is 1 %, 0 is no loss at all.
        metric: The metric to compare; None: the one that the order was chosen by.

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
