"""Device, precision, processes, and the record of machine and software.

No seeds: every random draw has its own generator.
"""

import atexit
import functools
import importlib.metadata
import logging
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from accelerate import PartialState

from lab.checks import require_choice
from lab.naming import unknown_name

logger = logging.getLogger(__name__)

DEVICES = ("auto", "cpu", "cuda", "mps")
PACKAGES = ("headlab", "torch", "transformer-lens", "safetensors", "accelerate", "numpy")


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes that train together, and the index of this one."""

    count: int = 1
    index: int = 0
    local_index: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this is the process that evaluates and writes."""
        return self.index == 0


def pick_device(name: str = "auto") -> torch.device:
    """Return the device of a name; auto: the GPU, if there is one.

    >>> pick_device("cpu")
    device(type='cpu')

    Raises:
        ValueError: If the name is unknown or this machine has no such device.
    """
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and not index.isdigit()):
        raise ValueError(unknown_name("device", name, DEVICES))
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if kind == "auto":
        return torch.device(next(k for k in ("cuda", "mps", "cpu") if there[k]))
    if not there[kind] or (kind == "cuda" and int(index or 0) >= torch.cuda.device_count()):
        found = ", ".join(k for k in there if there[k])
        raise ValueError(
            f"device must be one that this machine has ({found}), got {name!r}; take auto"
        )
    return torch.device(name)


def resolve_precision(name: str, device: torch.device) -> Literal["fp32", "bf16"]:
    """Return the precision of a name; auto: bf16 on a GPU that computes in it, else fp32."""
    require_choice("precision", name, ("auto", "fp32", "bf16"))
    if name == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if bf16 else "fp32"
    return "bf16" if name == "bf16" else "fp32"


def autocast(
    precision: Literal["fp32", "bf16"], device: torch.device
) -> AbstractContextManager[object]:
    """Return a context in which matrix products run in bf16, or one without effect."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def join_processes(device: torch.device) -> Processes:
    """Join the processes that torchrun or `accelerate launch` started; without them, there is one.

    PartialState holds no precision, so trainings of different precision can follow each other in
    one process; accelerate's Accelerator keeps the first one for good.
    """
    # Without a GPU, accelerate reads torchrun's variables only with cpu=True.
    state = PartialState(cpu=device.type == "cpu")
    if state.num_processes > 1:
        # A process that ends with its threads of communication running is aborted (SIGABRT).
        atexit.register(leave_processes)
    return Processes(
        count=state.num_processes, index=state.process_index, local_index=state.local_process_index
    )


def leave_processes() -> None:
    """Leave the group of processes, if there is one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def on_main(processes: Processes, work: Callable[[], int]) -> int:
    """Return the main process's result in every process; if it fails, all stop.

    Raises:
        ValueError, OSError: What the work raised; in the other processes, that it failed.
    """
    error: ValueError | OSError | None = None
    result = 0
    if processes.is_main:
        try:
            result = work()
        except (ValueError, OSError) as raised:
            error = raised
    failed = error is not None
    if processes.count > 1:
        told = torch.tensor([int(failed), result], device=collective_device(processes))
        torch.distributed.broadcast(told, src=0)
        failed, result = bool(told[0]), int(told[1])
    if error is not None:
        raise error
    if failed:
        raise ValueError("process 0 must not fail, got an error there; see its message")
    return result


def mean_over(processes: Processes, value: torch.Tensor) -> torch.Tensor:
    return sum_over(processes, value) / processes.count


def sum_over(processes: Processes, value: torch.Tensor) -> torch.Tensor:
    """Return the sum of a value over all processes, in each of them."""
    if processes.count == 1:
        return value
    total = value.detach().to(collective_device(processes), copy=True)
    torch.distributed.all_reduce(total)
    return total.to(value.device)


def collective_device(processes: Processes) -> torch.device:
    """Return the device for tensors that the processes exchange."""
    on_gpu = torch.distributed.get_backend() == "nccl"
    return torch.device("cuda", processes.local_index) if on_gpu else torch.device("cpu")


def machine_memory() -> int | None:
    """Return the bytes of memory that this machine has; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    return dict(installed_versions())


@functools.cache
def installed_versions() -> Mapping[str, str]:
    """Look the versions up once: every table has them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout, not installed
            found[name] = "not installed"
    return found


def git_sha() -> str | None:
    """Return the commit of headlab's own checkout, with "-dirty" if files differ; None without."""
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here)]
    try:
        # A package that is installed inside another repository is not part of it.
        subprocess.run(
            [*git, "ls-files", "--error-unmatch", "__init__.py"],
            check=True,
            capture_output=True,
            timeout=10,
        )
        told = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--match="],
            check=True,
            capture_output=True,
            timeout=10,
            text=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("no git sha: %s", error)
        return None
    return told.stdout.strip() or None
