"""`headlab probe`: what each head of a model does, and how certain the label is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from apps.commands.arguments import check_out, fill_in, flag, listed, refuse_beside, require_named
from apps.commands.subject_form import WHAT_THERE_IS, SubjectForm
from apps.console import say, say_facts
from apps.opened_run import parse_heads
from apps.output_folder import write_and_say
from apps.subject import (
    PAIRS,
    SEQUENCES,
    Input,
    Subject,
    choose_input,
    is_run,
    open_subject,
    require_heads,
    require_some_heads,
)
from apps.terminal.film_table import say_film
from apps.terminal.head_table import say_head_table
from apps.terminal.label_table import rows_scored, say_card, say_labels
from lab.naming import counted, quoted
from lab.packaged import KNOWN
from lab.run_folders import Run, open_run
from probes.registry import PROBES, choose_probes

if TYPE_CHECKING:
    import pandas as pd

    from probes.reading.checked_sequences import CheckedSequences

ABOUT = f"""Show what each head of a model does, and how certain the label is.

  headlab probe reversal
  headlab probe reversal --card L0H1
  headlab probe reversal --all-checkpoints
  headlab probe {next(iter(KNOWN))} --out smollm2
  headlab probe folder/of/a/model --text prompts.txt

{WHAT_THERE_IS}

A run is read on unseen sequences of its task, any other model on repeated
random tokens, with a control in which no token repeats; or give your own
sequences. A head gets a label if its score is clearly above chance and above
the next best class, and (for duplicate, preceder and induction) above the
control. The card of a head shows all numbers.

With --probes, you see plain scores instead: the attention that a head puts on
the probe's cells, averaged over the rows that the probe scores. The last line,
chance, is the score of a head with uniform attention.

probes:
{listed([(entry.name, entry.summary) for entry in PROBES])}
"""


ONE_MODEL = (
    "--checkpoint",
    "--card",
    "--all-heads",
    "--text",
    "--jsonl",
    "--ids",
    "--repeated",
    "--seed",
)
"""Flags about one model and its sequences; a film uses the run's own, at every checkpoint."""


@dataclass(frozen=True, kw_only=True)
class ProbeForm(SubjectForm):
    """Arguments of `headlab probe`."""

    card: Annotated[
        str | None,
        flag("HEAD", "Show everything about one head.", ""),
    ] = None
    all_heads: bool = False
    """Show every head of a large model, not only the top of each class."""
    probes: Annotated[
        tuple[str, ...],
        flag("PROBE", "Show the scores of these probes instead of labels.", ""),
    ] = ()
    all_checkpoints: bool = False
    """Show the scores at every checkpoint of a run, and when heads form."""
    sequences: Annotated[
        int | None,
        flag(
            "N",
            "Sequences to read the model on.",
            f"(default: {SEQUENCES} of a run's task, {PAIRS} repeated ones)",
        ),
    ] = None


def run_probe(arguments: list[str]) -> int:
    """Print the labels of a model's heads, the card of one head, scores or a film."""
    form = fill_in(ProbeForm, arguments, command="probe", about=ABOUT)
    require_named(arguments, "--probes", form.probes, PROBES[0].name)
    choose_probes(form.probes or None, has_sources=True)
    card = None if form.card is None else the_head(form.card)
    form.check_numbers()
    out = None if form.out is None else check_out(form.out)
    if form.probes:
        refuse_beside(arguments, "--probes", ("--card", "--all-heads"))
    if form.card is not None:
        refuse_beside(arguments, "--card", ("--all-heads",))
    if form.all_checkpoints:
        refuse_beside(arguments, "--all-checkpoints", ONE_MODEL)
        return film(form, out)
    subject = open_subject(form.what, checkpoint=form.checkpoint, device=form.device)
    if card is not None:
        require_heads(subject, [card])
    if not subject.n_heads:
        if out is not None:
            require_some_heads(subject, form.what)
        say(f"{subject.title}; every head was pruned, so there is nothing to probe")
        return 0
    chosen = choose_input(
        subject,
        given=form.files,
        sequences=form.sequences,
        repeated=form.repeated,
    )
    if form.probes:
        require_sources(form.probes, chosen)
    from probes.reading.checked_sequences import check_sequences

    checked = check_sequences(
        subject.model,
        chosen.sequences,
        attention_mask=chosen.attention_mask,
        n_pairs=chosen.n if chosen.sequences is None else PAIRS,
        seed=form.seed,
    )
    if form.probes:
        tables = {"heads": say_scores(form, subject, chosen, checked)}
    else:
        tables = say_what_heads_do(form, subject, chosen, checked, card)
    if out is not None:
        write_and_say(out, tables, facts={**subject.facts, "input": chosen.description})
    return 0


def the_head(label: str) -> tuple[int, int]:
    """Return the one head that --card names."""
    head, *others = parse_heads((label,))
    if others:
        raise ValueError(f"--card must name one head, got {quoted(label)}; give one at a time")
    return head


def require_sources(names: Sequence[str], chosen: Input) -> None:
    """Raise ValueError if a probe needs sources that the sequences do not have."""
    from lab.tasks.base import Batch

    wanting = [entry.name for entry in PROBES if entry.needs_sources and entry.name in names]
    if wanting and not isinstance(chosen.sequences, Batch):
        raise ValueError(
            f"probe {wanting[0]} needs a run's task, which knows the sources of every answer, "
            f"got {chosen.description}; leave it out, or give a run and no file of ids"
        )


def say_scores(
    form: ProbeForm, subject: Subject, chosen: Input, checked: "CheckedSequences"
) -> "pd.DataFrame":
    """Print the scores of some probes, a row a head, and return their table."""
    from probes.report.model_tables import score_table
    from probes.tables import json_rows

    frame = score_table(subject.model, checked, form.probes, seed=form.seed)
    say(
        f"{subject.title}; mean attention on each probe's cells, {counted(chosen.n, 'sequence')}",
        "",
    )
    say_facts(inputs_of(chosen, None if chosen.sequences is not None else frame.attrs["input"]))
    say()
    say_head_table(json_rows(frame))
    return frame


def say_what_heads_do(
    form: ProbeForm,
    subject: Subject,
    chosen: Input,
    checked: "CheckedSequences",
    card: tuple[int, int] | None,
) -> "dict[str, pd.DataFrame]":
    """Print the labels of all heads or the card of one, and return the tables to write."""
    from probes.report.model_tables import label_tables, more_tables
    from probes.tables import json_rows

    tables = label_tables(subject.model, checked, seed=form.seed)
    rows = json_rows(tables["labels"])
    say(subject.title, "")
    pairs = tables["labels"].attrs["repeated_blocks"]
    say_facts([*inputs_of(chosen, pairs), *rows_scored(rows, chosen.task)])
    if card is None:
        say_labels(rows, everything=form.all_heads, task=chosen.task)
    else:
        say()
        one, evidence = (
            [row for row in some if (row["layer"], row["head"]) == card]
            for some in (rows, json_rows(tables["evidence"]))
        )
        say_card(one[0], evidence, chosen.task)
    if form.out is not None:
        tables |= more_tables(subject.model, checked, seed=form.seed)
    return tables


def inputs_of(chosen: Input, pairs: str | None) -> list[tuple[str, str]]:
    """Return what the model was read on, its prefix included."""
    facts = [] if chosen.sequences is None else [("input", chosen.description)]
    if pairs is not None:
        facts.append(("repeats" if facts else "input", pairs))
    return facts


def film(form: ProbeForm, out: Path | None) -> int:
    """Print the scores at every checkpoint of a run, and when heads form."""
    if not is_run(form.what):
        raise ValueError(f"--all-checkpoints needs a run, got {quoted(form.what)}")
    run = open_run(form.what)
    from lab.runtime import pick_device
    from probes.film.frames import FILM_SEQUENCES, film_checkpoints, find_onsets, onset_rows
    from probes.tables import json_rows

    frame = None if form.sequences is not None else own_film(run, form.probes)
    n, seen = FILM_SEQUENCES if form.sequences is None else form.sequences, "checkpoint"
    if frame is not None:
        n, seen = int(frame["n_sequences"].max()), "frame"
    else:
        frame = film_checkpoints(
            run, sequences=n, probes=form.probes or None, device=str(pick_device(form.device))
        )
    config = run.config
    if frame.empty:
        if out is not None:
            opened = open_subject(form.what, checkpoint=None, device=form.device)
            require_some_heads(opened, form.what)
        say(f"{run.name}: every head was pruned, so there is nothing to probe")
        return 0
    onsets = find_onsets(frame)
    frames = counted(frame["step"].nunique(), seen)
    say(
        f"{run.name}: {config.task} of length {config.length}, {frames}; mean "
        f"attention on each probe's cells, {counted(n, 'unseen sequence')}",
        "",
    )
    say_film(json_rows(frame), onset_rows(onsets))
    if out is not None:
        write_and_say(out, {"dynamics": frame, "onsets": onsets})
    return 0


def own_film(run: Run, probes: Sequence[str]) -> "pd.DataFrame | None":
    """Return the film that was taken while a run was trained, if it has more than checkpoints.

    Raises:
        ValueError: The file is damaged.
    """
    from probes.film.writer import FILM
    from probes.schemas.film import DYNAMICS
    from probes.tables import read_table

    if FILM not in run.files:
        return None
    frame = read_table(run.file(FILM), DYNAMICS)
    if frame["step"].nunique() <= len(run.steps) or not set(probes) <= set(frame["probe"]):
        return None
    if probes:
        attrs = frame.attrs
        frame = frame[frame["probe"].isin(probes)].reset_index(drop=True)
        frame.attrs = attrs
    return frame
