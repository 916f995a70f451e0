"""`headlab ablate`: the effect of ablating each head, each layer, sets, pairs and groups."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from apps.commands.arguments import (
    HELP_WIDTH,
    check_out,
    fill_in,
    flag,
    gives,
    listed,
    refuse_beside,
    require_named,
)
from apps.commands.subject_form import WHAT_THERE_IS, SubjectForm
from apps.console import say, say_heading
from apps.kept_sweeps import long_work
from apps.opened_run import parse_heads
from apps.output_folder import write_and_say
from apps.scored_sequences import (
    WRITES,
    Mode,
    ScoredInput,
    ScoredSequences,
    ablation_facts,
    ablation_of,
    scored_input,
)
from apps.subject import Subject, open_subject, require_heads, require_some_heads
from apps.terminal.ablation_table import (
    INTERACTS,
    LOWER_BOUND,
    group_name,
    say_groups,
    say_pairs,
    say_set,
    say_sweep,
)
from lab.packaged import KNOWN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from probes.ablation.sweep import Ablation
    from probes.execution import Execution

ABOUT = f"""
Switch heads off and measure what breaks: each head and each layer in turn, some
heads together (--heads), every pair of some (--pairs), or the heads of each
label together and one by one (--groups). An interrupted command resumes when
you run it again.

  headlab ablate reversal
  headlab ablate reversal --heads L0H1 L0H3 --mode mean
  headlab ablate reversal --pairs --heads L0H0 L0H1 L0H2 L0H3
  headlab ablate {next(iter(KNOWN))} --out ablated

{WHAT_THERE_IS}

A run is measured on the answers of unseen sequences of its task, any other
model on the second copy of repeated random tokens; or give your own prompts.
An ablated head's output is replaced before it is mixed with the others'.

modes, and what replaces the output of an ablated head:
{listed(WRITES)}

{fill(LOWER_BOUND, HELP_WIDTH)}
Check whole layers, --pairs and --groups before you call a head useless. For a
model of over 100 heads, whole layers need --layers.
"""


@dataclass(frozen=True, kw_only=True)
class AblateForm(SubjectForm):
    """Arguments of `headlab ablate`."""

    sequences: ScoredSequences = None
    heads: Annotated[
        tuple[str, ...],
        flag(
            "HEAD",
            "Heads to ablate together: L0H1 is head 1 of layer 0, counted from 0.",
            "(default: each head, then each layer, in turn)",
        ),
    ] = ()
    mode: Annotated[Mode, arg(help="What replaces a head's output (see the modes above).")] = "zero"
    value: Annotated[
        float,
        flag("G", "Share of a head's output that the ablation keeps, 0 to 1."),
    ] = 0.0
    metrics: Annotated[
        tuple[Literal["loss", "token_accuracy", "exact_match", "margin", "kl"], ...],
        arg(help="Metrics to measure; the first one is shown with its interval."),
    ] = ("loss", "token_accuracy", "exact_match")
    pairs: bool = False
    """Ablate every pair of the heads; show the effect beyond the sum of both."""
    groups: bool = False
    """Ablate the heads of each label together, alone and last; show which are redundant."""
    layers: bool = False
    """Ablate whole layers, too, in a model of any size."""
    all_heads: bool = False
    """Show every row of a large table."""


def run_ablate(arguments: list[str]) -> int:
    """Print the effects of ablation, and write them into --out."""
    form = fill_in(AblateForm, arguments, command="ablate", about=ABOUT)
    require_named(arguments, "--heads", form.heads, "L0H1")
    require_named(arguments, "--metrics", form.metrics, "loss")
    if form.groups:
        refuse_beside(arguments, "--groups", ("--pairs", "--heads", "--layers", "--all-heads"))
    elif form.pairs:
        refuse_beside(arguments, "--pairs", ("--layers",))
    elif form.heads:
        refuse_beside(arguments, "--heads", ("--layers", "--all-heads"))
    if form.groups or form.pairs:
        require_one_metric(arguments, form)
    heads = parse_heads(form.heads)
    form.check_numbers()
    out = None if form.out is None else check_out(form.out)
    subject = open_subject(form.what, checkpoint=form.checkpoint, device=form.device)
    require_heads(subject, heads)
    require_some_heads(subject, form.what)
    chosen = scored_input(subject, form)
    ablation = ablation_of(subject, chosen, form.mode, value=form.value)
    asked = (dataclasses.replace(form, out=None), subject.facts, chosen.digest)
    from probes.reading.observed_model import model_device

    with long_work("ablating", *asked, device=model_device(subject.model)) as work:
        frame = measured(form, subject, chosen, ablation, heads, work)
    facts = [*chosen.facts, *ablation_facts(chosen, form.mode, form.value)]
    say_heading(subject.title, facts)
    say_rows(form, frame, chosen.task, subject.n_heads)
    if out is not None:
        told = {"model": subject.title, **subject.facts, **dict(facts)}
        pictures = drawn(form, frame, chosen.task)
        write_and_say(out, {str(frame.attrs["table"]): frame}, pictures, told)
    return 0


def require_one_metric(arguments: Sequence[str], form: AblateForm) -> None:
    """Raise ValueError for several metrics with --pairs or --groups, which measure one."""
    if gives(arguments, "--metrics") and len(form.metrics) > 1:
        asked = "--groups" if form.groups else "--pairs"
        raise ValueError(
            f"--metrics must be one with {asked}, got {' '.join(form.metrics)}; "
            f"write --metrics {form.metrics[0]}"
        )


def measured(
    form: AblateForm,
    subject: Subject,
    chosen: ScoredInput,
    ablation: "Ablation",
    heads: Sequence[tuple[int, int]],
    execution: "Execution",
) -> "pd.DataFrame":
    """Return the table of the chosen measurement."""
    from probes.ablation.pairs import pair_effects
    from probes.ablation.redundancy import RedundancyPlan, head_redundancy
    from probes.ablation.table import HEADS_AND_LAYERS, MOST_HEADS_WITH_LAYERS, ablation_sweep

    model, batch = subject.model, chosen.batch
    work: dict[str, Any] = {"execution": execution, "seed": form.seed}
    if form.groups:
        few = subject.n_heads <= MOST_HEADS_WITH_LAYERS  # 2^9 runs a group of a large one
        plan = RedundancyPlan(metric=form.metrics[0], every_set=few)
        return head_redundancy(model, batch, ablation=ablation, plan=plan, **work)
    if form.pairs:
        return pair_effects(
            model, batch, heads or None, ablation=ablation, metric=form.metrics[0], **work
        )
    return ablation_sweep(
        model,
        batch,
        ablation,
        sets=[heads] if heads else HEADS_AND_LAYERS if form.layers else None,
        metrics=form.metrics,
        **work,
    )


def say_rows(form: AblateForm, frame: "pd.DataFrame", task: str | None, n_heads: int) -> None:
    """Print the table, with its caveat."""
    from probes.tables import json_rows

    rows = json_rows(frame)
    if form.groups:
        say_groups(rows, task, n_heads)
    elif form.pairs:
        say_pairs(rows, everything=form.all_heads)
    elif form.heads:
        say_set(rows)
    else:
        say_sweep(rows, everything=form.all_heads)
    if not (form.groups or form.pairs):
        say("", LOWER_BOUND)
    if not (form.groups or form.pairs or form.heads) and frame["head"].notna().all():
        say("Whole layers were left out because the model has over 100 heads; add --layers.")


def drawn(form: AblateForm, frame: "pd.DataFrame", task: str | None) -> "dict[str, Figure]":
    """Draw the table, unless it is of one set."""
    from probes.plots import plot_effects, plot_joint, plot_pairs
    from probes.plots.canvas import figure_of

    if form.groups:
        said = {str(name): group_name(str(name), task) for name in frame["group"].unique()}
        named = frame.assign(group=frame["group"].map(said))
        return {
            f"joint-{name}": figure_of(plot_joint(named, group=group))
            for name, group in said.items()
        }
    if form.pairs:
        return {"pairs": figure_of(plot_pairs(frame, least=INTERACTS))}
    if form.heads:
        return {}
    return {"ablation": figure_of(plot_effects(frame, metric=form.metrics[0]))}
