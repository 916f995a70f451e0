"""Writes the run folder during training: creates it, adds checkpoints, seals it at the end.

A killed process leaves either no run folder or one that can be resumed. Only the main process has a
writer. `lab.run_folders` reads runs.
"""

import contextlib
import dataclasses
import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lab.checkpoint import can_resume, save_checkpoint, stripped
from lab.config import SCHEMA_VERSION, TrainConfig
from lab.durable import (
    atomic_dir,
    atomic_write,
    hold,
    one_clear_error,
    remove_leftovers,
    sync,
    to_json,
)
from lab.hooked_gpt import HookedGPT
from lab.manifest import MANIFEST, seal_folder
from lab.run_folders import (
    CHECKPOINTS,
    CONFIG,
    METRIC_COLUMNS,
    METRICS,
    WEIGHTS,
    MetricsRow,
    Run,
    check_run_name,
    checkpoint_steps,
    metrics_row,
    open_run,
    step_name,
)
from lab.weights import weight_not_finite

HEADER = ",".join(METRIC_COLUMNS) + "\n"


def check_target(run_dir: Path, config: TrainConfig, resume: bool) -> int:
    """Return the step from which a run of this config resumes in the folder.

    Raises:
        ValueError: If the folder exists, or its run cannot be resumed with this config.
    """
    check_run_name(run_dir.name)
    if not run_dir.exists():
        return 0
    if not resume:
        raise ValueError(
            f"run folder must be new, got {str(run_dir)!r}, which exists; "
            "choose another name or continue it with --resume"
        )
    run = open_run(run_dir, unfinished=True)
    check_end(run)
    try:
        resumable = can_resume(run)
    except ValueError as error:
        raise with_way_back(error, run) from error
    if not resumable:
        raise ValueError(stripped(run_dir))
    if run.files and run.steps[-1] != run.config.steps:
        raise ValueError(
            f"a complete run must have the checkpoint of its last step {run.config.steps}, got "
            f"{run.steps[-1]} as the last in {str(run_dir)!r}; restore the folder from a copy"
        )
    # A run may resume on another device, but with no other change.
    given = dataclasses.replace(config, device=run.config.device)
    changed = differences(given.to_dict(), run.config.to_dict())
    if changed:
        got = ", ".join(f"{name} {one}" for name, (one, _) in changed.items())
        had = ", ".join(str(other) for _, other in changed.values())
        raise ValueError(
            f"config must be the run's own to resume it, got {got} where {run.name!r} has {had}; "
            "leave it as it was or choose another name"
        )
    with hold(run_dir):  # reject a run that another process writes, before any output
        return run.steps[-1]


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], under: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ between two mappings of the same keys, by dotted name.

    >>> differences({"steps": 3, "model": {"seed": 0}}, {"steps": 3, "model": {"seed": 1}})
    {'model.seed': (0, 1)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name, value in one.items():
        if isinstance(value, Mapping):
            found |= differences(value, other[name], f"{under}{name}.")
        elif value != other[name]:
            found[f"{under}{name}"] = (value, other[name])
    return found


def check_end(run: Run) -> None:
    """Raise ValueError if files of a complete run are missing or changed."""
    last = f"{CHECKPOINTS}/{step_name(run.config.steps)}/"
    for name in run.files:
        if name in (WEIGHTS, METRICS) or name.startswith(last):
            run.file(name)


def with_way_back(error: ValueError, run: Run) -> ValueError:
    """Return the error for a damaged last checkpoint, with the remedy that loses least."""
    if run.files or len(run.steps) < 2:
        return error
    last, before = str(run.checkpoint()), run.steps[-2]
    return ValueError(f"{error}, or remove {last!r} to resume from step {before}")


class RunWriter:
    """Writes one run folder; use it in a `with` block, which locks the folder."""

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        self.run_dir = run_dir
        self.config = config
        self._held = contextlib.ExitStack()
        self._created = False

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def create(
        self,
        model: HookedGPT,
        optimizer: torch.optim.AdamW,
        info: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Create the folder with config, empty metrics, the checkpoint of step 0 and files."""
        with one_clear_error(self.run_dir):
            remove_leftovers(self.run_dir.parent, self.run_dir.name)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        described = {"schema_version": SCHEMA_VERSION, "train": self.config.to_dict()}
        described |= {"seed": self.config.seed, "created": created, **info}
        with atomic_dir(self.run_dir) as folder:
            (folder / CONFIG).write_bytes(to_json(described))
            (folder / METRICS).write_text(HEADER, encoding="ascii")
            for name, content in (files or {}).items():
                (folder / name).write_bytes(content)
            save_checkpoint(folder, self.config, 0, model, optimizer)
        self._created = True
        self._held.enter_context(hold(self.run_dir))
        self._open_metrics()

    def discard(self) -> None:
        """Remove the run if this writer has created it."""
        if self._created:
            self._held.close()
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def resume(self) -> int:
        """Lock the folder and return the step of its last checkpoint.

        Files that a killed process left are removed, and metrics are truncated to that step.

        Raises:
            ValueError: If another process writes the run, or metrics are missing.
        """
        self._held.enter_context(hold(self.run_dir))
        run = open_run(self.run_dir, unfinished=True)
        step = run.steps[-1]
        with one_clear_error(self.run_dir):
            remove_leftovers(self.run_dir)
            remove_leftovers(run.checkpoint().parent)
        rows = run.metrics()[:step]
        if [row["step"] for row in rows] != list(range(1, step + 1)):
            raise ValueError(
                f"{METRICS} must have a row for every step up to {step}, got {len(rows)} in order "
                f"in {str(self.run_dir)!r}; restore it from a copy or train under another name"
            )
        if not run.files:  # a complete run is not modified
            lines = [HEADER, *map(metrics_row, rows)]
            atomic_write(self.run_dir / METRICS, "".join(lines).encode("ascii"))
            self._open_metrics()
        return step

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have a checkpoint, in order."""
        return checkpoint_steps(self.run_dir)

    def _open_metrics(self) -> None:
        with one_clear_error(self.run_dir / METRICS):
            # Without a buffer: after an error, a buffer would be written again while closing.
            file = (self.run_dir / METRICS).open("ab", buffering=0)
            self._metrics = self._held.enter_context(file)

    def metrics(self, row: MetricsRow) -> None:
        """Append a row; readers see it at once, and the next checkpoint flushes it to disk."""
        with one_clear_error(self.run_dir / METRICS):
            left = metrics_row(row).encode("ascii")
            while left:
                left = left[self._metrics.write(left) :]

    def checkpoint(self, step: int, model: HookedGPT, optimizer: torch.optim.AdamW) -> Path:
        """Write the checkpoint of a step, after flushing the metrics."""
        check_finite(model, step)
        with one_clear_error(self.run_dir / METRICS):
            sync(self.run_dir / METRICS)
        return save_checkpoint(self.run_dir, self.config, step, model, optimizer)

    def finish(self) -> None:
        """Copy the trained weights to the top of the folder and seal it."""
        if (self.run_dir / MANIFEST).is_file():
            return
        run = open_run(self.run_dir, unfinished=True)
        trained = (run.checkpoint() / WEIGHTS).read_bytes()
        atomic_write(self.run_dir / WEIGHTS, trained)
        seal_folder(self.run_dir)


def check_finite(model: HookedGPT, step: int) -> None:
    """Raise ValueError if a weight is no longer a finite number."""
    name = weight_not_finite(model)
    if name is not None:
        raise ValueError(
            f"weights must be finite, got nan or inf in {name} at step {step}; "
            "the checkpoint before is kept: train with a lower learning_rate"
        )
