"""`headlab prune`: a run of its own without some heads, certified against the gated model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from apps.commands.arguments import CheckpointStep, RunName, SequenceCount, fill_in
from apps.console import grouped, in_bytes, remark, say, say_facts, say_table
from apps.opened_run import SEQUENCES, open_for_measuring, parse_heads
from lab.naming import counted
from lab.runs import check_run_name, runs_home

if TYPE_CHECKING:
    from lab.evaluation import Evaluation
    from probes.pruned_run import PrunedRun

ABOUT = """
Remove some heads of a run for good, as a new run; the old one is left alone.

  headlab prune reversal --heads L1H0 L1H1 L1H2 L1H3
  headlab prune reversal --heads L0H2 --mode mean --name small

The new run has fewer weights, needs less memory to generate and gives the
answers of the old one with these heads ablated. That is checked: it is written,
read back and compared before it gets its name; parity.json beside its weights
says how close they are. Heads keep their names: L1H3 stays L1H3, also when
the new run is pruned again.
"""


@dataclass(frozen=True, kw_only=True)
class PruneForm:
    """What `headlab prune` asks for."""

    run: RunName
    heads: Annotated[
        tuple[str, ...],
        arg(metavar="HEAD", help="Heads to remove: L0H1 is head 1 of layer 0, counted from 0."),
    ]
    mode: Annotated[
        Literal["zero", "mean"],
        arg(help="What stands for a removed head: nothing, or its mean output as a constant."),
    ] = "zero"
    name: Annotated[
        str | None,
        arg(
            metavar="NAME",
            help="Name of the new run.",
            help_behavior_hint="(default: RUN-pruned, or RUN-pruned-2 and so on)",
        ),
    ] = None
    checkpoint: CheckpointStep = None
    sequences: SequenceCount = SEQUENCES


def run_prune(arguments: list[str]) -> int:
    """Write a pruned run and print its certificate."""
    form = fill_in(PruneForm, arguments, command="prune", about=ABOUT)
    heads = parse_heads(form.heads)
    if not heads:
        raise ValueError("--heads must name at least one head, got none; write L0H1, say")
    opened = open_for_measuring(
        form.run, checkpoint=form.checkpoint, sequences=form.sequences, device="cpu"
    )
    opened.ablation(heads)  # says which head is unknown before the work
    name = free_name(opened.run.name) if form.name is None else form.name
    check_run_name(name)
    if (runs_home() / name).exists():
        raise ValueError(
            f"--name must be new, got {name!r}, which exists in {runs_home()}; choose another"
        )
    from probes.ablation import mean_reference
    from probes.pruned_run import export_pruned_run

    reference = None
    if form.mode == "mean":
        reference = mean_reference(opened.model, opened.reference_batch(), per_position=False)
    remark(f"writing {name}, reading it back and comparing ...")
    done = export_pruned_run(
        opened.run,
        heads,
        runs_home() / name,
        opened.unseen(form.sequences),
        step=form.checkpoint,
        mode=form.mode,
        reference=reference,
    )
    say_result(done, form.sequences)
    return 0


def free_name(base: str) -> str:
    """Return a name that no folder has: base-pruned, base-pruned-2 and so on."""
    first = f"{base[:80]}-pruned"
    name, number = first, 1
    while (runs_home() / name).exists():
        number += 1
        name = f"{first}-{number}"
    return name


def say_result(done: "PrunedRun", n_sequences: int) -> None:
    """Print what was removed, what that saves and how close the two models are."""
    proof = done.certificate
    say_table(
        ["", "before", "after"],
        [
            ["parameters", grouped(proof.parameters_before), grouped(proof.parameters_after)],
            [
                "keys and values of one token",
                in_bytes(proof.cache_bytes_before),
                in_bytes(proof.cache_bytes_after),
            ],
            [
                f"forward pass of {counted(n_sequences, 'sequence')}",
                f"{proof.latency_ms_before:.1f} ms",
                f"{proof.latency_ms_after:.1f} ms",
            ],
        ],
    )
    say()
    say_table(
        ["", "loss\n(nats)", "token\naccuracy", "exact-match"],
        [["heads ablated", *shown(done.gated)], ["heads removed", *shown(done.pruned)]],
    )
    say()
    say_facts(
        [
            ("removed", proof.heads),
            (
                "parity",
                f"largest difference of a logit {proof.max_logit_difference:.1e}, "
                f"allowed {proof.limit:.0e}",
            ),
            ("run", str(done.path)),
            ("next", f"headlab probe {done.path.name}"),
        ]
    )


def shown(measured: "Evaluation") -> list[str]:
    """Write an evaluation as the cells of a row."""
    return [f"{measured.loss:.4f}", f"{measured.token_accuracy:.4f}", f"{measured.exact_match:.4f}"]
