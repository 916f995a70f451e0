"""`headlab demo`: train a model, probe it, and open the app on it."""

import csv
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from apps.commands.app import free_port, serve
from apps.commands.arguments import Device, fill_in, flag
from apps.commands.report import REPORT, report_run
from apps.console import say, say_facts
from apps.terminal.head_table import say_head_table
from apps.terminal.training_lines import train_in_terminal
from lab.manifest import MANIFEST
from lab.presets import get_preset
from lab.run_folders import CONFIG, Run, open_run, runs_home

PRESET = "reversal"
HEADS = "heads.csv"


ABOUT = """
Train the reversal GPT, see what its heads do, and open the app on it.

This takes about a minute on two processor cores; the second time, the run is
already there. After Ctrl-C, the next `headlab demo` resumes.
"""


@dataclass(frozen=True, kw_only=True)
class DemoForm:
    """Arguments of `headlab demo`."""

    name: Annotated[str, flag("RUN", "Name of the run.")] = "demo"
    device: Device = "auto"
    app: bool = True
    """Open the app at the end."""


def run_demo(arguments: list[str]) -> int:
    """Train and probe what is missing, print the head table, and serve the app."""
    form = fill_in(DemoForm, arguments, command="demo", about=ABOUT)
    run_dir = runs_home() / form.name
    if not (run_dir / MANIFEST).is_file():
        code = train_demo(run_dir, form.device)
        if code:
            return code
    run = open_run(form.name)
    if REPORT not in run.files or HEADS not in run.files:
        report_run(run)
        run = open_run(form.name)
    say_heads(run)
    say_facts([("run", str(run.path)), ("report", str(run.file(REPORT)))])
    if form.app:
        return serve(free_port(), form.name)
    say_facts([("next", f"headlab app --run {form.name}")])
    return 0


def train_demo(run_dir: Path, device: str) -> int:
    """Train the preset, or resume its stopped run; return the exit code."""
    half = (run_dir / CONFIG).is_file()
    config = open_run(run_dir, unfinished=True).config if half else get_preset(PRESET)
    config = dataclasses.replace(config, device=device)
    return train_in_terminal(config, run_dir, resume=half)


def say_heads(run: Run) -> None:
    """Print the head table of a run's report."""
    with run.file(HEADS).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:  # a run of this name whose heads were all pruned
        return
    say("", "what each head attends to: mean attention on each probe's cells, 0 to 1", "")
    say_head_table(rows)
    say()
