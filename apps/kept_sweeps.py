"""Long work: with a bar, shared by processes, and kept until the same command is done.

What is done lies in the user's cache directory, one folder for each request, so that a command that
was interrupted, or killed, goes on when it is given again. What nobody came back to for KEPT_DAYS
is removed. What the folder holds, and when it is refused, is `probes.ablation.ledger`'s.
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
"""For so long unfinished work waits to be gone on with."""


@contextmanager
def long_work(
    doing: str, *request: object, device: "torch.device | None" = None
) -> "Iterator[Execution]":
    """Give the execution of a sweep: its progress, its ledger and, if shared, its processes.

    The ledger goes when the work is done, and stays when it is interrupted or killed.

    Args:
        doing: What the work is, for the bar.
        request: What is asked, weights and sequences included: anything with a repr. The same
            request finds what it left.
        device: Where the model is, of work that processes share; None: each does all of it, and
            the first one keeps it.

    Raises:
        KeyboardInterrupt: Ctrl-C; its text says that the same command goes on from there.
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
                f"what is done is kept, and the same command goes on from there ({ledger})"
            ) from None
        raise
    if ledger is not None and is_main_process():
        remove_unheld(ledger)


def ledger_of(request: Sequence[object]) -> Path | None:
    """Return the place for what is done of a request; None where nothing can be written."""
    import torch

    from lab.families.weight_cache import cache_home
    from lab.runtime import versions

    # Another library, or number of threads, gives other last bits: that is another ledger.
    asked = (*request, versions(), torch.get_num_threads())
    key = hashlib.sha256(repr(asked).encode()).hexdigest()[:24]
    try:
        home = cache_home() / SWEEPS
        home.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        logger.info("nothing can be kept of this work: %s", error)
        return None
    if not os.access(home, os.W_OK):
        return None
    with suppress(OSError):
        os.utime(home / key)  # asked for again: it is not old
    if is_main_process():
        remove_old(home)
        if not is_whole(home / key):
            remove_unheld(home / key)
    return home / key


def is_whole(ledger: Path) -> bool:
    """Tell whether a ledger, and each within it, says whose it is: else no part can be trusted."""
    if not ledger.is_dir():
        return True
    try:
        for folder in (ledger, *(path for path in ledger.iterdir() if path.is_dir())):
            read_json(folder / MANIFEST)
    except ValueError:
        return False
    return True


def remove_old(home: Path) -> None:
    """Remove what nobody went on with for KEPT_DAYS."""
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
