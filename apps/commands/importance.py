"""`headlab importance`: a first-order preview of every ablation, and how far it can be trusted."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from apps.commands.arguments import check_out, fill_in, listed
from apps.commands.subject_form import WHAT_THERE_IS, SubjectForm
from apps.console import say, say_heading
from apps.kept_sweeps import long_work
from apps.output_folder import write_and_say
from apps.scored_sequences import (
    ScoredInput,
    ScoredSequences,
    ablation_facts,
    ablation_of,
    scored_input,
)
from apps.subject import Subject, open_subject, require_some_heads
from apps.terminal.importance_table import say_agreement, say_importance
from lab.packaged import KNOWN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = (
    ("exact", "what the metric changes by without the head: one pass a head"),
    ("estimate", "the same to first order (attribution patching): two passes for all heads"),
    ("importance", "|d metric / d gate| (Michel et al. 2019), which has no sign"),
)
REDUCTIONS = (
    ("example", "absolute value of each sequence, then the mean: the paper"),
    ("token", "absolute value of each token: the authors' code"),
    ("batch", "absolute value of the sum of all: sequences that disagree cancel"),
)

ABOUT = f"""
Estimate how important each head is from one gradient, and compare the estimate
with exact ablations on this very model.

  headlab importance reversal
  headlab importance {next(iter(KNOWN))} --no-exact

{WHAT_THERE_IS}

A model that answers everything right has no loss to lose, and no gradient: its
margin is taken, the logit of the right token less the largest other one.

columns:
{listed(COLUMNS)}

--reduce:
{listed(REDUCTIONS)}

--normalise layer makes heads of an idle layer look as important as those that
work; look at both.
"""


@dataclass(frozen=True, kw_only=True)
class ImportanceForm(SubjectForm):
    """What `headlab importance` asks for."""

    sequences: ScoredSequences = None
    metric: Annotated[
        Literal["auto", "loss", "margin"],
        arg(help="What is to change; auto: the margin where 99 % of tokens are right, else loss."),
    ] = "auto"
    reduce: Annotated[
        Literal["example", "token", "batch"], arg(help="How absolute values are added, see above.")
    ] = "example"
    normalise: Annotated[
        Literal["none", "layer", "param"],
        arg(help="What importance is divided by: nothing, its layer's, the head's parameters."),
    ] = "none"
    exact: bool = True
    """Ablate every head too, and say how far the estimates agree."""
    all_heads: bool = False
    """Show every head of a large model."""


def run_importance(arguments: list[str]) -> int:
    """Print first-order importance beside exact ablations, and write both where asked."""
    form = fill_in(ImportanceForm, arguments, command="importance", about=ABOUT)
    form.check_numbers()
    out = None if form.out is None else check_out(form.out)
    subject = open_subject(form.what, checkpoint=form.checkpoint, device=form.device)
    require_some_heads(subject, form.what)
    chosen = scored_input(subject, form)
    tables = measured(form, subject, chosen)
    from probes.tables import json_rows

    rows = {name: json_rows(frame) for name, frame in tables.items()}
    facts = [*chosen.facts, *ablation_facts(chosen, "zero")]
    say_heading(subject.title, facts)
    say_importance(rows["importance"], rows.get("first_order"), everything=form.all_heads)
    if "agreement" in rows:
        say()
        say_agreement(rows["agreement"])
    if out is not None:
        told = {"model": subject.title, **subject.facts, **dict(facts)}
        write_and_say(out, tables, drawn(tables), told)
    return 0


def measured(
    form: ImportanceForm, subject: Subject, chosen: ScoredInput
) -> "dict[str, pd.DataFrame]":
    """Return the tables by name; exact ablations only where they are asked for."""
    from probes.first_order.agreement import FirstOrderPlan, first_order_study
    from probes.first_order.importance import head_importance
    from probes.pruning.curves import metric_for

    model, batch = subject.model, chosen.batch
    metric = metric_for(model, batch) if form.metric == "auto" else form.metric
    tables = {
        "importance": head_importance(
            model, batch, form.reduce, form.normalise, metric, seed=form.seed
        )
    }
    if not form.exact:
        return tables
    asked = (dataclasses.replace(form, out=None), subject.facts, chosen.digest)
    with long_work("ablating each head", *asked) as work:
        study = first_order_study(
            model,
            batch,
            ablation_of(subject, chosen, "zero"),
            metric,
            plan=FirstOrderPlan(
                reduce=form.reduce,
                # What layers do to the ranks is always shown, if nothing else was asked for.
                normalise="layer" if form.normalise == "none" else form.normalise,
            ),
            seed=form.seed,
            execution=work,
        )
    return {**tables, "first_order": study.heads, "agreement": study.agreement}


def drawn(tables: "dict[str, pd.DataFrame]") -> "dict[str, Figure]":
    """Draw the estimates against the exact changes, where there are any."""
    if "first_order" not in tables:
        return {}
    from probes.plots import plot_first_order
    from probes.plots.canvas import figure_of

    heads, agreement = tables["first_order"], tables["agreement"]
    return {
        f"first-order-{column}": figure_of(plot_first_order(heads, agreement, column=column))
        for column in ("estimate", "importance")
    }
