"""`headlab runs`: list the runs. No torch."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

from apps.commands.arguments import fill_in
from apps.console import one_line, say, say_table
from lab.manifest import MANIFEST
from lab.run_folders import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    OPTIMIZER,
    Run,
    checkpoint_steps,
    has_training_state,
    list_runs,
    runs_home,
    step_name,
)
from probes.number_text import MISSING, decimals, grouped, in_bytes

logger = logging.getLogger(__name__)


ABOUT = """
List the runs with their task, number of steps and accuracy.

  exact-match  share of unseen sequences whose whole answer is right, at the end
  resumable    whether training can resume from the checkpoints (they may hold
               weights only)
"""


@dataclass(frozen=True, kw_only=True)
class RunsForm:
    """Arguments of `headlab runs`: there are none."""


def run_runs(arguments: list[str]) -> int:
    """List the complete runs, then the unfinished ones."""
    fill_in(RunsForm, arguments, command="runs", about=ABOUT)
    home = runs_home()
    runs = list_runs(home)
    if runs:
        header = ("run", "task", "steps", "exact-match", "size", "checkpoints", "resumable")
        say_table(header, [row_of(run) for run in runs], words=(0, 1, 6))
    else:
        say(f"no runs in {home} yet; `headlab demo` makes one in about a minute")
    for name in unfinished_names(home):
        step = checkpoint_steps(home / name)[-1]
        if has_training_state(home / name):
            say(f"{one_line(name)} stopped at step {grouped(step)}: headlab train --resume {name}")
        else:
            say(f"{one_line(name)} has no {MANIFEST}: restore the folder from a copy")
    return 0


def row_of(run: Run) -> list[str]:
    """Return a run's line of the table."""
    return [
        run.name,
        f"{run.config.task} {run.config.length}",
        grouped(run.last_step),
        exact_match_text(run),
        in_bytes(sum(entry.bytes for entry in run.files.values())),
        str(len(run.steps)),
        "yes" if is_resumable(run) else "no, weights only",
    ]


def exact_match_text(run: Run) -> str:
    """Return the last exact-match that training measured."""
    if METRICS not in run.files:  # as in a pruned model, which was not trained
        return MISSING
    try:
        found = [row["exact_match"] for row in run.metrics()]
    except ValueError as error:
        logger.warning("metrics of run %s: %s", run.name, error)
        return "damaged"
    measured = [value for value in found if not math.isnan(value)]
    return decimals(measured[-1], 3) if measured else MISSING


def is_resumable(run: Run) -> bool:
    """Return whether the last checkpoint has what training needs to go on."""
    if not run.steps:
        return False
    return f"{CHECKPOINTS}/{step_name(run.steps[-1])}/{OPTIMIZER}" in run.files


def unfinished_names(home: Path) -> list[str]:
    """Return the names of the runs that have a checkpoint but did not reach their end."""
    if not home.is_dir():
        return []
    return sorted(
        path.parent.name
        for path in home.glob(f"[!.]*/{CONFIG}")
        if not (path.parent / MANIFEST).is_file() and checkpoint_steps(path.parent)
    )
