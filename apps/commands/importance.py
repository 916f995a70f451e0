"""`headlab importance`: first-order estimates of every ablation, and how accurate they are."""

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
    ("exact", "exact change of the metric without the head (one forward pass per head)"),
    ("estimate", "the same to first order (attribution patching; two passes for all heads)"),
    ("importance", "|d metric / d gate| (Michel et al. 2019); it has no sign"),
)
REDUCTIONS = (
    ("example", "mean of the absolute values of sequences (the paper)"),
    ("token", "mean of the absolute values of tokens (the authors' code)"),
    ("batch", "absolute value of the sum; sequences that disagree cancel"),
)

ABOUT = f"""
Estimate how important each head is from one gradient, and compare the estimate
with exact ablations on this very model.

  headlab importance reversal
  headlab importance {next(iter(KNOWN))} --no-exact

{WHAT_THERE_IS}

A model that answers everything correctly has almost no loss and no gradient.
The command then uses the margin: the logit of the right token minus the
largest other logit.

columns:
{listed(COLUMNS)}

--reduce:
{listed(REDUCTIONS)}

--normalise layer makes heads of an idle layer look as important as those that
work; compare both.
"""


@dataclass(frozen=True, kw_only=True)
class ImportanceForm(SubjectForm):
    """Arguments of `headlab importance`."""

    sequences: ScoredSequences = None
    metric: Annotated[
        Literal["auto", "loss", "margin"],
        arg(
            help="Metric to differentiate; auto: the margin if 99 % of tokens are right, else loss."
        ),
    ] = "auto"
    reduce: Annotated[
        Literal["example", "token", "batch"],
        arg(help="How absolute values are averaged (see --reduce above)."),
    ] = "example"
    normalise: Annotated[
        Literal["none", "layer", "param"],
        arg(help="Divide importance by nothing, the layer's norm or the number of parameters."),
    ] = "none"
    exact: bool = True
    """Ablate every head too, and show how well the estimates agree."""
    all_heads: bool = False
    """Show every head of a large model."""


def run_importance(arguments: list[str]) -> int:
    """Print first-order importance beside exact ablations, and write both into --out."""
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
    """Return the tables by name; exact ablations only with --exact."""
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
                # The ranks normalised by layer are shown unless --normalise says otherwise.
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
