"""Long work: with a progress bar, shared by processes, and resumable.

Progress is saved in the user's cache directory, one folder for each request, so that a command that
was interrupted or killed resumes when it is run again. Work that nobody resumed for KEPT_DAYS is
removed. `probes.ablation.ledger` defines the folder's contents.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from apps.console import is_main_process
from apps.terminal.progress_bars import progress_bar
from lab.durable import hold, read_json
from lab.manifest import MANIFEST

if TYPE_CHECKING:
    import torch

    from lab.runtime import Processes
    from probes.execution import Execution

logger = logging.getLogger(__name__)

SWEEPS = "sweeps"
"""Folder of unfinished sweeps in the cache directory."""
KEPT_DAYS = 30
"""Unfinished work is removed after this many days."""


@contextmanager
def long_work(
    doing: str, *request: object, device: "torch.device | None" = None
) -> "Iterator[Execution]":
    """Yield the execution of a sweep: progress, ledger and, if shared, processes.

    The ledger is removed when the work is done, and stays if it is interrupted or killed.

    Args:
        doing: What the work is, for the bar.
        request: Everything that the result depends on, weights and sequences included, as objects
            with a repr. The same request finds its saved progress.
        device: The model's device, if processes share the work; None: each does all of it, and the
            first one saves it.

    Raises:
        KeyboardInterrupt: Ctrl-C; its text says how to resume.
    """
    from probes.execution import Execution

    ledger = ledger_of((doing, *request)) if device or is_main_process() else None
    processes = processes_on(device)
    try:
        with progress_bar(doing, "run") as show:
            yield Execution(progress=show, ledger=ledger, processes=processes)
    except KeyboardInterrupt:
        if ledger is not None and ledger.is_dir():
            raise KeyboardInterrupt(
                f"progress is saved; run the same command to resume ({ledger})"
            ) from None
        raise
    if ledger is not None and is_main_process():
        remove_unheld(ledger)


def ledger_of(request: Sequence[object]) -> Path | None:
    """Return the folder for the progress of a request; None if it cannot be written."""
    import torch

    from lab.families.weight_cache import cache_home
    from lab.runtime import versions

    # Other versions or thread counts change the last bits, so they need another ledger.
    asked = (*request, versions(), torch.get_num_threads())
    key = hashlib.sha256(repr(asked).encode()).hexdigest()[:24]
    try:
        home = cache_home() / SWEEPS
        home.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        logger.info("progress cannot be saved: %s", error)
        return None
    if not os.access(home, os.W_OK):
        return None
    with suppress(OSError):
        os.utime(home / key)  # in use again: not old
    if is_main_process():
        remove_old(home)
        if not is_whole(home / key):
            remove_unheld(home / key)
    return home / key


def is_whole(ledger: Path) -> bool:
    """Return whether a ledger, and each ledger in it, has a readable manifest."""
    if not ledger.is_dir():
        return True
    try:
        for folder in (ledger, *(path for path in ledger.iterdir() if path.is_dir())):
            read_json(folder / MANIFEST)
    except ValueError:
        return False
    return True


def remove_old(home: Path) -> None:
    """Remove work that nobody resumed for KEPT_DAYS."""
    before = time.time() - KEPT_DAYS * 24 * 3600
    for folder in home.iterdir():
        with suppress(FileNotFoundError):  # another process may remove it, too
            if folder.lstat().st_mtime < before:
                remove_unheld(folder)


def remove_unheld(folder: Path) -> None:
    """Remove a folder, unless another process holds it or it cannot be removed."""
    with suppress(OSError, ValueError), hold(folder):
        shutil.rmtree(folder)


def processes_on(device: "torch.device | None") -> "Processes":
    """Join the processes that torchrun or accelerate started; without a device, join none."""
    from lab.runtime import Processes, join_processes

    if device is None or int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return Processes()
    return join_processes(device)
