"""The ledger of a sweep: a folder of its finished chunks, so that an interrupted one goes on.

`manifest.json` says whose ledger it is, down to what the last bit of a result depends on; a chunk
is one small array. What is interrupted loses the chunk that it was at, and nothing else.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from lab.durable import atomic_write, hold, one_clear_error, read_json, remove_leftovers, to_json
from lab.runtime import Processes, on_main

MANIFEST = "manifest.json"


class SweepLedger:
    """Results of chunks by number; without a folder it keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        """Take the folder, which has a manifest already; see `open_ledger`."""
        self.folder = folder

    def read(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return what a chunk gave; None: it has not been done, or must be done again.

        A file that is damaged, or of another shape, is no result: it is written anew.
        """
        path = self.path(number)
        if path is None or not path.exists():
            return None
        try:
            file = io.BytesIO(path.read_bytes())  # np.load does not close a damaged file
            found = np.load(file, allow_pickle=False)["totals"]  # a zip file, with a checksum
        except (OSError, ValueError, EOFError, LookupError, NotImplementedError, BadZipFile):
            return None
        return found if found.shape == shape and found.dtype == np.float64 else None

    def write(self, number: int, totals: np.ndarray) -> None:
        """Keep what a chunk gave."""
        path = self.path(number)
        if path is not None:
            buffer = io.BytesIO()
            np.savez(buffer, totals=totals)
            atomic_write(path, buffer.getvalue())

    def path(self, number: int) -> Path | None:
        """Return the file of a chunk."""
        return None if self.folder is None else self.folder / f"chunk-{number:06d}.npz"


@contextmanager
def open_ledger(
    folder: Path | None, manifest: Mapping[str, Any], processes: Processes
) -> Iterator[SweepLedger]:
    """Open a ledger, or begin one, and keep other sweeps out of it meanwhile.

    Args:
        folder: Where it is; None: nothing is kept.
        manifest: Plain data that says what the results are of.
        processes: The first of them writes the manifest; each keeps its own chunks.

    Raises:
        ValueError: The ledger is another request's, or in use.
        OSError: The place cannot be written.
    """
    if folder is None:
        yield SweepLedger(None)
        return

    def begin() -> int:
        with one_clear_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
        check_manifest(folder, manifest)
        return 0

    on_main(processes, begin)
    if not processes.is_main:
        yield SweepLedger(folder)
        return
    with hold(folder):
        remove_leftovers(folder)
        yield SweepLedger(folder)


def check_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a new ledger; raise ValueError unless an old one's is the same."""
    path = folder / MANIFEST
    plain = json.loads(to_json(manifest))
    if not path.exists():
        if any(not name.name.startswith(".") for name in folder.iterdir()):
            raise ValueError(
                f"a ledger must be a new folder or an earlier ledger, got {str(folder)!r} with "
                "other files; choose another name"
            )
        atomic_write(path, to_json(plain))
        return
    try:
        found = read_json(path)
    except ValueError:
        raise ValueError(
            f"the manifest of a ledger must be whole, got damage in {str(path)!r}; delete the "
            f"folder {str(folder)!r}, and the sweep begins anew"
        ) from None
    others = [key for key in plain if found.get(key) != plain[key]]
    if others:
        raise ValueError(
            f"a ledger must be of the very same sweep, got one with another {others[0]} in "
            f"{str(folder)!r}; choose another folder"
        )


def tensor_digest(*tensors: Tensor) -> str:
    """Return the sha256 of the bytes of some tensors, one after the other."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
