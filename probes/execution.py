"""How long work runs: its memory, progress, ledger and processes. No result depends on it.

Up to the last bits, that is: where memory cuts the work into other chunks, sums are added in
another order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.checks import require, require_whole
from lab.runtime import Processes

Progress = Callable[[int, int], None]
"""Called with (done, total) now and then; done == total at the end."""

MEMORY = 2**30
"""Bytes that the activations of one chunk of work may take, unless the smallest needs more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """The circumstances of a sweep, a curve or a study."""

    memory: int = MEMORY
    """Bytes that activations may take at once."""
    progress: Progress | None = None
    """Called with (runs or steps done, all of them) after every part."""
    ledger: Path | None = None
    """Folder that keeps finished parts: called again after an interruption, with the same request
    and threads, the work resumes and gives the same bits. A ledger knows a metric of your own only
    by its name."""
    processes: Processes = field(default_factory=Processes)
    """The processes that share the work (`lab.runtime.join_processes`); each gets the whole result.
    By default this one does all of it."""

    def __post_init__(self) -> None:
        """Check the memory."""
        require_whole("memory", self.memory, 1)

    def tell(self, done: int, total: int) -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(done, total)

    def require_default(self, caller: str, *names: str) -> None:
        """Raise ValueError if a circumstance is set that the caller cannot respect."""
        for name in names:
            given = getattr(self, name)
            usual = given == getattr(Execution(), name)
            require(usual, f"{name} of an execution", f"left out for {caller}", given)
