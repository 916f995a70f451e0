"""Run folders: their place, content and completeness. No torch.

A run is a folder `<home>/<name>` that appears with its config.json and its first checkpoint, grows
checkpoints and metrics.csv, and is complete once manifest.json lists every file with its sha256.
Only complete runs are listed, and every file is checked against the manifest before it is read.
`lab.checkpoint` stores weights.
"""

import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.config import TrainConfig
from lab.durable import atomic_write, hold, one_clear_error
from lab.manifest import (
    MANIFEST,
    FileEntry,
    check_size,
    entry_of,
    file_in,
    is_file_within,
    is_inside,
    is_within,
    read_manifest,
    read_versioned,
    verified,
    write_manifest,
)
from lab.naming import bare, quoted, unknown_name

logger = logging.getLogger(__name__)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
METRICS = "metrics.csv"
OPTIMIZER = "optimizer.safetensors"
"""The file of a checkpoint that is needed to resume training from it."""
CHECKPOINTS = "checkpoints"
METRIC_COLUMNS = (
    "step",
    "loss",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "eval_loss",
    "token_accuracy",
    "exact_match",
)
"""Columns of metrics.csv; the last three are filled where the step was evaluated."""
FEWEST_BYTES = 2
"""Bytes of a weight in the smallest format that is read (float16, bfloat16)."""
MetricsRow = dict[str, int | float]
"""A row of metrics.csv by column: `step` is an int, a missing float is NaN."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder: its configuration and its manifest."""

    path: Path
    name: str
    config: TrainConfig
    info: dict[str, Any]
    """Everything else in config.json: git_sha, versions, seed, created, schema_version."""
    files: Mapping[str, FileEntry]
    """The manifest; empty in a run that is not complete."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have a checkpoint, in order."""
        return checkpoint_steps(self.path)

    @property
    def last_step(self) -> int:
        """Step of the weights; in a pruned run, the step of its source checkpoint, or later."""
        return max(self.steps, default=self.config.steps)

    def checkpoint(self, step: int | None = None) -> Path:
        """Return the folder of a step's checkpoint; None: the last one.

        Raises:
            ValueError: If there is no such checkpoint.
        """
        steps = self.steps
        if not steps or (step is not None and step not in steps):
            shown = ", ".join(map(str, steps)) or "none yet"
            raise ValueError(f"step must be one with a checkpoint ({shown}), got {step}")
        return self.path / CHECKPOINTS / step_name(steps[-1] if step is None else step)

    def metrics(self) -> list[MetricsRow]:
        """Return the rows of metrics.csv, one for each step; NaN if it was not evaluated."""
        return read_metrics(self.file(METRICS) if self.files else file_in(self.path, METRICS))

    def file(self, name: str) -> Path:
        """Return the path of a file of the run, after checking it against the manifest.

        Raises:
            ValueError: If the manifest has no such file, or the file is missing or changed.
        """
        if name not in self.files:
            raise ValueError(unknown_name(f"file of run {self.name!r}", name, self.files))
        return verified(self.path, name, self.files[name])


def runs_home() -> Path:
    """Return where runs live: $HEADLAB_HOME, or ./artifacts.

    Raises:
        ValueError: If that is a file, or a place in one.
    """
    home = Path(os.environ.get("HEADLAB_HOME") or "artifacts")
    there = next((place for place in (home, *home.parents) if place.exists()), home)
    if there.exists() and not there.is_dir():
        raise ValueError(
            f"home of runs must be a folder, got {quoted(str(home))}, where {bare(str(there))} is "
            "a file; let HEADLAB_HOME name a folder"
        )
    return home


def step_name(step: int) -> str:
    """Return the name of a step's folder.

    >>> step_name(100)
    'step-000100'
    """
    return f"step-{step:06d}"


def checkpoint_steps(run_dir: Path) -> tuple[int, ...]:
    """Return the steps that have a checkpoint in the folder, in order."""
    steps = []
    folder = run_dir / CHECKPOINTS
    for path in folder.glob("step-*") if is_within(folder, run_dir) else ():
        match = re.fullmatch(r"step-([0-9]{6,18})", path.name)
        if match and path.name == step_name(int(match[1])) and is_within(path, run_dir):
            steps.append(int(match[1]))
    return tuple(sorted(steps))


def has_training_state(run_dir: Path) -> bool:
    """Return whether the last checkpoint in a folder has training state, damaged or not."""
    steps = checkpoint_steps(run_dir)
    if not steps:
        return False
    return is_file_within(run_dir / CHECKPOINTS / step_name(steps[-1]) / OPTIMIZER, run_dir)


def check_run_name(name: str) -> None:
    """Raise ValueError unless a folder of this name is safe and visible everywhere."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            "run name must be 1 to 100 letters, digits, '.', '_' or '-' and start with a letter "
            f"or digit, got {name[:120]!r}"
        )


def list_runs(home: Path | None = None) -> list[Run]:
    """Return the complete runs of a home, by name; unfinished and damaged ones are skipped."""
    home = runs_home() if home is None else home
    if not home.is_dir():
        return []
    runs = []
    for path in sorted(home.iterdir()):
        if path.name.startswith(".") or not is_file_within(path / MANIFEST, path):
            continue
        try:
            run = read_run(path)
            for name, entry in run.files.items():
                check_size(path, name, entry)
        except (ValueError, OSError) as error:
            logger.warning("run %s is not listed: %s", path.name, error)
            continue
        runs.append(run)
    return runs


def open_run(name_or_path: str | Path, home: Path | None = None, unfinished: bool = False) -> Run:
    """Read a run by its name, or by the path of its folder.

    Args:
        name_or_path: A name in the home; with a separator in it, or a Path, a folder.
        home: Where runs live; None: runs_home().
        unfinished: Also accept a run that has not reached its end (its manifest is then empty).

    Raises:
        ValueError: If there is no such run, or it is unfinished, damaged or too new.
    """
    home = runs_home() if home is None else home
    given = str(name_or_path)
    as_path = isinstance(name_or_path, Path) or os.sep in given
    path = Path(name_or_path) if as_path else home / given
    if not as_path and not re.fullmatch(r"[^./\x00][^/\x00]{0,254}", given):
        raise ValueError(unknown_name("run", given, run_names(home)))
    if not is_file_within(path / CONFIG, path):
        if as_path:
            raise ValueError(
                f"run must be a folder with a {CONFIG}, got {given!r}; `headlab runs` lists them"
            )
        if given not in run_names(home):  # otherwise read_run raises the error
            raise ValueError(unknown_name("run", given, run_names(home)))
    if not unfinished and not is_file_within(path / MANIFEST, path):
        way_out = (
            "which stopped before its end; train it to the end with --resume"
            if has_training_state(path)
            else f"which has no {MANIFEST} and no checkpoint to resume from; restore the "
            "folder from a copy"
        )
        raise ValueError(f"run must be complete, got {path.name!r}, {way_out}")
    return read_run(path)


def run_names(home: Path) -> list[str]:
    """Return the names of the folders in a home that have a manifest."""
    if not home.is_dir():
        return []
    return sorted(path.parent.name for path in home.glob(f"[!.]*/{MANIFEST}"))


def read_run(path: Path) -> Run:
    """Read config.json and, if there is one, the manifest."""
    files = read_manifest(path) if is_file_within(path / MANIFEST, path) else {}
    if files:
        if CONFIG not in files:
            raise ValueError(
                f"{MANIFEST} must list {CONFIG}, got {str(path / MANIFEST)!r} without it; "
                "restore the folder from a copy"
            )
        verified(path, CONFIG, files[CONFIG])
    data = read_versioned(path / CONFIG)
    config = data.pop("train", {})
    try:
        train = TrainConfig.from_dict(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None
    if WEIGHTS in files:
        held, numbers = files[WEIGHTS].bytes, train.model.n_parameters
        if held < FEWEST_BYTES * numbers:
            raise ValueError(
                f"{WEIGHTS} must hold the {numbers} numbers that {CONFIG} describes, got {held} "
                f"bytes in {str(path)!r}; use weights and config of one model"
            )
    # The path may be a link, whose own name counts; `.` and `..` are resolved.
    name = path.resolve().name if path.name in ("", "..") else path.name
    return Run(path=path, name=name, config=train, info=data, files=files)


def update_derived(run_dir: Path, files: Mapping[str, bytes | Path]) -> None:
    """Add or replace files made from a complete run: tables, figures, reports.

    If the process is killed at any moment, the run still verifies: the manifest first drops these
    files, then they are replaced one by one, then it lists them again. Other entries do not change,
    so that a file that was damaged meanwhile does not verify.

    Args:
        run_dir: The folder of a complete run.
        files: Bytes, or the path of a file to copy, by relative name with forward slashes.

    Raises:
        ValueError: If a name is not free for derived files, or another process writes the run.
        OSError: If the place cannot be written or is full; the run is still complete.
    """
    for name in files:
        taken = name in (CONFIG, WEIGHTS, METRICS, MANIFEST) or name.startswith(CHECKPOINTS + "/")
        if taken or not is_inside(name):
            raise ValueError(f"derived file must have a free name in the run folder, got {name!r}")
        if not is_within((run_dir / name).parent, run_dir):
            raise ValueError(
                f"derived file must stay in the run folder, got {name!r}, whose folder is a link "
                f"out of {str(run_dir)!r}; remove the link"
            )
    with hold(run_dir):
        entries = {k: v for k, v in read_manifest(run_dir).items() if k not in files}
        write_manifest(run_dir, entries)
        for name, content in files.items():
            path = run_dir / name
            with one_clear_error(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, content.read_bytes() if isinstance(content, Path) else content)
            entries[name] = entry_of(path)
        write_manifest(run_dir, entries)


def read_metrics(path: Path) -> list[MetricsRow]:
    """Read metrics.csv up to its first torn row; `step` is a whole number, the rest floats."""
    rows: list[MetricsRow] = []
    with path.open(newline="", encoding="ascii", errors="replace") as file:
        for line in file:
            cells = line.rstrip("\r\n").split(",")
            if cells == list(METRIC_COLUMNS):
                continue
            try:
                values = [float(cell) if cell else math.nan for cell in cells[1:]]
                step = int(cells[0])
            except ValueError:
                break
            if len(cells) != len(METRIC_COLUMNS) or not line.endswith("\n"):
                break
            rows.append(dict(zip(METRIC_COLUMNS, [step, *values], strict=True)))
    return rows


def metrics_row(row: MetricsRow) -> str:
    """Return one row of metrics.csv; floats keep all bits, NaN is an empty cell."""
    cells = ("" if math.isnan(row[name]) else repr(row[name]) for name in METRIC_COLUMNS)
    return ",".join(cells) + "\n"
