"""Training in a terminal: its progress, its result, and how to resume it.

The steps themselves are `lab.training`'s. What `headlab train` and `headlab demo` share is here.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from apps.console import is_main_process, remark, say_facts
from lab.config import TrainConfig
from lab.manifest import MANIFEST
from lab.naming import counted
from lab.run_folders import CONFIG, checkpoint_steps, runs_home
from probes.number_text import grouped

if TYPE_CHECKING:
    from lab.evaluation import Evaluation
    from lab.training import StepRecord
    from probes.film.writer import FilmSettings, FilmWriter

Show = Callable[["StepRecord"], None]

STOPPED = 128
"""A shell's exit code for a program that a signal ended is this plus the signal's number."""


def train_in_terminal(
    config: TrainConfig, run_dir: Path, *, resume: bool, film: "FilmSettings | None" = None
) -> int:
    """Train a run to its end and print the result.

    Ctrl-C, or SIGTERM, ends it after the step at hand, with a checkpoint; a second one at once.

    Args:
        config: The whole run.
        run_dir: Its folder.
        resume: Resume the run in the folder.
        film: The steps at which heads are scored; None: no film.

    Returns:
        The exit code: 0, or 128 + the signal that stopped it.

    Raises:
        ValueError: See `lab.training.train`.
        OSError: If the run folder cannot be written or the disk is full.
    """
    from lab.runtime import leave_processes
    from lab.training import train

    began = time.monotonic()
    last: StepRecord | None = None
    first_step = config.steps
    with stop_requests() as requests, filming(config, run_dir, film) as camera:
        files = None if camera is None else camera.files
        records = train(config, run_dir=run_dir, resume=resume, files=files)
        remark(announcement(config, run_dir))
        with contextlib.closing(records), progress(config, run_dir.name) as show:
            try:
                for record in records:
                    first_step = record.step if last is None else first_step
                    last = record
                    if camera is not None:
                        camera.see(record)
                    show(record)
                    if requests:
                        break
            except KeyboardInterrupt:  # the second request
                requests.append(signal.SIGINT)
        if requests and not (last is not None and last.final):
            say_how_to_resume(run_dir, config)
            return STOPPED + requests[0]
        if camera is not None:
            camera.finish()
            remark_on_lost_frames(camera)
    leave_processes()
    if last is not None and is_main_process():
        seconds = time.monotonic() - began
        facts = outcome(run_dir, last, config.steps - first_step + 1, seconds)
        if camera is not None:
            facts.append(("film", film_text(len(camera.frames), run_dir)))
        say_facts(facts)
    return 0


@contextlib.contextmanager
def filming(
    config: TrainConfig, run_dir: Path, settings: "FilmSettings | None"
) -> Iterator["FilmWriter | None"]:
    """Yield the writer of the run's film; None without a film, or outside the main process."""
    if settings is None or not is_main_process():
        yield None
        return
    from probes.film.writer import FilmWriter

    with FilmWriter(config, settings, run_dir) as camera:
        yield camera


def remark_on_lost_frames(camera: "FilmWriter") -> None:
    """Say which steps the film lacks, because it began when training was under way."""
    lost = camera.lost
    if lost:
        remark(
            f"note: the film lacks {grouped(len(lost))} of {grouped(len(camera.due))} steps, from "
            f"{grouped(lost[0])} to {grouped(lost[-1])}, because no checkpoint exists for them"
        )


def announcement(config: TrainConfig, run_dir: Path) -> str:
    """Return the line that says what is going to be trained, where, and from which step."""
    if (run_dir / MANIFEST).is_file():
        return f"{run_dir} is complete; it has no steps left to train"
    model = config.model
    done = checkpoint_steps(run_dir)
    from_step = f", resuming from step {grouped(done[-1])}" if done else ""
    return (
        f"training {config.task} of length {config.length} into {run_dir}: "
        f"{counted(model.n_layers, 'layer')} x {counted(model.n_heads, 'head')}, "
        f"d_model {model.d_model}, {counted(config.steps, 'step')} of "
        f"{counted(config.batch_size, 'sequence')}{from_step}"
    )


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list that receives the first SIGINT or SIGTERM; a second one interrupts."""
    requests: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)
        remark("\nstopping after this step (Ctrl-C again: at once)")

    # What is ignored, as under nohup, stays ignored.
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, ask)
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def progress(config: TrainConfig, name: str) -> Iterator[Show]:
    """Yield a function that shows a record on stderr: on a bar, or in lines."""
    if not is_main_process():
        yield lambda record: None
    elif not sys.stderr.isatty():
        yield lambda record: show_line(record, config.steps)
    else:
        from tqdm import tqdm

        with tqdm(total=config.steps, desc=name, unit="step", dynamic_ncols=True) as bar:
            exact = ""

            def show(record: "StepRecord") -> None:
                nonlocal exact
                if not bar.n:  # a resumed run does not begin at 0
                    bar.n = bar.initial = record.step - 1
                if record.evaluation is not None:
                    exact = f", exact-match {record.evaluation.exact_match:.3f}"
                bar.set_postfix_str(f"loss {record.loss:.4f}{exact}", refresh=False)
                bar.update(record.step - bar.n)

            yield show


def show_line(record: "StepRecord", steps: int) -> None:
    """Print one line for a step that was evaluated."""
    if record.evaluation is None:
        return
    width = len(grouped(steps))
    remark(
        f"step {grouped(record.step):>{width}} of {grouped(steps)}  loss {record.loss:.4f}  "
        f"exact-match {record.evaluation.exact_match:.3f}"
    )


def outcome(
    run_dir: Path, last: "StepRecord", n_steps: int, seconds: float
) -> list[tuple[str, str]]:
    """Return what a training came to, as labels and texts."""
    device = next(last.model.parameters()).device.type
    parameters = sum(p.numel() for p in last.model.parameters())
    facts = [("run", f"{run_dir} ({grouped(parameters)} parameters)")]
    if n_steps > 1:
        facts.append(("trained", f"{counted(n_steps, 'step')} in {seconds:.0f} s on {device}"))
    if last.evaluation is not None:
        facts.append(("reached", accuracy_text(last.evaluation)))
    return facts


def film_text(n_frames: int, run_dir: Path) -> str:
    """Return how many frames a run's film has, and how to see them."""
    shown = f"headlab probe {place_of(run_dir)} --all-checkpoints"
    return f"{counted(n_frames, 'frame')} of all heads; `{shown}` shows them"


def place_of(run_dir: Path) -> str:
    """Return what a person calls a run on the command line."""
    return run_dir.name if run_dir.parent == runs_home() else str(run_dir)


def accuracy_text(evaluation: "Evaluation") -> str:
    """Return how well a model answers, in one line."""
    return (
        f"exact-match {evaluation.exact_match:.3f}, token accuracy "
        f"{evaluation.token_accuracy:.3f}, loss {evaluation.loss:.4f} nats "
        f"on {counted(evaluation.n_sequences, 'unseen sequence')}"
    )


def say_how_to_resume(run_dir: Path, config: TrainConfig) -> None:
    """Say what a stopped training saved, and the command that resumes it."""
    steps = checkpoint_steps(run_dir)
    if not (run_dir / CONFIG).is_file() or not steps:
        remark("stopped before the first step; nothing was written")
        return
    remark(
        f"stopped; step {grouped(steps[-1])} of {grouped(config.steps)} is saved. Resume with:\n"
        f"  headlab train --resume {place_of(run_dir)}"
    )
