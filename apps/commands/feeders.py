"""`headlab feeders`: the earlier heads that an induction head depends on."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from apps.commands.arguments import check_out, fill_in, flag, listed, require_named
from apps.commands.subject_form import WHAT_THERE_IS, ModelForm
from apps.console import say_heading
from apps.kept_sweeps import long_work
from apps.opened_run import parse_heads
from apps.output_folder import write_and_say
from apps.scored_sequences import (
    REPEATED_SEQUENCES,
    Mode,
    ablation_facts,
    ablation_of,
    repeated_input,
    repeats,
)
from apps.subject import open_subject, require_heads, require_some_heads
from apps.terminal.feeder_table import say_feeders
from lab.packaged import KNOWN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = (
    ("previous", "attention of the ablated head to the previous token"),
    ("score", "induction score of the watched head"),
    (
        "control",
        "the same for control heads: heads of the same (or nearest) layers that do not "
        "attend to the previous token",
    ),
    ("K comp.", "K composition score (weights only), minus the mean of random heads"),
    ("feeds", "yes if the drop is at least half of the score and the controls change little"),
)

ABOUT = f"""
Find the earlier heads that the induction heads of a model depend on. An
induction head needs a previous-token head. The command ablates each earlier
head, alone and together with all previous-token heads, and measures the
induction heads and the loss. An interrupted command resumes when you run it
again.

  headlab feeders {next(iter(KNOWN))}
  headlab feeders folder/of/a/model --targets L5H1 --frozen --out feeders

{WHAT_THERE_IS}

The model reads repeated random tokens; scores and loss are those of the second
copy. A model can copy without induction heads, as a run of the task induction
may: then name the heads to watch with --targets L1H0.

columns:
{listed(COLUMNS)}
"""


@dataclass(frozen=True, kw_only=True)
class FeedersForm(ModelForm):
    """Arguments of `headlab feeders`."""

    sequences: Annotated[
        int | None,
        flag("N", "Number of repeated sequences.", f"(default: {REPEATED_SEQUENCES})"),
    ] = None
    targets: Annotated[
        tuple[str, ...],
        flag(
            "HEAD",
            "Heads to watch: L5H1 is head 1 of layer 5, counted from 0.",
            "(default: all induction heads)",
        ),
    ] = ()
    heads: Annotated[
        tuple[str, ...],
        flag(
            "HEAD",
            "Earlier heads to ablate.",
            "(default: every head of a layer before the last target)",
        ),
    ] = ()
    mode: Annotated[Mode, arg(help="What replaces a head's output, as in headlab ablate.")] = "zero"
    frozen: bool = False
    """Also measure the loss with all attention frozen."""
    all_heads: bool = False
    """Show every row."""


def run_feeders(arguments: list[str]) -> int:
    """Print which heads the induction heads depend on, and write it into --out."""
    form = fill_in(FeedersForm, arguments, command="feeders", about=ABOUT)
    require_named(arguments, "--targets", form.targets, "L5H1")
    require_named(arguments, "--heads", form.heads, "L4H0")
    targets, heads = parse_heads(form.targets), parse_heads(form.heads)
    form.check_numbers()
    out = None if form.out is None else check_out(form.out)
    subject = open_subject(form.what, checkpoint=form.checkpoint, device=form.device)
    require_heads(subject, [*targets, *heads])
    require_some_heads(subject, form.what)
    n = REPEATED_SEQUENCES if form.sequences is None else form.sequences
    from probes.feeders.scores import feeder_scores
    from probes.reading.inputs import LONGEST_BLOCK
    from probes.tables import json_rows

    chosen = repeated_input(subject, n, form.seed, longest=LONGEST_BLOCK)
    ablation = ablation_of(subject, chosen, form.mode)

    asked = (dataclasses.replace(form, out=None), subject.facts, chosen.digest)
    with long_work("ablating earlier heads", *asked) as work:
        frame = feeder_scores(
            subject.model,
            repeats(subject, n, form.seed, longest=LONGEST_BLOCK),
            targets=targets or None,
            feeders=heads or None,
            ablation=ablation,
            frozen=form.frozen,
            seed=form.seed,
            execution=work,
        )
    facts = [*chosen.facts, *ablation_facts(chosen, form.mode)]
    say_heading(subject.title, facts)
    say_feeders(json_rows(frame), everything=form.all_heads)
    if out is not None:
        told = {"model": subject.title, **subject.facts, **dict(facts)}
        write_and_say(out, {"feeders": frame}, drawn(frame), told)
    return 0


def drawn(frame: "pd.DataFrame") -> "dict[str, Figure]":
    """Draw the drop of the strongest induction head, and the rise of the loss."""
    from probes.plots import plot_feeders
    from probes.plots.canvas import figure_of

    return {
        f"feeders-{value}": figure_of(plot_feeders(frame, value=value))
        for value in ("drop", "loss_delta")
    }
