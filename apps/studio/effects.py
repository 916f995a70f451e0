"""Effects of ablation and pruning on a view's model, measured by `probes` and cached.

No number is computed here. Long work reports its progress and may stop at any step.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import streamlit as st

from apps.studio.address import View
from apps.studio.models import (
    BY_ABLATION,
    BY_CHECKPOINT,
    ablation_of,
    heads_of,
    kept_for_filling,
    reference,
    task_of,
    unseen,
    weights,
)
from apps.studio.pruning import METRIC, ORDER, WITHIN, Curve, curve_of

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

CURVE_SEQUENCES = 100
"""Sequences for selection, and for held-out results, of a pruning curve; as in a report."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of a view's ablation on unseen sequences, by metric."""

    baseline: dict[str, float]
    """Numbers of the intact model, and n_sequences."""
    ablated: dict[str, float]
    """The same with the heads ablated."""
    change: dict[str, dict[str, float]]
    """For each metric: delta, ci_low and ci_high, from a bootstrap over sequences."""


@st.cache_data(max_entries=32, show_spinner="Measuring", hash_funcs=BY_CHECKPOINT)
def intact_numbers(view: View) -> dict[str, float]:
    """Return loss, exact_match, token_accuracy and n_sequences of the whole model."""
    from lab.evaluation import evaluate

    return asdict(evaluate(weights(view), unseen(view.run)))


@st.cache_data(max_entries=256, show_spinner="Measuring", hash_funcs=BY_ABLATION)
def effect(view: View, *, constant: bool = False) -> Effect:
    """Return the effect of the view's ablation on the sequences that training evaluated on.

    Args:
        view: The view, with at least one ablated head.
        constant: Whether the mean is over all positions, as in a pruned model.
    """
    from probes.ablation.table import ablation_sweep
    from probes.tables import json_rows

    frame = ablation_sweep(
        weights(view),
        unseen(view.run),
        ablation_of(view, constant=constant),
        sets=[heads_of(view)],
    )
    rows = {row["metric"]: row for row in json_rows(frame)}
    n = {"n_sequences": next(iter(rows.values()))["n_sequences"]}
    ends = ("delta", "ci_low", "ci_high")
    return Effect(
        baseline={name: row["baseline"] for name, row in rows.items()} | n,
        ablated={name: row["ablated"] for name, row in rows.items()} | n,
        change={name: {end: row[end] for end in ends} for name, row in rows.items()},
    )


def joint_key(view: View) -> tuple[Any, ...]:
    """Return the key of the joint effect of a view's heads."""
    return ("joint", *view.ablation)


def joint_runs(view: View) -> int:
    """Return the number of ablated models for the joint effect: alone, together, all but one."""
    from apps.scored_sequences import DONORS

    n = len(view.ablated)
    sets = 3 if n == 2 else 2 * n + 1
    return sets * (DONORS if view.mode == "resample" else 1)


def joint_effect(view: View, progress: Progress) -> list[dict[str, Any]]:
    """Return the effects of the heads together and one by one: rows of the redundancy table.

    They are measured on the sequences of `headlab ablate`.
    """
    from apps.opened_run import SEQUENCES
    from probes.ablation.redundancy import RedundancyPlan, head_redundancy
    from probes.execution import Execution
    from probes.tables import json_rows

    run = view.run
    frame = head_redundancy(
        weights(view),
        task_of(run).sample(SEQUENCES, seed=run.config.seed, split="test"),
        {"chosen": heads_of(view)},
        ablation=ablation_of(view),
        plan=RedundancyPlan(controls=0),
        execution=Execution(progress=progress),
    )
    return json_rows(frame)


def curve_key(view: View) -> tuple[Any, ...]:
    """Return the key of a pruning curve."""
    return ("curve", view.identity, view.mode)


def measured_curve(view: View, progress: Progress) -> Curve | None:
    """Remove heads in the greedy order and in random ones, and measure every step."""
    from probes.execution import Execution
    from probes.pruning.curves import pruning_curve, removable
    from probes.pruning.plan import PruningPlan
    from probes.tables import json_rows

    run = view.run
    frame = pruning_curve(
        weights(view),
        kept_for_filling(run)[:CURVE_SEQUENCES],
        ORDER,
        held_out=unseen(run)[:CURVE_SEQUENCES],
        plan=PruningPlan(
            metrics=METRIC,
            mode=view.mode,
            reference=reference(view, constant=True) if view.mode == "mean" else None,
        ),
        execution=Execution(progress=progress),
    )
    return curve_of(json_rows(frame), json_rows(removable(frame, WITHIN, METRIC)))
