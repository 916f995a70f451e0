"""What a report is about: a run, or a model at hand, and the sequences that it is probed on.

What is measured on them, and written, is `probes.report.folder`'s.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.hooked_gpt import HookedGPT
from lab.run_folders import WEIGHTS, Run
from lab.shapes import Tokens
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from lab.vocab import Vocab
from probes.film.frames import film_checkpoints
from probes.film.writer import FILM
from probes.reading.checked_sequences import CheckedSequences, check_sequences
from probes.reading.inputs import repeated_pair
from probes.reading.observed_model import as_batch, require_finite, require_gates, vocab_of
from probes.schemas.film import DYNAMICS
from probes.tables import read_table

REFERENCE_SEQUENCES = 256
"""Sequences whose mean fills the gap of a head in mean ablations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What is probed: a model, sequences, and what to call them."""

    model: HookedGPT
    title: str
    command: str
    named: str
    """The model, in small print below a figure."""
    kind: str
    """What its sequences are, behind their number: `12 sequences`, and this."""
    facts: Mapping[str, Any]
    """run, task, step, checkpoint_sha256 and seed; None where unknown."""
    accuracy_batch: Batch
    """Unseen sequences that loss and accuracies are measured on."""
    batch: Batch
    """The sequences that probes, labels and ablations read."""
    reference: Batch
    """Other sequences, whose means fill the gaps of mean ablations."""
    vocab: Vocab | None
    checked: CheckedSequences
    """The tokens of batch, as probes and labels read them."""
    film: pd.DataFrame | None = None
    """How heads formed while it was trained, a dynamics table; None: nobody knows."""


def run_subject(run: Run, n_sequences: int, folder: Path | None, command: str | None) -> Subject:
    """Return what there is to probe of a run: its trained model on unseen sequences of its task."""
    config = run.config
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    unseen = task.sample(config.eval_sequences, seed=config.seed, split="test")
    seen = task.sample(n_sequences, seed=config.seed, split="test")
    words = ["headlab", "report", run.name, *([] if folder is None else ["--out", str(folder)])]
    model = HookedGPT.load(run.path)
    require_finite(model)
    return Subject(
        model=model,
        title=f"Heads of {run.name}",
        named=f"{run.name}: {config.task} of length {config.length}, step {run.last_step}",
        kind=f"of {config.task}, unseen",
        command=shlex.join(words) if command is None else command,
        facts={
            "run": run.name,
            "task": config.task,
            "step": run.last_step,
            "checkpoint_sha256": run.files[WEIGHTS].sha256,
            "seed": config.seed,
        },
        accuracy_batch=unseen,
        batch=seen,
        reference=task.sample(REFERENCE_SEQUENCES, seed=config.seed, split="reference"),
        vocab=task.vocab,
        checked=check_sequences(model, seen),
        film=film_of(run),
    )


def film_of(run: Run) -> pd.DataFrame | None:
    """Return the film of a run's training, or one of its checkpoints, if they are more than two."""
    if FILM in run.files:
        return read_table(run.file(FILM), DYNAMICS)
    return film_checkpoints(run) if len(run.steps) > 2 else None


def model_subject(
    model: HookedGPT,
    given: Batch | Tokens | None,
    reference: Batch | Tokens | None,
    vocab: Vocab | None,
    n_sequences: int,
    command: str | None,
) -> Subject:
    """Return what there is to probe of a bare model."""
    require_gates(model)
    require_finite(model)
    if given is None:
        checked = check_sequences(model, None, n_pairs=n_sequences)
        assert checked.pair is not None
        batch = checked.pair.batch()
        reference = repeated_pair(model, n_sequences=REFERENCE_SEQUENCES, seed=1).batch()
    else:
        batch = as_batch(given)[:n_sequences]
        checked = check_sequences(model, batch if isinstance(given, Batch) else batch.tokens)
    unknown: dict[str, Any] = dict.fromkeys(("run", "task", "step", "checkpoint_sha256", "seed"))
    return Subject(
        model=model,
        title="Heads of a model",
        named="a model at hand",
        kind="of random tokens said twice" if checked.on_pair else "that were given",
        command="probes.write_report(model, out_dir)" if command is None else command,
        facts=unknown,
        accuracy_batch=batch,
        batch=batch,
        reference=batch if reference is None else as_batch(reference),
        vocab=vocab_of(model, vocab),
        checked=checked,
    )
