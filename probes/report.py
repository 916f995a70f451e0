"""All probes of one model in one folder: tables, figures, a page to read and a first screen.

Everything is measured and drawn before the first file is written; then the files appear together,
in a run folder through `lab.runs.update_derived`, elsewhere as one new folder.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from lab.checkpoint import load_model
from lab.config import ModelConfig, require_whole
from lab.durable import atomic_dir, atomic_write, one_clear_error
from lab.evaluation import Evaluation, evaluate
from lab.manifest import MANIFEST
from lab.model import HookedGPT
from lab.runs import WEIGHTS, Run, update_derived
from lab.shapes import Tokens
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from lab.vocab import BOS_ID, SPECIAL_SYMBOLS, Vocab
from probes import figures, plots
from probes.ablation import ablation_sweep, mean_reference
from probes.entropy import entropy_profile
from probes.first_screen import best_head, screen_data, sentence_about
from probes.heads import score_heads
from probes.intervals import FEW_SEQUENCES
from probes.maps import LONGEST, Map, attention_map, sequence_maps, token_labels
from probes.page import report_page
from probes.reads import as_batch, probe_input
from probes.tables import csv_text, json_rows, json_text, parquet_bytes

SCHEMA_VERSION = 1
"""Version of report.json."""

REFERENCE_SEQUENCES = 256
"""Sequences whose mean fills the gap of a head in mean ablations."""

SWEPT = 20_000
"""Sequences times ablations of a sweep: a model of many heads is ablated on fewer sequences."""

FEWEST_SWEPT = 100
"""Sequences that every sweep looks at, if there are as many."""

REPEATED = 25
"""Different tokens in a block of the default input of a bare model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What is probed: a model, sequences, and what to call them."""

    model: HookedGPT
    title: str
    command: str
    facts: Mapping[str, Any]
    """run, task, step, checkpoint_sha256 and seed; None where unknown."""
    accuracy_batch: Batch
    """Unseen sequences that loss and accuracies are measured on."""
    batch: Batch
    """Those that probes and ablations look at."""
    reference: Batch
    """Other sequences, whose means fill the gaps of mean ablations."""
    vocab: Vocab | None
    plain: bool = False
    """Whether the sequences are plain tokens, of which no task says where answers come from."""
    special_ids: tuple[int, ...] | None = None
    """Ids that are no words; None: what score_heads takes by itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """Everything that was measured."""

    accuracy: Evaluation
    heads: pd.DataFrame
    entropy: pd.DataFrame
    ablation: pd.DataFrame
    attention: pd.DataFrame | None
    """Map of the clearest head; None where sequences are too long to draw."""
    maps: Mapping[tuple[int, int], Map]
    sentence: str


def write_report(
    run_or_model: Run | HookedGPT,
    out_dir: str | Path | None = None,
    *,
    batch: Batch | Tokens | None = None,
    reference: Batch | Tokens | None = None,
    vocab: Vocab | None = None,
    n_sequences: int = 500,
    command: str | None = None,
) -> Path:
    """Probe a model and write heads.csv, Parquet tables, report.json, report.html and figures.

    A run is probed on unseen sequences of its own task, a bare model on those given or, by default,
    on random tokens said twice, after its tokenizer's BOS; id 0 stands there for a model without a
    tokenizer, or whose tokenizer has no BOS. Killed at any moment, the place holds the old report
    or none.

    Args:
        run_or_model: A run (the files go into its folder unless out_dir is given) or a model.
        out_dir: Where the files go; a new folder, or one whose report is replaced.
        batch: For a model: the sequences to look at; of plain tokens every next one is an answer,
            and probes of the task's sources are left out.
        reference: For a model: others, whose means fill the gaps of mean ablations; None: the same.
        vocab: For a model: names of the token ids.
        n_sequences: Sequences that probes and ablations look at.
        command: The command line to print as the one that makes this report again.

    Returns:
        The folder that holds the files.

    Raises:
        ValueError: A model without out_dir, or sequences of the wrong kind for it.
        OSError: The place cannot be written or is full; what was there before is kept.
    """
    require_whole("n_sequences", n_sequences, 1)
    folder = None if out_dir is None else Path(out_dir)
    if isinstance(run_or_model, Run):
        subject = run_subject(run_or_model, n_sequences, folder, command)
        folder = run_or_model.path if folder is None else folder
    elif folder is None:
        raise ValueError(
            "out_dir must be given for a model, got None; pass write_report(model, path)"
        )
    else:
        subject = model_subject(run_or_model, batch, reference, vocab, n_sequences, command)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out_dir must be a folder, got the file {str(folder)!r}; choose another")
    put_files(folder, report_files(subject, measure(subject)))
    return folder


def run_subject(run: Run, n_sequences: int, folder: Path | None, command: str | None) -> Subject:
    """Return what there is to probe of a run: its trained model on unseen sequences of its task."""
    config = run.config
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    unseen = task.sample(config.eval_sequences, seed=config.seed, split="test")
    words = ["headlab", "report", run.name, *([] if folder is None else ["--out", str(folder)])]
    return Subject(
        model=load_model(run.path),
        title=f"Heads of {run.name}",
        command=shlex.join(words) if command is None else command,
        facts={
            "run": run.name,
            "task": config.task,
            "step": max(run.steps, default=config.steps),
            "checkpoint_sha256": run.files[WEIGHTS].sha256,
            "seed": config.seed,
        },
        accuracy_batch=unseen,
        batch=task.sample(n_sequences, seed=config.seed, split="test"),
        reference=task.sample(REFERENCE_SEQUENCES, seed=config.seed, split="reference"),
        vocab=task.vocab,
    )


def model_subject(
    model: HookedGPT,
    given: Batch | Tokens | None,
    reference: Batch | Tokens | None,
    vocab: Vocab | None,
    n_sequences: int,
    command: str | None,
) -> Subject:
    """Return what there is to probe of a bare model."""
    special_ids, plain = None, not isinstance(given, Batch)
    if given is None:
        bos_id = start_id(model)
        given = repeated_tokens(model.config, n_sequences, seed=0, bos_id=bos_id)
        reference = repeated_tokens(model.config, REFERENCE_SEQUENCES, seed=1, bos_id=bos_id)
        special_ids, plain = (bos_id,), False
    probe_input(model, given)  # says what is wrong with it
    batch = as_batch(given)[:n_sequences]
    unknown: dict[str, Any] = dict.fromkeys(("run", "task", "step", "checkpoint_sha256", "seed"))
    return Subject(
        model=model,
        title="Heads of a model",
        command="probes.write_report(model, out_dir)" if command is None else command,
        facts=unknown,
        accuracy_batch=batch,
        batch=batch,
        reference=batch if reference is None else as_batch(reference),
        vocab=vocab,
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


def measure(subject: Subject) -> Findings:
    """Run every probe."""
    model, batch = subject.model, subject.batch
    probed = batch.tokens if subject.plain else batch
    heads = stamped(score_heads(model, probed, special_ids=subject.special_ids), subject)
    name = f"{subject.facts['task'] or 'given'}/reference/{len(subject.reference)}"
    reference = mean_reference(model, subject.reference, name=name)
    config = model.config
    n_variants = sum(config.n_heads_of(layer) + 1 for layer in range(config.n_layers))
    swept = batch[: max(FEWEST_SWEPT, SWEPT // n_variants)]
    sweeps = [
        ablation_sweep(model, swept, "zero"),
        ablation_sweep(model, swept, "mean", reference=reference),
    ]
    ablation = pd.concat(sweeps, ignore_index=True)
    ablation.attrs = sweeps[1].attrs
    one = batch[:1]
    maps: dict[tuple[int, int], Map] = {}
    attention = None
    best = best_head(heads)
    if one.tokens.shape[1] <= LONGEST:
        maps = sequence_maps(model, one.tokens)
    if maps and best is not None:
        attention = attention_map(
            model, one, layer=best["layer"], head=best["head"], vocab=subject.vocab
        )
    return Findings(
        accuracy=evaluate(model, subject.accuracy_batch),
        heads=heads,
        entropy=stamped(entropy_profile(model, batch), subject),
        ablation=stamped(ablation, subject),
        attention=attention,
        maps=maps,
        sentence=sentence_about(heads, subject.facts["task"]),
    )


def stamped(frame: pd.DataFrame, subject: Subject) -> pd.DataFrame:
    """Return the table with the run it belongs to in its attrs."""
    stamped = frame.copy()
    known = ("run", "checkpoint_sha256", "seed", "step")
    stamped.attrs = {**frame.attrs, **{name: subject.facts[name] for name in known}}
    return stamped


def report_files(subject: Subject, found: Findings) -> dict[str, bytes]:
    """Return every file of the report by its name."""
    drawn = {name: plots.png_bytes(f, dpi=120) for name, f in draw_figures(found).items()}
    tables = {
        "heads.csv": csv_text(found.heads).encode(),
        "heads.parquet": parquet_bytes(found.heads),
        "entropy.parquet": parquet_bytes(found.entropy),
        "ablation.csv": csv_text(found.ablation).encode(),
        "ablation.parquet": parquet_bytes(found.ablation),
    }
    pictures = {f"figures/{name}.png": png for name, png in drawn.items()}
    config = subject.model.config
    facts = {**subject.facts, "n_layers": config.n_layers, "n_heads": config.n_heads}
    accuracy = dataclasses.asdict(found.accuracy)
    ids = subject.batch.tokens[0, :LONGEST].tolist() if found.maps else []
    screen = screen_data(
        found.heads,
        found.maps,
        tokens=token_labels(ids, subject.vocab),
        ids=ids,
        facts=facts,
        accuracy=accuracy,
        sentence=found.sentence,
    )
    provenance = {
        **found.ablation.attrs,
        "tokens_sha256": found.heads.attrs["tokens_sha256"],
        "n_sequences": len(subject.batch),
    }
    summary = {
        "schema_version": SCHEMA_VERSION,
        "command": subject.command,
        "sentence": found.sentence,
        "accuracy": accuracy,
        "model": config.to_dict(),
        "task": subject.facts["task"],
        "provenance": provenance,
        "heads": json_rows(found.heads),
        "ablation": json_rows(found.ablation),
    }
    page = report_page(
        title=subject.title,
        subtitle=subtitle(subject),
        sentence=found.sentence,
        facts=top_facts(subject, found.accuracy),
        figures=drawn,
        heads=found.heads,
        ablation=found.ablation,
        command=subject.command,
        provenance=provenance_texts(provenance),
        files=[*tables, "report.json", *pictures],
    )
    return {
        **tables,
        **pictures,
        "report.json": json_text(summary).encode(),
        "first_screen.json": json_text(screen).encode(),
        "report.html": page.encode(),
    }


def draw_figures(found: Findings) -> dict[str, Figure]:
    """Draw the figures of the report; of a model without heads there is none to draw."""
    if found.heads.empty:
        return {}
    drawn = {
        "heads": figures.score_grids(found.heads),
        "entropy": figures.entropy_sheet(found.entropy),
        "ablation": figures.ablation_panels(found.ablation),
    }
    if found.attention is not None:
        drawn["attention"] = figures.attention_sheet(found.attention)
    return drawn


def subtitle(subject: Subject) -> str:
    """Return the line below the title."""
    config, facts = subject.model.config, subject.facts
    where = f"step {facts['step']} of a {facts['task']} run" if facts["run"] else "a model at hand"
    few = "; too few for intervals to lean on" if len(subject.batch) < FEW_SEQUENCES else ""
    return (
        f"{where}: {config.n_layers} layers x {config.n_heads} heads, d_model {config.d_model}; "
        f"{len(subject.batch)} sequences of {subject.batch.tokens.shape[1]} tokens{few}"
    )


def top_facts(subject: Subject, accuracy: Evaluation) -> dict[str, str]:
    """Return the few numbers at the top of the page."""
    return {
        "exact match": f"{accuracy.exact_match:.4f}",
        "token accuracy": f"{accuracy.token_accuracy:.4f}",
        "loss (nats)": f"{accuracy.loss:.3g}",
        "sequences": f"{accuracy.n_sequences}",
    }


def provenance_texts(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return what the page says about where its numbers come from; what is unknown is left out."""
    versions = ", ".join(f"{k} {v}" for k, v in provenance["versions"].items())
    shown = {k: v for k, v in provenance.items() if k not in ("versions", "table")}
    return {k: str(v) for k, v in shown.items() if v is not None} | {"versions": versions}


def put_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files into a run, into a new folder, or over the report of an old one."""
    if (folder / MANIFEST).is_file():
        update_derived(folder, files)
    elif not folder.exists():
        with atomic_dir(folder) as temporary:
            fill(temporary, files)
    else:
        fill(folder, files)


def fill(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write each file whole, or leave the one that is there."""
    for name, data in files.items():
        path = folder / name
        with one_clear_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data)
