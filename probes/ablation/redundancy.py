"""Heads that replace each other: the cost of a group together, and of each head alone and last.

A head that can be removed alone may still be useful: another of its kind may do its work. So the
heads of one label are ablated one by one, all together, and all but one, and what they cost
together is compared with as many other heads of the same layers.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float64

from lab.checks import require_number, require_whole
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.ablation.matched_sets import Head, draw_matched_sets, share_in_layers
from probes.ablation.metrics import MetricFunction, one_metric
from probes.ablation.shapley import MOST_EXACT, shapley_plan, subset, value_rows
from probes.ablation.sweep import Ablation, HeadSet, Swept, sweep_sets
from probes.execution import Execution
from probes.head_classes import CLASSES
from probes.intervals import bootstrap_interval, mean_over_rows
from probes.labels.head_labels import label_heads
from probes.reading.observed_model import as_batch, provenance, require_gates
from probes.schemas.cause import REDUNDANCY
from probes.tables import rows_table

Verdict = Literal["needed", "redundant", "useless", "unresolved"]

TOLERANCES: Mapping[str, float] = {"logit": 0.1}
"""The default tolerance by the metric's unit: 0.1 for logits, a tenth of the odds; for all others
0.01, a hundredth of accuracy or 1 % of perplexity."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one ablation changes, or one more head beside others."""

    delta: float
    ci_low: float
    ci_high: float

    def hurts(self, better: Literal["lower", "higher"] | None, tolerance: float) -> bool:
        """Return whether the metric gets worse by more than the tolerance, and not by luck.

        If it is not known which way is better, any change counts as worse. An interval of
        one sequence is NaN, and then the change itself decides.
        """
        up = self.delta > tolerance and not self.ci_low <= 0.0
        down = self.delta < -tolerance and not self.ci_high >= 0.0
        return (up and better != "higher") or (down and better != "lower")


@dataclass(frozen=True, kw_only=True, eq=False)
class RedundancyPlan:
    """When an ablation hurts, and which sets of a group are ablated to find out."""

    metric: str | MetricFunction = "loss"
    """A name from `probes.ablation.metrics`, or a function."""
    tolerance: float | None = None
    """What an ablation may cost, in the metric's unit; None: 0.01, or 0.1 of a logit."""
    controls: int = 8
    """Random sets of as many other heads, of the same layers as far as these have others, that
    each group is compared with."""
    every_set: bool = False
    """Ablate every subset of groups of up to 9 heads: Shapley values, and verdicts that no order
    can overturn, for up to 2^n runs a group."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        require_whole("controls", self.controls, 0)
        require_number("tolerance", self.allowed, 0.0)

    @property
    def allowed(self) -> float:
        """The tolerance, or what it is for the metric's unit."""
        if self.tolerance is not None:
            return self.tolerance
        return TOLERANCES.get(one_metric(self.metric).unit, 0.01)


def head_redundancy(
    model: HookedGPT,
    batch: Batch | Tokens,
    groups: Mapping[str, Iterable[Head]] | None = None,
    *,
    ablation: Ablation | None = None,
    plan: RedundancyPlan | None = None,
    attention_mask: GivenMask | None = None,
    seed: int = 0,
    execution: Execution | None = None,
) -> pd.DataFrame:
    """Ablate groups of heads together, alone and all but one: a row a group, then one a head.

    A head's verdict is one of four. "needed": its own ablation hurts. "redundant": it can be
    removed alone, but its ablation hurts in a model without others of its group. "useless": it can
    be removed in every combination that was tried, and so can its group. "unresolved": it can be
    removed alone and last, but its group cannot be removed and other orders were not tried (see
    `every_set`), or no row was scored. An ablation hurts if the metric gets worse by more than the
    tolerance and its 95 % interval excludes 0. A group is needed, useless or, where no row was
    scored, unresolved.

    Args:
        model: A HookedGPT.
        batch: A task's batch, or plain tokens.
        groups: Names, and the heads of each, in original ids; None: the classes of `label_heads`.
        ablation: What happens to the heads; None: zeros in their place.
        plan: The metric and its tolerance, and which sets are tried; None: the defaults.
        attention_mask: True (or 1) at real tokens; None: all are.
        seed: Seed of the controls and of the bootstrap.
        execution: Memory, progress, ledger and processes of the sweep.

    Raises:
        ValueError: No group, an empty one, or what `sweep_sets` refuses.
    """
    require_gates(model)
    plan = RedundancyPlan() if plan is None else plan
    ablation = Ablation() if ablation is None else ablation
    if groups is None:
        groups = label_groups(label_heads(model, batch, attention_mask=attention_mask, seed=seed))
    named = checked_groups(model, groups)
    pool = model.config.heads()
    beside = {
        name: draw_matched_sets(heads, pool, plan.controls, seed=seed)
        for name, heads in named.items()
    }
    wanted = {one for heads in named.values() for one in sets_of(heads, plan.every_set)}
    wanted |= {one for sets in beside.values() for one in sets}
    swept = sweep_sets(
        model,
        batch,
        sorted(wanted),
        ablation=ablation,
        metrics=[plan.metric],
        attention_mask=attention_mask,
        execution=execution,
    )
    study = Study(swept=swept, tolerance=plan.allowed, seed=seed)
    rows = [
        {
            "group": name,
            "heads": HeadGates(heads=heads).label,
            "metric": swept.metrics[0].name,
            "mode": ablation.mode,
            "baseline": float(swept.means()[0, 0]),
            **row,
            "n_sequences": swept.n_sequences,
            "unit": swept.metrics[0].unit,
        }
        for name, heads in named.items()
        for row in study.rows(heads, beside[name], plan.every_set and len(heads) <= MOST_EXACT)
    ]
    return rows_table(
        rows,
        REDUNDANCY,
        {
            **provenance(model, as_batch(batch).tokens),
            "ablation": ablation.to_dict(),
            "bootstrap_seed": seed,
            "tolerance": plan.allowed,
            "every_set": plan.every_set,
        },
    )


def label_groups(labels: pd.DataFrame) -> dict[str, HeadSet]:
    """Return the heads of each class of a table of `label_heads`, and those of uniform and broad.

    Heads labelled mixed or none form no group, because they have nothing in common.
    """
    found = {
        str(name): tuple(zip(own["layer"].tolist(), own["head"].tolist(), strict=True))
        for name, own in labels.groupby("label")
    }
    return {name: found[name] for name in (*CLASSES, "uniform", "broad") if name in found}


def checked_groups(model: HookedGPT, groups: Mapping[str, Iterable[Head]]) -> dict[str, HeadSet]:
    """Return the groups with their heads sorted.

    Raises:
        ValueError: There is no group, one is empty, or a head is unknown.
    """
    named = {name: HeadGates.ablate(heads, like=model).heads for name, heads in groups.items()}
    if not named:
        raise ValueError(
            "groups must be at least one set of heads, got none: no head of this model has a "
            "label; pass groups={'mine': [(0, 1), (0, 2)]}"
        )
    for name, heads in named.items():
        if not heads:
            raise ValueError(f"a group must have at least one head, got none in {name!r}")
    return named


def sets_of(heads: HeadSet, every_set: bool) -> set[HeadSet]:
    """Return the sets of a group to ablate: one, all, all but one; or every one that is not empty.

    >>> sorted(sets_of(((0, 1), (0, 2), (1, 0)), False))[:3]
    [((0, 1),), ((0, 1), (0, 2)), ((0, 1), (0, 2), (1, 0))]
    """
    n = len(heads)
    sizes = range(1, n + 1) if every_set and n <= MOST_EXACT else {1, n - 1, n} - {0}
    return {one for size in sizes for one in combinations(heads, size)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """What a sweep of groups says about them."""

    swept: Swept
    tolerance: float
    seed: int

    @cached_property
    def runs(self) -> dict[HeadSet, int]:
        """The run that went without each set; run 0 is the whole model."""
        return {(): 0} | {heads: 1 + i for i, heads in enumerate(self.swept.sets)}

    def changes(self, heads: HeadSet, beside: HeadSet) -> Float64[np.ndarray, "batch 1"]:
        """Return what these heads change of each sequence, in a model without those others."""
        without = [self.runs[beside], self.runs[tuple(sorted({*heads, *beside}))]]
        return np.diff(self.swept.totals[:, without, 0], axis=1)

    def change(self, heads: HeadSet, beside: HeadSet = ()) -> Change:
        """Return what these heads change, in a model without those others."""
        counts, changes = self.swept.counts[:, 0], self.changes(heads, beside)
        low, high = bootstrap_interval(changes, counts, seed=self.seed)
        (delta,) = mean_over_rows(changes, counts)
        return Change(delta=float(delta), ci_low=float(low[0]), ci_high=float(high[0]))

    def hurts(self, heads: HeadSet, beside: HeadSet = ()) -> bool:
        """Return whether the metric gets worse without these heads, in a model without those."""
        total, count = self.changes(heads, beside).sum(), self.swept.counts[:, 0].sum()
        if abs(total) <= self.tolerance * count:
            return False  # a small change needs no interval, and there may be hundreds of sets
        return self.change(heads, beside).hurts(self.swept.metrics[0].better, self.tolerance)

    def rows(self, heads: HeadSet, beside: list[HeadSet], every_set: bool) -> list[dict[str, Any]]:
        """Return the row of a group, and one for each of its heads.

        Args:
            heads: The group.
            beside: The sets that it is compared with.
            every_set: Whether all its subsets were run.
        """
        joint = self.change(heads)
        alone = [self.change((head,)) for head in heads]
        others = [self.change(one).delta for one in beside]
        nothing = {"last": math.nan, "last_ci_low": math.nan, "last_ci_high": math.nan}
        rows: list[dict[str, Any]] = [
            {
                "layer": None,
                "head": None,
                **vars(joint),
                **nothing,
                "value": math.nan,
                "singles": sum(change.delta for change in alone),
                "control": float(np.mean(others)) if others else math.nan,
                "control_low": min(others, default=math.nan),
                "control_high": max(others, default=math.nan),
                "n_controls": len(others),
                "control_in_layers": share_in_layers(beside, heads),
                "verdict": self.verdict_of(heads),
            }
        ]
        values = self.values(heads) if every_set else np.full(len(heads), math.nan)
        for head, own, value in zip(heads, alone, values, strict=True):
            rest = tuple(other for other in heads if other != head)
            last = self.change((head,), rest)
            rows.append(
                {
                    **rows[0],
                    "layer": head[0],
                    "head": head[1],
                    **vars(own),
                    "last": last.delta,
                    "last_ci_low": last.ci_low,
                    "last_ci_high": last.ci_high,
                    "value": float(value),
                    **dict.fromkeys(("singles", "control"), math.nan),
                    **dict.fromkeys(("control_low", "control_high"), math.nan),
                    "n_controls": 0,
                    "control_in_layers": math.nan,
                    "verdict": self.verdict(head, rest, every_set),
                }
            )
        return rows

    def values(self, heads: HeadSet) -> Float64[np.ndarray, " head"]:
        """Return the Shapley values of a group all of whose subsets were run."""
        plan = shapley_plan(len(heads), None, self.seed)
        runs = [self.runs[subset(heads, chosen)] for chosen in plan.chosen]
        rows = value_rows(plan, self.swept.totals[:, runs, 0], self.swept.counts[:, 0], self.seed)
        return np.array([row["value"] for row in rows])

    def verdict_of(self, heads: HeadSet) -> Verdict:
        """Return the verdict of a group."""
        if not self.is_known(heads):
            return "unresolved"
        return "needed" if self.hurts(heads) else "useless"

    def is_known(self, heads: HeadSet) -> bool:
        """Return whether the change is a number: NaN weights and no scored row give NaN."""
        return bool(self.swept.counts[:, 0].sum() and np.isfinite(self.changes(heads, ())).all())

    def verdict(self, head: Head, rest: HeadSet, every_set: bool) -> Verdict:
        """Return the verdict of a head; see `head_redundancy`."""
        if not self.is_known((head,)):
            return "unresolved"
        if self.hurts((head,)):
            return "needed"
        sizes = range(1, len(rest) + 1) if every_set else [len(rest)]
        if any(
            self.hurts((head,), beside) for size in sizes for beside in combinations(rest, size)
        ):
            return "redundant"
        tried_all = every_set or not self.hurts(tuple(sorted({head, *rest})))
        return "useless" if tried_all else "unresolved"
