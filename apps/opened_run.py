"""An opened run: its model at one checkpoint, its task, sequences to measure on.

Torch is imported when a model is loaded, never with this module.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from apps.console import remark
from lab.manifest import MANIFEST, read_manifest
from lab.naming import bare, parse_head
from lab.run_folders import WEIGHTS, Run, open_run
from probes.number_text import grouped

if TYPE_CHECKING:
    from lab.hooked_gpt import HookedGPT
    from lab.tasks.base import Batch, Task

SEQUENCES = 500
"""Default number of sequences for probes and ablations, as in the report."""

REFERENCE_SEQUENCES = 256
"""Sequences whose mean fills the gap of a head in mode 'mean'."""


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run, loaded."""

    run: Run
    model: "HookedGPT"
    task: "Task"
    step: int
    """Step of the weights."""

    @property
    def title(self) -> str:
        """Title of the output: run, task and step."""
        config = self.run.config
        return (
            f"{self.run.name}: {config.task} of length {config.length}, step {grouped(self.step)}"
        )

    @property
    def sha256(self) -> str:
        """Digest of the weights file, from the manifest."""
        run = self.run
        if run.steps and self.step != run.steps[-1]:
            return read_manifest(run.checkpoint(self.step))[WEIGHTS].sha256
        return run.files[WEIGHTS].sha256

    def unseen(self, n: int) -> "Batch":
        """Return n sequences of the test split; training never drew them."""
        return self.task.sample(n, seed=self.run.config.seed, split="test")

    def reference_batch(self) -> "Batch":
        """Return the sequences whose mean replaces a head's output."""
        seed = self.run.config.seed
        return self.task.sample(REFERENCE_SEQUENCES, seed=seed, split="reference")


def open_for_measuring(
    name: str, *, checkpoint: int | None = None, device: str = "auto"
) -> OpenedRun:
    """Load a complete run; check the request before torch is imported.

    Raises:
        ValueError: An unknown run, step or device, or a damaged file.
    """
    from lab.hooked_gpt import HookedGPT

    run = open_run(name)
    step = run.last_step
    if checkpoint is not None:
        run.checkpoint(checkpoint)
        step = checkpoint
    from lab.runtime import pick_device
    from lab.tasks.registry import get_task

    model = HookedGPT.load(run.path, device=str(pick_device(device)), step=checkpoint)
    remark_on_missing_files(run)
    config = run.config
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    return OpenedRun(run=run, model=model, task=task, step=step)


def remark_on_missing_files(run: Run) -> None:
    """Note the missing files of a complete run; the command does not need them."""
    missing = [name for name in run.files if not (run.path / name).is_file()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        remark(
            f"note: {run.name} must have the files that its {MANIFEST} lists; missing: "
            f"{bare(missing[0])}{others}; restore the folder from a copy"
        )


def parse_heads(labels: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return (layer, head) pairs from labels, also from one label like L0H1,L1H3.

    >>> parse_heads(("L0H1,L1H3", "L1H0"))
    ((0, 1), (1, 3), (1, 0))

    Raises:
        ValueError: If a label is not of that form.
    """
    return tuple(parse_head(part) for label in labels for part in label.split(","))
