"""`headlab probe`: what each head of a run attends to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from apps.commands.arguments import (
    CheckpointStep,
    Device,
    RunName,
    SequenceCount,
    check_out,
    fill_in,
    listed,
    require_named,
)
from apps.console import grouped, say, say_facts
from apps.head_table import say_head_table
from apps.opened_run import SEQUENCES, open_for_measuring
from lab.durable import atomic_write, one_clear_error
from probes.registry import PROBES, choose_probes

ABOUT = f"""Score every head of a run on every probe, and print one row a head.

  headlab probe reversal
  headlab probe reversal --probes sources previous --checkpoint 100 --out scores

A score is the attention that a head puts on the probe's cells, the mean over
the rows that the probe looks at: 0 is none of it, 1 is all of it. The last
line, chance, is what a head that spreads evenly would score.

probes:
{listed([(entry.name, entry.summary) for entry in PROBES])}
"""


@dataclass(frozen=True, kw_only=True)
class ProbeForm:
    """What `headlab probe` asks for."""

    run: RunName
    probes: Annotated[
        tuple[str, ...],
        arg(metavar="PROBE", help="Probes to run, see above.", help_behavior_hint="(default: all)"),
    ] = ()
    checkpoint: CheckpointStep = None
    sequences: SequenceCount = SEQUENCES
    out: Annotated[
        Path | None,
        arg(
            metavar="DIR",
            help="Also write heads.csv and heads.parquet, with intervals, into this folder.",
            help_behavior_hint="",
        ),
    ] = None
    device: Device = "auto"


def run_probe(arguments: list[str]) -> int:
    """Print the head table of a run, and write it where asked."""
    form = fill_in(ProbeForm, arguments, command="probe", about=ABOUT)
    require_named(arguments, "--probes", form.probes, PROBES[0].name)
    names = form.probes or None
    choose_probes(names, has_sources=True)
    if form.out is not None:
        check_out(form.out)
    opened = open_for_measuring(
        form.run, checkpoint=form.checkpoint, sequences=form.sequences, device=form.device
    )
    from probes.heads import score_heads
    from probes.tables import csv_text, json_rows, parquet_bytes

    batch = opened.unseen(form.sequences)
    frame = score_heads(opened.model, batch, names)
    frame.attrs |= {
        "run": opened.run.name,
        "checkpoint_sha256": opened.sha256,
        "step": opened.step,
        "seed": opened.run.config.seed,
    }
    if opened.without_heads is not None:
        say(opened.without_heads)
    else:
        say(
            f"{opened.title}; mean attention on each probe's cells, {grouped(len(batch))} sequences"
        )
        say()
        say_head_table(json_rows(frame))
    if form.out is not None:
        files = {"heads.csv": csv_text(frame).encode(), "heads.parquet": parquet_bytes(frame)}
        with one_clear_error(form.out):
            form.out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            atomic_write(form.out / name, data)
        say()
        say_facts([("wrote", ", ".join(str(form.out / name) for name in files))])
    return 0
