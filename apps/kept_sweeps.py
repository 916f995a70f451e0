"""Long work: with a bar, shared by processes, and kept until the same command is done.

What is done lies in the user's cache directory, one folder for each request, so that a command that
was interrupted, or killed, goes on when it is given again. What the folder holds, and when it is
refused, is `probes.ablation.ledger`'s.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.console import is_main_process
from apps.terminal.progress_bars import progress_bar

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SWEEPS = "sweeps"
"""Folder of unfinished sweeps in the cache directory."""


@contextmanager
def long_work(doing: str, *request: object, device: "torch.device") -> Iterator[dict[str, Any]]:
    """Give what a sweep is told beside its question: progress, ledger and processes.

    The ledger goes when the work is done, and stays when it is interrupted or killed.

    Args:
        doing: What the work is, for the bar.
        request: What is asked, weights and sequences included: anything with a repr. The same
            request finds what it left.
        device: Where the model is.

    Raises:
        KeyboardInterrupt: Ctrl-C; its text says that the same command goes on from there.
    """
    ledger = ledger_of((doing, *request))
    try:
        with progress_bar(doing, "run") as show:
            yield {"progress": show, "ledger": ledger, "processes": processes_on(device)}
    except KeyboardInterrupt:
        if ledger is not None and ledger.is_dir():
            raise KeyboardInterrupt(
                f"what is done is kept, and the same command goes on from there ({ledger})"
            ) from None
        raise
    if ledger is not None and is_main_process():
        shutil.rmtree(ledger, ignore_errors=True)


def ledger_of(request: Sequence[object]) -> Path | None:
    """Return the place for what is done of a request; None where nothing can be written."""
    from lab.families.weight_cache import cache_home

    key = hashlib.sha256(repr(request).encode()).hexdigest()[:24]
    try:
        home = cache_home() / SWEEPS
        home.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        logger.info("nothing can be kept of this work: %s", error)
        return None
    return home / key if os.access(home, os.W_OK) else None


def processes_on(device: "torch.device") -> Any:
    """Join the processes that torchrun or accelerate started; None: this one is alone."""
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return None
    from lab.runtime import join_processes

    return join_processes(device)
