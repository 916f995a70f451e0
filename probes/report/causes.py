"""What a report says about causes: which heads replace each other, and how small a model can get.

The measurements are those of `probes.ablation`, `probes.pruning` and `probes.first_order`; here it
is decided which of them a model gets, on how many sequences.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lab.naming import head_label
from probes import plots
from probes.ablation.redundancy import RedundancyPlan, head_redundancy, label_groups
from probes.ablation.shapley import MOST_EXACT, shapley_values
from probes.first_order.agreement import FirstOrderStudy, first_order_study
from probes.head_classes import shown_label
from probes.number_text import change, interval
from probes.plots.canvas import figure_of
from probes.pruning.curves import metric_for, pruning_curve, removable
from probes.pruning.plan import PruningPlan
from probes.report.subject import Subject
from probes.tables import json_rows

SEQUENCES = 100
"""Sequences that sets of heads are ablated on, and as many others that an order is found on."""

MOST_PRUNED = 16
"""Heads up to which a report shows a pruning curve with random orders."""

MOST_ABLATED = 300
"""Heads up to which it ablates groups of them and compares a gradient with exact ablations."""

WITHIN = (0.0, 0.01, 0.05)
"""The shares of the metric that may be lost, for counting the removable heads."""

Drawn = tuple[Figure, pd.DataFrame]
"""A figure, and the table that it shows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Causes:
    """What was found out about causes; None where a model has too many heads, or too few."""

    redundancy: pd.DataFrame | None
    shapley: pd.DataFrame | None
    first_order: FirstOrderStudy | None
    pruning: pd.DataFrame | None
    removable: pd.DataFrame | None

    def tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the tables that there are, by name."""
        study = self.first_order
        named = {
            "redundancy": self.redundancy,
            "shapley": self.shapley,
            "first_order": None if study is None else study.heads,
            "agreement": None if study is None else study.agreement,
            "pruning": self.pruning,
            "removable": self.removable,
        }
        for name, frame in named.items():
            if frame is not None:
                yield name, frame


def measure_causes(subject: Subject, labels: pd.DataFrame) -> Causes:
    """Ablate groups, share their effects out, prune step by step, and compare with a gradient.

    Args:
        subject: What the report is about.
        labels: The table of label_heads, whose classes are the groups.
    """
    model, batch = subject.model, subject.batch[:SEQUENCES]
    n_heads = len(labels)
    groups = label_groups(labels)
    ablated = 1 < n_heads <= MOST_ABLATED
    every_set = n_heads <= MOST_PRUNED
    redundancy = shapley = study = curve = spare = None
    if ablated and groups:
        redundancy = head_redundancy(model, batch, groups, plan=RedundancyPlan(every_set=every_set))
    metric = metric_for(model, batch) if ablated else "loss"
    if ablated:
        study = first_order_study(model, batch, metric=metric)
    if 1 < n_heads <= MOST_EXACT:
        heads = list(zip(labels["layer"].tolist(), labels["head"].tolist(), strict=True))
        shapley = shapley_values(model, batch, heads)
    if 1 < n_heads <= MOST_PRUNED and subject.batch is not subject.reference:
        selection = subject.reference[:SEQUENCES]
        plan = PruningPlan(metric=metric, metrics=list(dict.fromkeys((metric, "exact_match"))))
        curve = pruning_curve(model, selection, held_out=batch, plan=plan)
        spare = heads_to_spare(curve, "exact_match")
    return Causes(
        redundancy=redundancy, shapley=shapley, first_order=study, pruning=curve, removable=spare
    )


def heads_to_spare(curve: pd.DataFrame, also: str) -> pd.DataFrame:
    """Return how many heads of a pruning curve can be removed at 0, 1 and 5 %.

    Args:
        curve: A table of `pruning_curve`.
        also: A metric beside the one that the order was chosen by.
    """
    metrics = dict.fromkeys((curve.attrs["chosen_by"], also))
    frame = pd.concat([removable(curve, WITHIN, metric) for metric in metrics], ignore_index=True)
    frame.attrs = removable(curve).attrs
    return frame


def cause_figures(causes: Causes, task: str | None) -> dict[str, Drawn]:
    """Draw what was found, each figure by its name, beside the table that it shows.

    Args:
        causes: What was found.
        task: The task that the model was trained on, if any: its own heads bear its name.
    """
    drawn: dict[str, Drawn] = {}
    if causes.redundancy is not None:
        frame = causes.redundancy
        frame = frame.assign(group=[shown_label(str(name), task) for name in frame["group"]])
        groups = frame[frame["head"].isna()]
        # Of the groups the one that costs most together: the others are in the table.
        worst = str(groups["group"].iloc[int(groups["delta"].abs().to_numpy().argmax())])
        drawn["joint"] = figure_of(plots.plot_joint(frame, group=worst)), frame
    if causes.shapley is not None:
        drawn["shapley"] = figure_of(plots.plot_shapley(causes.shapley)), causes.shapley
    if causes.first_order is not None:
        heads, agreement = causes.first_order.heads, causes.first_order.agreement
        ax = plots.plot_first_order(heads, agreement, column="importance")
        drawn["first_order"] = figure_of(ax), heads
    if causes.pruning is not None:
        drawn["pruning"] = figure_of(plots.plot_pruning_curve(causes.pruning)), causes.pruning
    return drawn


def redundancy_sentences(redundancy: pd.DataFrame, name_of: Mapping[str, str]) -> list[str]:
    """Return a sentence for each group: its joint cost, and which of its heads replace each other.

    Args:
        redundancy: The table of head_redundancy.
        name_of: What a group is called.
    """
    rows = json_rows(redundancy)
    said = []
    for group in (row for row in rows if row["head"] is None):
        heads = [row for row in rows if row["group"] == group["group"] and row["head"] is not None]
        name = name_of.get(group["group"], group["group"])
        if len(heads) == 1:
            continue
        cost = (
            f"The {len(heads)} {name} heads together change the {group['metric']} by "
            f"{change(group['delta'])} {group['unit']} ({interval_text(group)}), one by one by "
            f"{change(group['singles'])} in all"
        )
        spare = [row for row in heads if row["verdict"] == "redundant"]
        if spare:
            names = ", ".join(head_label(row["layer"], row["head"]) for row in spare)
            are = "it is" if len(spare) == 1 else "they are"
            cost += f": {names} can be removed alone but not with the others; "
            cost += f"{are} redundant, not useless"
        elif group["verdict"] == "useless":
            cost += ": they can all be removed"
        said.append(f"{cost}.")
    return said


def interval_text(row: Mapping[str, Any]) -> str:
    """Write the interval of a row."""
    if row["ci_low"] is None:
        return "one sequence, no interval"
    return f"95 %: {interval(row['ci_low'], row['ci_high'], change)}"
