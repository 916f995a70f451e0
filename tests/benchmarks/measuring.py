"""Time and memory, measured so that the numbers of two contestants can be compared.

Contestants take turns in one process, so that whatever else the machine does hits all of them;
memory is measured in a process of its own.
"""

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

ROUNDS = 7


@dataclass(frozen=True, kw_only=True)
class Times:
    """The seconds that one contestant took, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of all rounds."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        low, high = min(self.seconds), max(self.seconds)
        return f"{duration(self.median)} ({duration(low)} to {duration(high)})"


def duration(seconds: float) -> str:
    """Write a time with three digits."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def take_turns(
    contestants: dict[str, Callable[[], object]], *, rounds: int = ROUNDS, warm_up: int = 1
) -> dict[str, Times]:
    """Call every contestant once a round, in turn, and return their times."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(warm_up + rounds):
        for name, work in contestants.items():
            gc.collect()
            began = time.perf_counter()
            work()
            if round_number >= warm_up:
                seconds[name].append(time.perf_counter() - began)
    return {name: Times(seconds=tuple(taken)) for name, taken in seconds.items()}


def peak_memory(prepare: Callable[[], Callable[[], object]]) -> tuple[int, int]:
    """Return (bytes above the prepared state, bytes in all) at the peak of one call.

    Args:
        prepare: A function of a module, called in a new process; it returns the work to measure.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=report_peak, args=(prepare, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def report_peak(prepare: Callable[[], Callable[[], object]], pipe: object) -> None:
    """Send the peak of one call through a pipe."""
    work = prepare()
    gc.collect()
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123 - no file of ours
        file.write("5")  # the peak starts again from here
    work()
    peak = resident("VmHWM")
    pipe.send((peak - before, peak))


def resident(field: str) -> int:
    """Return a size of this process in bytes, by its name in /proc (Linux)."""
    with open("/proc/self/status") as file:  # noqa: PTH123
        line = next(line for line in file if line.startswith(field))
    return 1024 * int(line.split()[1])


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors; NaN in both is none."""
    return (a - b).abs().nan_to_num(0.0).max().item()
