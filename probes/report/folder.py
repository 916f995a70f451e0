"""All probes of one model in one folder: tables, figures, a page to read and a first screen.

Everything is measured and drawn before the first file is written; then the files appear together,
in a run folder through `lab.run_folders.update_derived`, elsewhere as one new folder.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.checks import require_whole
from lab.durable import atomic_dir, atomic_write, one_clear_error
from lab.evaluation import Evaluation, evaluate
from lab.hooked_gpt import HookedGPT
from lab.manifest import MANIFEST
from lab.naming import counted, head_label
from lab.run_folders import Run, update_derived
from lab.shapes import Tokens
from lab.tasks.base import Batch
from lab.vocab import Vocab
from probes import plots
from probes.ablation.sweep import Ablation
from probes.ablation.table import ablation_sweep, mean_reference
from probes.attention.heads import scores_table
from probes.attention.maps import LONGEST, Map, attention_map, sequence_maps, token_labels
from probes.film.frames import find_onsets
from probes.head_classes import LADDER
from probes.intervals import FEW_SEQUENCES
from probes.labels.head_labels import study_of
from probes.number_text import decimals, significant
from probes.registry import SOURCE_PROBES
from probes.report import figures
from probes.report.causes import Causes, Drawn, cause_figures, measure_causes
from probes.report.first_screen import best_head, screen_data, sentence_about
from probes.report.model_tables import one_pass_tables
from probes.report.page import Content, report_page
from probes.report.page_causes import cause_sections
from probes.report.subject import Subject, model_subject, run_subject
from probes.tables import csv_text, json_rows, json_text, parquet_bytes

SCHEMA_VERSION = 3
"""Version of report.json. Version 1 had no labels, version 2 nothing of groups and pruning."""

SWEPT = 20_000
"""Sequences times ablations of a sweep: a model of many heads is ablated on fewer sequences."""

WITH_INTERVALS = ("stripes", "ablation", "joint", "shapley", "first_order", "pruning")
"""Figures that show intervals."""

FEWEST_SWEPT = 100
"""The number of sequences that every sweep reads, at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """Everything that was measured."""

    accuracy: Evaluation
    heads: pd.DataFrame
    labels: pd.DataFrame
    evidence: pd.DataFrame
    entropy: pd.DataFrame
    spectrum: pd.DataFrame
    ablation: pd.DataFrame
    causes: Causes
    attention: pd.DataFrame | None
    """Map of the clearest head; None where sequences are too long to draw."""
    maps: Mapping[tuple[int, int], Map]
    sentence: str
    film: pd.DataFrame | None
    """How the scores of the sentence's probe came about; None: unknown."""


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
    """Probe a model and write tables (CSV, Parquet), report.json, report.html and figures.

    Useful pattern: `write_report(model, "out", batch=batch)`.

    A run is probed on unseen sequences of its own task, a bare model on those given or, by default,
    on the repeated blocks of `repeated_pair`, beside their control. Labels, scores and ablations
    of one report read the same tokens. Killed at any moment, the place holds the old report or
    none.

    Args:
        run_or_model: A run (the files go into its folder unless out_dir is given) or a model.
        out_dir: Where the files go; a new folder, or one whose report is replaced.
        batch: For a model: the sequences to read; in plain tokens, every next token is an answer,
            and probes of the task's sources are left out.
        reference: For a model: others, whose means fill the gaps of mean ablations; None: the same.
        vocab: For a model: names of the token ids.
        n_sequences: How many sequences probes and ablations read.
        command: The command line to print as the one that makes this report again.

    Returns:
        The folder that holds the files.

    Raises:
        ValueError: A model without out_dir, sequences of the wrong kind for it, or none and no room
            for repeated blocks.
        OSError: The place cannot be written or is full; what was there before is kept.
    """
    require_whole("n_sequences", n_sequences, 1)
    folder = None if out_dir is None else Path(out_dir)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ValueError(f"out_dir must be a folder, got the file {str(folder)!r}; choose another")
    if isinstance(run_or_model, Run):
        subject = run_subject(run_or_model, n_sequences, folder, command)
        folder = run_or_model.path if folder is None else folder
    elif folder is None:
        raise ValueError(
            "out_dir must be given for a model, got None; pass write_report(model, path)"
        )
    else:
        subject = model_subject(run_or_model, batch, reference, vocab, n_sequences, command)
    put_files(folder, report_files(subject, measure(subject)))
    return folder


def measure(subject: Subject) -> Findings:
    """Run every probe."""
    model, batch = subject.model, subject.batch
    checked, x = subject.checked, subject.checked.x
    if checked.on_pair:  # each token of the second block has its source in the first
        x = dataclasses.replace(x, sources=batch.sources)
    heads = stamped(scores_table(model, x, control=checked.control), subject)
    study = study_of(model, checked)
    rows = one_pass_tables(model, x, seed=0)
    name = f"{subject.facts['task'] or 'given'}/reference/{len(subject.reference)}"
    reference = mean_reference(model, subject.reference, name=name)
    config = model.config
    n_variants = sum(config.n_heads_of(layer) + 1 for layer in range(config.n_layers))
    swept = batch[: max(FEWEST_SWEPT, SWEPT // n_variants)]
    sweeps = [
        ablation_sweep(model, swept, "zero"),
        ablation_sweep(model, swept, Ablation(mode="mean", reference=reference)),
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
        labels=stamped(study.labels, subject),
        evidence=stamped(study.evidence, subject),
        entropy=stamped(rows["entropy"], subject),
        spectrum=stamped(rows["spectrum"], subject),
        ablation=stamped(ablation, subject),
        causes=measure_causes(subject, study.labels),
        attention=attention,
        maps=maps,
        sentence=sentence_about(heads, subject.facts["task"], study.labels),
        film=film_about(best, subject.film),
    )


def film_about(best: Mapping[str, Any] | None, film: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return the rows of a film for the probe of the head that stands out."""
    if best is None or film is None:
        return None
    own = film[film["probe"] == best["probe"]]
    return None if own.empty else own


def when_heads_form(film: pd.DataFrame | None) -> str:
    """Say in a sentence when the heads of a film form."""
    if film is None:
        return ""
    onsets = find_onsets(film)
    if onsets.empty:
        return "No head sets in: none of these scores rises by a fifth of its range."
    spans: dict[tuple[int, int], list[str]] = {}
    for row in json_rows(onsets.sort_values(["step", "layer", "head"])):
        span = row["step_before"], row["step"]
        spans.setdefault(span, []).append(head_label(row["layer"], row["head"]))
    parts = [
        f"{', '.join(heads)} between steps {before:,} and {step:,}"
        for (before, step), heads in spans.items()
    ]
    return f"Heads set in: {'; '.join(parts)}."


def stamped(frame: pd.DataFrame, subject: Subject) -> pd.DataFrame:
    """Return the table with the run it belongs to in its attrs."""
    stamped = frame.copy()
    known = ("run", "checkpoint_sha256", "seed", "step")
    stamped.attrs = {**frame.attrs, **{name: subject.facts[name] for name in known}}
    return stamped


def report_files(subject: Subject, found: Findings) -> dict[str, bytes]:
    """Return every file of the report by its name."""
    drawn = {
        name: plots.png_bytes(f, dpi=100, note=note_of(name, frame, subject))
        for name, (f, frame) in draw_figures(found, subject.facts["task"]).items()
    }
    tables = {
        "heads.csv": csv_text(found.heads).encode(),
        "heads.parquet": parquet_bytes(found.heads),
        "labels.csv": csv_text(found.labels).encode(),
        "labels.parquet": parquet_bytes(found.labels),
        "evidence.parquet": parquet_bytes(found.evidence),
        "spectrum.parquet": parquet_bytes(found.spectrum),
        "entropy.parquet": parquet_bytes(found.entropy),
        "ablation.csv": csv_text(found.ablation).encode(),
        "ablation.parquet": parquet_bytes(found.ablation),
    }
    causes = {name: stamped(frame, subject) for name, frame in found.causes.tables()}
    for name, frame in causes.items():
        tables |= {f"{name}.csv": csv_text(frame).encode(), f"{name}.parquet": parquet_bytes(frame)}
    pictures = {f"figures/{name}.png": png for name, png in drawn.items()}
    config = subject.model.config
    facts = {**subject.facts, "n_layers": config.n_layers, "n_heads": config.n_heads}
    accuracy = dataclasses.asdict(found.accuracy)
    ids = subject.batch.tokens[0, :LONGEST].tolist() if found.maps else []
    screen = screen_data(
        found.heads,
        found.labels,
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
        "labels": json_rows(found.labels),
        "ablation": json_rows(found.ablation),
        # Of the curve, which has a row for every step of every random order, what it comes to.
        "causes": {name: json_rows(frame) for name, frame in causes.items() if name != "pruning"},
    }
    content = Content(
        title=subject.title,
        subtitle=subtitle(subject),
        sentence=found.sentence,
        facts=top_facts(subject, found.accuracy),
        figures=drawn,
        heads=found.heads,
        labels=found.labels,
        task=subject.facts["task"],
        forming=when_heads_form(found.film),
        ablation=found.ablation,
        causes=cause_sections(found.causes, drawn, subject.facts["task"]),
        command=subject.command,
        provenance=provenance_texts(provenance),
        files=[*tables, "report.json", *pictures],
    )
    return {
        **tables,
        **pictures,
        "report.json": json_text(summary).encode(),
        "first_screen.json": json_text(screen).encode(),
        "report.html": report_page(content).encode(),
    }


def draw_figures(found: Findings, task: str | None) -> dict[str, Drawn]:
    """Draw the figures of the report, each beside its table; a model without heads has none."""
    if found.heads.empty:
        return {}
    drawn = {
        "labels": (figures.label_sheet(found.labels, task), found.labels),
        "heads": (figures.score_grids(found.heads), found.heads),
        "spectrum": (figures.spectrum_sheet(found.spectrum), found.spectrum),
        "entropy": (figures.entropy_sheet(found.entropy), found.entropy),
        "ablation": (figures.ablation_panels(found.ablation), found.ablation),
        **cause_figures(found.causes, task),
    }
    if found.film is not None:
        drawn["dynamics"] = figures.film_sheet(found.film), found.film
    if set(LADDER) <= set(found.evidence["probe"]):
        drawn["ladder"] = figures.ladder_sheet(found.evidence), found.evidence
    if set(SOURCE_PROBES) <= set(found.heads["probe"]):
        drawn["stripes"] = figures.stripe_sheet(found.heads), found.heads
    if found.attention is not None:
        drawn["attention"] = figures.attention_sheet(found.attention), found.attention
    return drawn


def note_of(name: str, frame: pd.DataFrame, subject: Subject) -> str:
    """Say below a figure which model it is about, on which input, and what its whiskers are."""
    n = int(frame["n_sequences"].max()) if "n_sequences" in frame else 1
    said = [subject.named, f"input: {counted(n, 'sequence')} {subject.kind}"]
    if "repeated_blocks" in frame.attrs:
        said.append(f"classes of content: {frame.attrs['repeated_blocks']}")
    if name in WITH_INTERVALS:
        said.append("interval: 95 %, sequences resampled")
    return " | ".join(said)


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
        "exact match": decimals(accuracy.exact_match, 4),
        "token accuracy": decimals(accuracy.token_accuracy, 4),
        "loss (nats)": significant(accuracy.loss),
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
