"""`headlab ablate`: what a run loses without some heads, or without each head in turn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from apps.commands.arguments import (
    CheckpointStep,
    Device,
    RunName,
    SequenceCount,
    fill_in,
    require_named,
)
from apps.console import say, say_table
from apps.opened_run import SEQUENCES, OpenedRun, open_for_measuring, parse_heads
from lab.naming import counted, head_label

if TYPE_CHECKING:
    from lab.tasks.base import Batch

METRICS = ("loss", "token_accuracy", "exact_match")


ABOUT = """
Measure a run without some heads; without --heads, without each head and each
layer in turn.

  headlab ablate reversal
  headlab ablate reversal --heads L0H1 L0H3 --mode mean

An ablated head's output is replaced before it is mixed with the others'.

  loss            mean over the answer tokens, in nats
  token accuracy  share of answer tokens that are right
  exact-match     share of sequences whose whole answer is right

One head can seem useless because another does the same job: see the rows of
whole layers.
"""


@dataclass(frozen=True, kw_only=True)
class AblateForm:
    """What `headlab ablate` asks for."""

    run: RunName
    heads: Annotated[
        tuple[str, ...],
        arg(
            metavar="HEAD",
            help="Heads to ablate together: L0H1 is head 1 of layer 0, counted from 0.",
            help_behavior_hint="(default: each head, then each layer, in turn)",
        ),
    ] = ()
    mode: Annotated[
        Literal["zero", "mean"],
        arg(help="What replaces a head's output: zeros, or its mean over other sequences."),
    ] = "zero"
    checkpoint: CheckpointStep = None
    sequences: SequenceCount = SEQUENCES
    device: Device = "auto"


def run_ablate(arguments: list[str]) -> int:
    """Print what the ablation of some heads, or of each in turn, does to loss and accuracy."""
    form = fill_in(AblateForm, arguments, command="ablate", about=ABOUT)
    require_named(arguments, "--heads", form.heads, "L0H1")
    heads = parse_heads(form.heads)
    opened = open_for_measuring(
        form.run, checkpoint=form.checkpoint, sequences=form.sequences, device=form.device
    )
    if opened.without_heads is not None and not heads:
        say(opened.without_heads)
        return 0
    batch = opened.unseen(form.sequences)
    if heads:
        say_comparison(opened, batch, heads, form.mode)
    else:
        say_sweep(opened, batch, form.mode)
    return 0


def say_comparison(
    opened: OpenedRun, batch: "Batch", heads: tuple[tuple[int, int], ...], mode: str
) -> None:
    """Print the metrics of the whole model beside those without some heads."""
    from lab.evaluation import evaluate

    gates = opened.ablation(heads, mode)
    whole = evaluate(opened.model, batch)
    ablated = evaluate(opened.model, batch, gates=gates)
    label = ",".join(head_label(layer, head) for layer, head in sorted(set(heads)))
    say(f"{opened.title}; {mode} ablation of {label}, {counted(len(batch), 'sequence')}")
    say()
    rows = []
    for name in METRICS:
        before, after = getattr(whole, name), getattr(ablated, name)
        rows.append([title(name), shown(before), shown(after), f"{after - before:+.4f}"])
    say_table(["", "baseline", "ablated", "change"], rows)


def say_sweep(opened: OpenedRun, batch: "Batch", mode: str) -> None:
    """Print the metrics without each head and without each layer."""
    from probes.ablation import ablation_sweep, mean_reference
    from probes.tables import json_rows

    reference = None
    if mode == "mean":
        reference = mean_reference(opened.model, opened.reference_batch())
    frame = ablation_sweep(opened.model, batch, mode, reference=reference)
    rows: dict[str, list[str]] = {"nothing": []}
    for row in json_rows(frame):
        layer, head = row["layer"], row["head"]
        without = f"all of layer {layer}" if head is None else head_label(layer, head)
        cells = rows.setdefault(without, [])
        cells += [shown(row["ablated"])]
        if row["metric"] == "loss":
            cells += [f"{row['delta']:+.4f}"]
        if len(rows["nothing"]) < len(METRICS) + 1:
            rows["nothing"] += [shown(row["baseline"])] + ["-"] * (row["metric"] == "loss")
    say(f"{opened.title}; {mode} ablation, {counted(len(batch), 'sequence')}")
    say()
    header = ["without", "loss\n(nats)", "change of\nloss", "token\naccuracy", "exact-match"]
    say_table(header, [[without, *cells] for without, cells in rows.items()])


def title(metric: str) -> str:
    """Write a metric as people say it, with its unit."""
    return {"loss": "loss (nats)", "token_accuracy": "token accuracy"}.get(metric, "exact-match")


def shown(value: float) -> str:
    """Write a metric."""
    return f"{value:.4f}"
