"""Long work that survives an interruption: what is done is kept until the same command is done.

The parts are files in the user's cache directory, one folder for each request. What they hold and
when they are refused is `probes`'s.
"""

import hashlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from apps.console import is_main_process
from lab.durable import made_folder

logger = logging.getLogger(__name__)

SWEEPS = "sweeps"
"""Folder of unfinished sweeps in the cache directory."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in work whose finished parts are kept; its text says what to do next."""


@contextmanager
def kept_work(*request: object) -> Iterator[Path | None]:
    """Give a folder for the finished parts of some work, the same for the same request.

    It goes when the work is done, and stays when it is interrupted or killed. None: there is no
    place to keep anything, and the work is done without.

    Args:
        request: What the work is, weights and sequences included: anything with a repr.

    Raises:
        Interrupted: Ctrl-C; the same command then goes on where it stopped.
    """
    folder = folder_of(request)
    if folder is None:
        yield None
        return
    try:
        yield folder
    except KeyboardInterrupt:
        if any(folder.iterdir()) if folder.is_dir() else False:
            raise Interrupted(
                f"what was done is kept; the same command goes on from there ({folder})"
            ) from None
        raise
    if is_main_process():
        shutil.rmtree(folder, ignore_errors=True)


def folder_of(request: Sequence[object]) -> Path | None:
    """Return the place for a request's parts; None where nothing can be written."""
    from lab.families.weight_cache import cache_home

    key = hashlib.sha256(repr(request).encode()).hexdigest()[:24]
    try:
        folder = cache_home() / SWEEPS / key
        with made_folder(folder):
            pass
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        logger.info("nothing can be kept of this work: %s", error)
        return None
    return folder
