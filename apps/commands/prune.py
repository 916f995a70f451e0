"""`headlab prune`: a smaller model without some heads, its certificate and its curve."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from apps.commands.arguments import fill_in, flag, gives, listed, refuse_beside
from apps.commands.subject_form import WHAT_THERE_IS, SubjectForm
from apps.console import say, say_heading
from apps.kept_sweeps import long_work
from apps.opened_run import SEQUENCES, parse_heads
from apps.output_folder import write_and_say
from apps.pruned_model import default_place, place_given, write_model
from apps.scored_sequences import TOPIC_SEQUENCES, ScoredInput, split_input
from apps.subject import Subject, open_subject, require_heads, require_some_heads
from apps.terminal.pruning_table import say_curve, say_removable
from lab.config import require_whole
from lab.naming import counted
from lab.packaged import KNOWN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from lab.gates import Reference
    from probes.execution import Execution

Heads = tuple[tuple[int, int], ...]

ORDERS = (
    ("greedy", "at each step, the head whose ablation costs least (tries all heads)"),
    ("one-shot", "by first-order importance, scored once"),
    ("iterative", "the same, scored again after each step"),
    ("learned", "by gates trained with a penalty"),
    ("worst-first", "one-shot, reversed: a bad order for comparison"),
    ("random", "drawn with the seed"),
    ("oracle", "the best of all sets of each size, up to 9 heads"),
)

OF_ORDERS = ("--keep", "--order", "--curve", "--metric", "--normalise", "--random-orders")
"""Flags about an order; they have no meaning with --heads."""

TABLES = "pruning"
"""Folder of tables in that of a smaller model."""

BY_SCORE = ("one-shot", "iterative", "worst-first")
"""Orders by first-order importance, which --normalise affects."""

ABOUT = f"""
Remove heads of a model permanently: the heads that you name, or all except the
--keep heads that an order leaves. The original model is not changed.

  headlab prune reversal --heads L1H0 L1H1 L1H2 L1H3
  headlab prune reversal --order greedy --keep 3 --out small
  headlab prune reversal --order greedy --curve
  headlab prune {next(iter(KNOWN))} --order one-shot --keep 135 --out half

{WHAT_THERE_IS}

orders, chosen on sequences that are not used for reporting:
{listed(ORDERS)}

The new model has fewer weights and needs less memory for generation. Its
answers are those of the original with these heads ablated. The command checks
this: it writes the model, reads it back and compares it. parity.json reports
the differences (with --fine-tune, before that training). Heads keep their ids:
L1H3 stays L1H3, even after another pruning.

For models of up to 100 heads, the command shows what the remaining heads did
before and do now.

With --curve, every step of the order is measured on held-out sequences, beside
random orders: how many heads can be removed at a loss of 1 % and 5 %? An
interrupted command resumes when you run it again.
"""


@dataclass(frozen=True, kw_only=True)
class PruneForm(SubjectForm):
    """Arguments of `headlab prune`."""

    sequences: Annotated[
        int | None,
        flag(
            "N",
            "Held-out sequences to measure on.",
            f"(default: {SEQUENCES} of a run's task, {TOPIC_SEQUENCES} texts)",
        ),
    ] = None
    heads: Annotated[
        tuple[str, ...],
        flag("HEAD", "Heads to remove: L0H1 is head 1 of layer 0, counted from 0.", ""),
    ] = ()
    order: Annotated[
        Literal["greedy", "one-shot", "iterative", "learned", "worst-first", "random", "oracle"],
        arg(help="Order of removal (see above)."),
    ] = "greedy"
    keep: Annotated[
        int | None,
        flag("N", "Heads to keep in all.", ""),
    ] = None
    curve: bool = False
    """Measure every step of the order, and random orders beside it."""
    random_orders: Annotated[int, flag("N", "Random orders beside a curve.")] = 20
    metric: Annotated[
        Literal["auto", "loss", "token_accuracy", "exact_match", "margin"],
        arg(
            help="Metric to preserve; auto: the margin if at least 99 % of tokens are right, "
            "else the loss."
        ),
    ] = "auto"
    normalise: Annotated[
        Literal["none", "layer", "param"],
        arg(help="Divide first-order importance by nothing, the layer's norm or parameters."),
    ] = "none"
    mode: Annotated[
        Literal["zero", "mean"],
        arg(help="What replaces a removed head: zeros, or its mean output as a constant."),
    ] = "zero"
    fine_tune: Annotated[int, flag("STEPS", "Train the pruned model for this many more steps.")] = 0
    out: Annotated[
        str | None,
        flag(
            "RUN|DIR",
            "Name of the new run, or a new folder; for a curve, the folder of its tables.",
            "(default: WHAT-pruned, or WHAT-pruned-2 and so on, of a run)",
        ),
    ] = None


def run_prune(arguments: list[str]) -> int:
    """Write a smaller model with its certificate, and print the curve."""
    form = fill_in(PruneForm, arguments, command="prune", about=ABOUT)
    heads = parse_heads(form.heads)
    check_request(form, arguments)
    makes_model = bool(heads) or form.keep is not None
    out = None if form.out is None else place_given(form.out, makes_model)
    subject = open_subject(form.what, checkpoint=form.checkpoint, device=form.device)
    require_heads(subject, heads)
    require_some_heads(subject, form.what)
    if form.keep is not None:
        require_whole("--keep", form.keep, 0, subject.n_heads - 1)
    if makes_model and out is None:
        out = default_place(subject)
    if form.fine_tune and subject.opened is None:
        raise ValueError("--fine-tune needs a run, whose task it trains on")
    chosen = split_input(subject, form)
    reference = folded_mean(subject, chosen) if form.mode == "mean" else None
    asked = (dataclasses.replace(form, out=None), subject.facts, chosen.digest)
    tables: dict[str, pd.DataFrame] = {}
    with long_work("pruning", *asked) as work:  # kept until all is written
        if not heads:
            tables = orders(form, subject, chosen, reference, work)
            heads = () if form.keep is None else removed_at(tables["pruning"], form)
        by = [] if form.heads and form.mode == "zero" else [("chosen on", chosen.reference_name)]
        say_heading(subject.title, [*chosen.facts, *by])
        if form.curve:
            say_tables(form, tables, text=chosen.task is None)
        if makes_model and out is not None:
            if form.curve:
                say()
            how = {"mode": form.mode, "reference": reference}
            tables |= write_model(
                subject, heads, out, chosen, how, fine_tune=form.fine_tune, seed=form.seed
            )
        if not form.curve:  # without --curve, the tables of the order are not results
            tables = {name: tables[name] for name in tables if name == "survivors"}
        if tables and out is not None:
            told = {"model": subject.title, **subject.facts, **dict(chosen.facts)}
            told |= {"interval": chosen.interval}
            told |= {"selection": chosen.reference_name} if by else {}
            write_and_say(
                out,
                tables,
                drawn(tables, text=chosen.task is None),
                told,
                within=TABLES if makes_model else None,
            )
    return 0


def check_request(form: PruneForm, arguments: list[str]) -> None:
    """Raise ValueError for flags that contradict each other or are missing."""
    form.check_numbers()
    require_whole("--random-orders", form.random_orders, 0)
    require_whole("--fine-tune", form.fine_tune, 0)
    if gives(arguments, "--heads"):
        if not form.heads:
            raise ValueError("--heads needs at least one value, got none; write --heads L0H1")
        refuse_beside(arguments, "--heads", OF_ORDERS)
    elif form.keep is None and not form.curve:
        raise ValueError("one of --heads, --keep and --curve must be given, got none")
    if not form.curve and gives(arguments, "--random-orders"):
        raise ValueError("--random-orders must be left out without --curve; give both or neither")
    if form.curve and form.order == "random":
        require_whole("--random-orders", form.random_orders, 1)
    if form.order not in BY_SCORE and gives(arguments, "--normalise"):
        raise ValueError(
            f"--normalise has no effect with --order {form.order}; use one of {', '.join(BY_SCORE)}"
        )


def folded_mean(subject: Subject, chosen: ScoredInput) -> "Reference":
    """Return the mean of every head over the selection, one for all positions."""
    from probes.ablation.table import mean_reference

    return mean_reference(
        subject.model, chosen.reference, name=chosen.reference_name, per_position=False
    )


def orders(
    form: PruneForm,
    subject: Subject,
    chosen: ScoredInput,
    reference: "Reference | None",
    execution: "Execution",
) -> "dict[str, pd.DataFrame]":
    """Return the tables of an order: its curve (up to --keep without --curve) and summaries."""
    from probes.pruning.curves import pruning_curve, random_band
    from probes.pruning.plan import PruningPlan, curve_steps
    from probes.report.causes import heads_to_spare

    steps = None
    if form.keep is not None:
        gone = subject.n_heads - form.keep
        known = curve_steps(subject.n_heads, None)
        steps = sorted({gone, *(step for step in known if form.curve or step < gone)})
    curve = pruning_curve(
        subject.model,
        chosen.reference,
        form.order,
        held_out=chosen.batch,
        plan=PruningPlan(
            steps=steps,
            seeds=form.random_orders if form.curve else int(form.order == "random"),
            metric=None if form.metric == "auto" else form.metric,
            normalise=form.normalise,
            mode=form.mode,
            reference=reference,
        ),
        seed=form.seed,
        execution=execution,
    )
    spare = heads_to_spare(curve, "exact_match" if chosen.task else "loss")
    tables = {"pruning": curve, "removable": spare}
    drawn_orders = form.curve and form.random_orders
    return {**tables, "random_band": random_band(curve)} if drawn_orders else tables


def removed_at(curve: "pd.DataFrame", form: PruneForm) -> Heads:
    """Return the heads that the order removes until --keep remain."""
    own = curve[(curve["order"] == form.order) & (curve["n_kept"] >= form.keep)]
    first = own[own["metric"] == own["metric"].iloc[0]]
    first = first[first["seed"].isna() | (first["seed"] == form.seed)]
    return parse_heads(tuple(label for label in first["removed"] if label))


def say_tables(form: PruneForm, tables: "dict[str, pd.DataFrame]", *, text: bool) -> None:
    """Print the curve of the order, and how many heads can be removed."""
    from probes.tables import json_rows

    curve = tables["pruning"]
    metric = curve.attrs["chosen_by"]
    rows = [row for row in json_rows(curve) if row["metric"] == metric]
    band = json_rows(tables["random_band"]) if "random_band" in tables else []
    own = [row for row in rows if row["order"] == form.order and row["seed"] in (None, form.seed)]
    say_curve(own, [row for row in band if row["metric"] == metric], text=text)
    if shared := curve.attrs["shared_sequences"]:
        say(
            "",
            f"{counted(shared, 'held-out sequence')} also among those that the order was chosen on",
        )
    say()
    say_removable(json_rows(tables["removable"]))


def drawn(tables: "dict[str, pd.DataFrame]", *, text: bool) -> "dict[str, Figure]":
    """Draw the curve, if there is one; for text, the loss as perplexity."""
    if "pruning" not in tables:
        return {}
    from probes.plots import plot_pruning_curve
    from probes.plots.canvas import figure_of

    curve = tables["pruning"]
    metric = "perplexity" if text and curve.attrs["chosen_by"] == "loss" else None
    return {"pruning": figure_of(plot_pruning_curve(curve, metric=metric))}
