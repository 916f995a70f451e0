"""What a report is about: a run, or a model at hand, and the sequences that it is probed on.

What is measured on them, and written, is `probes.report.folder`'s.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lab.checkpoint import load_model
from lab.config import ModelConfig
from lab.model import HookedGPT
from lab.runs import WEIGHTS, Run
from lab.shapes import Tokens
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from lab.vocab import BOS_ID, SPECIAL_SYMBOLS, Vocab
from probes.film.frames import film_checkpoints
from probes.film.writer import FILM
from probes.reading.inputs import can_repeat
from probes.reading.reads import as_batch, probe_input, require_gates, vocab_of
from probes.schemas.film import DYNAMICS
from probes.tables import read_table

REFERENCE_SEQUENCES = 256
"""Sequences whose mean fills the gap of a head in mean ablations."""

REPEATED = 25
"""Different tokens in a block of the default input of a bare model."""


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
    """Those that probes and ablations look at."""
    reference: Batch
    """Other sequences, whose means fill the gaps of mean ablations."""
    vocab: Vocab | None
    labelled: Batch | Tokens | None
    """What labels are made on; None: repeated sequences of their own, as label_heads draws them."""
    plain: bool = False
    """Whether the sequences are plain tokens, of which no task says where answers come from."""
    special_ids: tuple[int, ...] | None = None
    """Ids that are no words; None: what score_heads takes by itself."""
    film: pd.DataFrame | None = None
    """How heads formed while it was trained, a dynamics table; None: nobody knows."""


def run_subject(run: Run, n_sequences: int, folder: Path | None, command: str | None) -> Subject:
    """Return what there is to probe of a run: its trained model on unseen sequences of its task."""
    config = run.config
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    unseen = task.sample(config.eval_sequences, seed=config.seed, split="test")
    seen = task.sample(n_sequences, seed=config.seed, split="test")
    words = ["headlab", "report", run.name, *([] if folder is None else ["--out", str(folder)])]
    return Subject(
        model=load_model(run.path),
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
        labelled=seen,
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
    special_ids, plain, own = None, not isinstance(given, Batch), given is None
    if given is None:
        bos_id = start_id(model)
        given = repeated_tokens(model.config, n_sequences, seed=0, bos_id=bos_id)
        reference = repeated_tokens(model.config, REFERENCE_SEQUENCES, seed=1, bos_id=bos_id)
        special_ids, plain = (bos_id,), False
    probe_input(model, given)  # says what is wrong with it
    batch = as_batch(given)[:n_sequences]
    labelled = batch.tokens if plain else batch
    if own:
        labelled = None if can_repeat(model) else batch.tokens
    unknown: dict[str, Any] = dict.fromkeys(("run", "task", "step", "checkpoint_sha256", "seed"))
    return Subject(
        model=model,
        title="Heads of a model",
        named="a model at hand",
        kind="of random tokens said twice" if own else "that were given",
        command="probes.write_report(model, out_dir)" if command is None else command,
        facts=unknown,
        accuracy_batch=batch,
        batch=batch,
        reference=batch if reference is None else as_batch(reference),
        vocab=vocab_of(model, vocab),
        labelled=labelled,
        plain=plain,
        special_ids=special_ids,
    )


def start_id(model: HookedGPT) -> int:
    """Return the id of the BOS of a model's tokenizer; without one, that of `lab.vocab`."""
    bos_id = getattr(model.tokenizer, "bos_token_id", None)
    return bos_id if bos_id is not None and bos_id < model.config.d_vocab else BOS_ID


def repeated_tokens(config: ModelConfig, n: int, *, seed: int, bos_id: int = BOS_ID) -> Batch:
    """Return BOS and a block of different random tokens, twice: what most probes can be read on.

    The answers are the second block, whose sources stand in the first.
    """
    low = len(SPECIAL_SYMBOLS)
    n_words = config.d_vocab - low - (bos_id >= low)
    block = min(REPEATED, (config.n_ctx - 1) // 2, n_words)
    if block < 2:
        raise ValueError(
            "batch must be given for a model of fewer than 5 positions or 4 token ids, got None; "
            "pass write_report(model, path, batch=...)"
        )
    draws = np.random.default_rng(seed).random((n, n_words)).argsort(axis=1)
    first = torch.from_numpy(draws[:, :block] + low)
    first = first + ((first >= bos_id) & (bos_id >= low))  # BOS is no word of the block
    tokens = torch.cat([torch.full((n, 1), bos_id), first, first], dim=1)
    loss_mask = torch.zeros_like(tokens, dtype=torch.bool)
    loss_mask[:, block + 1 : -1] = True
    sources = torch.arange(tokens.shape[1]).expand(n, -1) - block + 1
    return Batch(tokens, loss_mask, sources.masked_fill(~loss_mask, -1).unsqueeze(2))
