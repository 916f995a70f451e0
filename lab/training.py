"""Training: takes a config and yields one StepRecord for each step.

The data of a step depends only on the config and the step, and nothing else is random, so a resumed
run ends like an uninterrupted one. `lab.trainer` does a step, `lab.run_writer` writes the run.
"""

import contextlib
import math
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from lab.checkpoint import load_checkpoint
from lab.config import TrainConfig
from lab.evaluation import Evaluation
from lab.hooked_gpt import HookedGPT
from lab.run_folders import METRIC_COLUMNS, MetricsRow, open_run
from lab.run_writer import RunWriter, check_target, with_way_back
from lab.runtime import Processes, join_processes, machine_memory, on_main, pick_device
from lab.tasks.base import Task
from lab.tasks.registry import get_task
from lab.trainer import Trainer

BYTES_IN_TRAINING = 16
"""Bytes for each parameter: itself, its gradient and two moments, in float32."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepRecord:
    """The result of one optimiser step."""

    step: int
    """Steps done, this one included."""
    loss: float
    """Mean loss of the answers over the whole batch, in nats, before the step."""
    learning_rate: float
    grad_norm: float
    """Norm of the gradient before clipping."""
    tokens_per_second: float
    """Tokens of the step in all processes, by its time without evaluation and writing."""
    evaluation: Evaluation | None
    """Evaluation on held-out sequences, if the step was evaluated; main process only."""
    checkpoint: Path | None
    """The folder written after this step, if any; main process only."""
    final: bool
    """True for the last step; the run folder is then complete."""
    model: HookedGPT = field(repr=False)
    """The model in training, on its device: the same object in every record."""


def train(
    config: TrainConfig,
    *,
    run_dir: Path | None = None,
    resume: bool = False,
    files: Mapping[str, bytes] | None = None,
) -> Generator[StepRecord, None, None]:
    """Train a model and yield a record after every step.

    Useful pattern: `for record in train(config): ...`; afterwards `record.model` is the trained
    model. Closing the generator early, or Ctrl-C, writes a checkpoint of the last step done.

    >>> from lab import ModelConfig
    >>> model = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=28, n_ctx=8)
    >>> config = TrainConfig(task="reversal", length=3, model=model, steps=2, eval_sequences=8)
    >>> for record in train(config):
    ...     print(record.step, round(record.loss, 1))
    1 3.3
    2 3.3
    >>> record.model.generate(torch.tensor([[0, 2, 3, 4, 1]]), max_new_tokens=3).shape
    torch.Size([1, 8])

    Args:
        config: The whole run.
        run_dir: The run folder to write; None: nothing is written.
        resume: Continue the run that the folder holds, or start one in a new folder. On the CPU,
            with as many threads and processes, the weights end bit-identical to an uninterrupted
            run's. A run that is complete yields its last record again.
        files: Other files of a new run folder, by name, written together with its config: for
            example notes on the records, which a killed process must not lose.

    Raises:
        ValueError: If the config contradicts itself, the machine or the run folder; during
            training, if loss or gradient stop being finite.
        OSError: If the run folder cannot be written or the disk is full; what was complete is kept.
    """
    task = task_of(config)
    check_memory(config)
    device = pick_device(config.device)
    check_batch(config, task, device)
    processes = join_processes(device)
    if device.type == "cuda" and processes.count > 1:
        device = torch.device("cuda", processes.local_index)
    parts = config.accumulate * processes.count
    if config.batch_size % parts:
        raise ValueError(
            "batch_size must be a multiple of accumulate x processes, got "
            f"{config.batch_size} and {config.accumulate} x {processes.count}; change one of them"
        )
    if run_dir is not None:
        on_main(processes, lambda: check_target(run_dir, config, resume))
    return training_steps(config, task, device, processes, run_dir, files or {})


def task_of(config: TrainConfig) -> Task:
    """Return the task of a config, after checking that its model fits the task."""
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    sized = f"{config.task} of length {config.length} with {config.n_symbols} symbols"
    if config.model.d_vocab != task.d_vocab:
        raise ValueError(f"d_vocab must be {task.d_vocab} for {sized}, got {config.model.d_vocab}")
    if config.model.vocab_out != task.d_vocab:
        raise ValueError(
            f"d_vocab_out must be d_vocab = {task.d_vocab} to learn {config.task}, whose answers "
            f"are symbols that it reads, got {config.model.vocab_out}; leave it out"
        )
    if config.model.attention_dir != "causal":
        raise ValueError(
            f"attention_dir must be 'causal' to learn {config.task}, got "
            f"{config.model.attention_dir!r}, which sees the answers; leave it out"
        )
    if config.model.n_ctx < task.n_tokens:
        raise ValueError(
            f"n_ctx must be at least {task.n_tokens} for {sized}, got {config.model.n_ctx}"
        )
    return task


def check_memory(config: TrainConfig) -> None:
    """Raise ValueError if this machine cannot hold the model in training, before it is built."""
    needed = BYTES_IN_TRAINING * config.model.n_parameters
    there = machine_memory()
    if there is not None and needed > there:
        raise ValueError(
            f"model must fit into memory, got {config.model.n_parameters} parameters, which take "
            f"{needed / 1e9:.0f} GB in training where this machine has {there / 1e9:.0f} GB; "
            "make its widths, its vocabulary or n_layers smaller"
        )


def check_batch(config: TrainConfig, task: Task, device: torch.device) -> None:
    """Raise ValueError if the activations of a step exceed this machine's memory.

    This is a lower bound: it counts the logits, their gradient and the stream after each layer. On
    a GPU, its driver reports the error.
    """
    there = machine_memory()
    if there is None or device.type != "cpu":
        return
    numbers = 2 * config.model.vocab_out + config.model.n_layers * config.model.d_model
    sequences = config.batch_size // config.accumulate
    needed = 4 * numbers * sequences * task.n_tokens
    if needed > there:
        raise ValueError(
            f"batch must fit into memory, got {sequences} sequences of {task.n_tokens} tokens at "
            f"once, which take {needed / 1e9:.0f} GB in training where this machine has "
            f"{there / 1e9:.0f} GB; make batch_size smaller or accumulate larger"
        )


def training_steps(
    config: TrainConfig,
    task: Task,
    device: torch.device,
    processes: Processes,
    run_dir: Path | None,
    files: Mapping[str, bytes],
) -> Generator[StepRecord, None, None]:
    """Yield the records of a run, from its first step or from the last checkpoint in its folder."""
    trainer = Trainer(config, task, device, processes)
    with contextlib.ExitStack() as held:
        writer = None
        if run_dir is not None and processes.is_main:
            writer = held.enter_context(RunWriter(run_dir, config))
        done = begin(trainer, writer, run_dir, files)
        if done == config.steps:
            yield finished(trainer, writer)
            return
        intact = True
        try:
            for step in range(done + 1, config.steps + 1):
                with ctrl_c_held_back():
                    intact = False
                    record = write_step(trainer, writer, trainer.step(step))
                    done, intact = step, True
                yield record
        except (GeneratorExit, KeyboardInterrupt):
            if writer is not None and intact:
                writer.checkpoint(done, trainer.model, trainer.optimizer)
            raise
        except (RuntimeError, MemoryError):
            # If the first step does not fit in memory, there is nothing to resume.
            if writer is not None and done == 0:
                writer.discard()
            raise


def begin(
    trainer: Trainer, writer: RunWriter | None, run_dir: Path | None, files: Mapping[str, bytes]
) -> int:
    """Create or resume the run folder, and return the step of its state."""
    if run_dir is None:
        return 0

    def create_or_take_over() -> int:
        if writer is None:
            return 0
        if run_dir.exists():
            return writer.resume()
        writer.create(trainer.model, trainer.optimizer, trainer.surroundings(), files)
        return 0

    start = on_main(trainer.processes, create_or_take_over)
    if start:
        run = open_run(run_dir, unfinished=True)
        try:
            load_checkpoint(run.checkpoint(start), trainer.model, trainer.optimizer)
        except ValueError as error:
            raise with_way_back(error, run) from error
    return start


def write_step(trainer: Trainer, writer: RunWriter | None, row: MetricsRow) -> StepRecord:
    """Evaluate and write after a step, as the config says, and return its record."""
    config, step = trainer.config, int(row["step"])
    check_step(row, config, writer)
    final = step == config.steps
    evaluation = None
    if trainer.processes.is_main and (final or step % config.eval_every == 0):
        evaluation = trainer.evaluation()
    checkpoint = None
    if writer is not None:
        writer.metrics(metrics_of(row, evaluation))
        if final or step % config.checkpoint_every == 0:
            checkpoint = writer.checkpoint(step, trainer.model, trainer.optimizer)
        if final:
            writer.finish()
    return step_record(trainer, step, row, evaluation, checkpoint)


def step_record(
    trainer: Trainer,
    step: int,
    row: MetricsRow,
    evaluation: Evaluation | None,
    checkpoint: Path | None,
) -> StepRecord:
    return StepRecord(
        step=step,
        loss=row["loss"],
        learning_rate=row["learning_rate"],
        grad_norm=row["grad_norm"],
        tokens_per_second=row["tokens_per_second"],
        evaluation=evaluation,
        checkpoint=checkpoint,
        final=step == trainer.config.steps,
        model=trainer.model,
    )


def check_step(row: MetricsRow, config: TrainConfig, writer: RunWriter | None) -> None:
    """Raise ValueError if loss or gradient are no longer finite numbers."""
    if math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]):
        return
    kept = "" if writer is None else f"the checkpoint of step {writer.steps[-1]} is kept: "
    raise ValueError(
        f"loss and gradient must be finite, got loss {row['loss']:g} and gradient norm "
        f"{row['grad_norm']:g} at step {row['step']}; {kept}train with a lower learning_rate than "
        f"{config.learning_rate:g}"
    )


def metrics_of(row: MetricsRow, evaluation: Evaluation | None) -> MetricsRow:
    """Return the row of metrics.csv; NaN if the step was not evaluated."""
    return {
        **row,
        "eval_loss": math.nan if evaluation is None else evaluation.loss,
        "token_accuracy": math.nan if evaluation is None else evaluation.token_accuracy,
        "exact_match": math.nan if evaluation is None else evaluation.exact_match,
    }


def finished(trainer: Trainer, writer: RunWriter | None) -> StepRecord:
    """Seal a run that has all its steps, and return its last record as metrics.csv has it."""
    evaluation, checkpoint = None, None
    row: MetricsRow = dict.fromkeys(METRIC_COLUMNS, math.nan)
    if writer is not None:
        writer.finish()
        run = open_run(writer.run_dir)
        row, checkpoint = run.metrics()[-1], run.checkpoint()
        evaluation = Evaluation(
            loss=row["eval_loss"],
            token_accuracy=row["token_accuracy"],
            exact_match=row["exact_match"],
            n_sequences=trainer.config.eval_sequences,
        )
    return step_record(trainer, trainer.config.steps, row, evaluation, checkpoint)


@contextlib.contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Delay Ctrl-C to the end of a step; a second Ctrl-C takes effect at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    before = signal.getsignal(signal.SIGINT)
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if pressed:
        signal.raise_signal(signal.SIGINT)
