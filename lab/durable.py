"""Atomic writes of files and folders, locks and checksums.

A file or folder gets its name only when it is complete: it is written under a temporary name,
flushed to disk and renamed once.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
LONGEST_JSON = 64 * 2**20
LOCK = ".lock"
"""The lock file of a folder; it exists only while a process holds the folder."""


def temporary_name(path: Path) -> Path:
    """Return a free, hidden name beside path."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def final_name(path: Path) -> str:
    """Return the path that a temporary one will have once it is renamed.

    >>> final_name(temporary_name(Path("home/run")) / "checkpoints")
    'home/run/checkpoints'
    """
    return re.sub(r"(^|/)\.([^/]+)\.tmp-[0-9]+-[0-9a-f]{8}(?=/|$)", r"\1\2", str(path))


@contextlib.contextmanager
def one_clear_error(place: Path) -> Iterator[None]:
    """Convert an OSError on output to one line with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # already converted, by a nested write
            raise
        rule = "on a disk with room" if error.errno in FULL else "writable"
        remedy = "free some space or " if error.errno in FULL else ""
        remedy = "change its permissions or " if error.errno in FORBIDDEN else remedy
        clear = OSError(
            f"place for output must be {rule}, got {error.strerror!r} at {final_name(place)!r}; "
            f"{remedy}choose another place, then try again (what was complete is kept)"
        )
        raise clear from error


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that its name holds the old bytes or the new ones, never a part.

    Raises:
        OSError: One line with the remedy; the old file, if any, is untouched.
    """
    temporary = temporary_name(path)
    with one_clear_error(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_dir(final: Path) -> Iterator[Path]:
    """Yield a temporary folder; if the block succeeds, rename it to `final`.

    Everything that the block writes is flushed to disk before.

    Raises:
        ValueError: If `final` exists already.
        OSError: One line with the remedy, if the place cannot be written; nothing is left behind.
    """
    if final.exists():
        raise ValueError(
            f"folder must be new, got {str(final)!r}, which exists; choose another name"
        )
    temporary = temporary_name(final)
    with one_clear_error(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        try:
            with hold(temporary):
                yield temporary
                for path in sorted(temporary.rglob("*"), reverse=True):
                    sync(path)
                sync(temporary)
                temporary.rename(final)
                (final / LOCK).unlink(missing_ok=True)
            sync(final.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def made_folder(folder: Path, *, keep: bool = True) -> Iterator[None]:
    """Create a folder and its missing parents for the duration of a block.

    They stay if the block succeeds and `keep` is set; otherwise the new folders are removed.
    """
    made: list[Path] = []
    try:
        for path in (*reversed(folder.parents), folder):
            if not path.is_dir():
                path.mkdir()
                made.append(path)
        yield
    except BaseException:
        keep = False
        raise
    finally:
        for path in () if keep else reversed(made):
            with contextlib.suppress(OSError):  # another process has written into it
                path.rmdir()


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder; the operating system releases the lock even after `kill -9`.

    Raises:
        ValueError: If another process holds it.
    """
    folder.stat()  # FileLock would make a folder that is missing
    # Not thread-local: a generator that holds a run may be closed by another thread.
    lock = FileLock(folder / LOCK, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"folder must not be in use, got {str(folder)!r}, which another process writes; "
            "wait until it ends or choose another name"
        ) from None
    except OSError as error:  # the file system has no locks
        logger.debug("no lock on %s: %s", folder, error)
    try:
        yield
    finally:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
            lock.release()


def remove_leftovers(parent: Path, name: str = "") -> None:
    """Remove temporary files and folders that a killed process left, those of `name` or all."""
    if not parent.is_dir():
        return
    for path in parent.iterdir():
        ours = path.name.startswith(f".{name}.tmp-") if name else path.name.startswith(".")
        if not ours or ".tmp-" not in path.name:
            continue
        if not path.is_dir():
            path.unlink(missing_ok=True)
            continue
        # If it is still locked, its owner is alive and will rename it.
        with contextlib.suppress(ValueError, OSError), hold(path):
            shutil.rmtree(path, ignore_errors=True)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(data: Mapping[str, Any]) -> bytes:
    """Return data as the bytes of a JSON file, the same for the same data."""
    return (json.dumps(data, indent=1) + "\n").encode("ascii")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ValueError: If the file is missing, damaged or not an object.
    """
    try:
        if path.stat().st_size > LONGEST_JSON:
            raise ValueError("too large")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(
            f"{path.name} must be a readable file, got {error.strerror!r} at {str(path)!r}; "
            "restore the folder from a copy"
        ) from error
    except (ValueError, RecursionError):
        raise ValueError(
            f"{path.name} must be whole JSON, got damaged text in {str(path)!r}; "
            "restore the folder from a copy"
        ) from None
    if not isinstance(data, dict):
        raise ValueError(
            f"{path.name} must be a JSON object, got {type(data).__name__} in {str(path)!r}; "
            "restore the folder from a copy"
        )
    return data
