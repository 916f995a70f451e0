"""The ledger of long work: a folder of its finished parts, so that interrupted work resumes.

`manifest.json` says whose ledger it is, down to what the last bit of a result depends on; a part
is one small array. What is interrupted loses the part that it was at, and nothing else. A place
that is full, in use or not to be written costs the ledger and not the work: a warning says so.
"""

import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from lab.durable import atomic_write, hold, one_clear_error, read_json, remove_leftovers, to_json
from lab.hooked_gpt import HookedGPT
from lab.manifest import MANIFEST
from lab.partial_pass import can_be_entered
from lab.runtime import on_main, versions
from probes.execution import Execution

logger = logging.getLogger(__name__)


class Ledger:
    """Results of parts by name; without a folder it keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        """Take the folder, which has a manifest already; see `open_ledger`."""
        self.folder = folder

    def kept(
        self, name: str, shape: tuple[int, ...], compute: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Return what a part gave, which is computed and kept unless it has been done."""
        found = self.read(name, shape)
        if found is None:
            found = compute()
            self.write(name, found)
        return found

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return what a part gave, float64; None: it has not been done, or must be done again.

        A file that is damaged, or of another shape, is no result: it is written anew.
        """
        path = self.path(name)
        if path is None or not path.exists():
            return None
        try:
            file = io.BytesIO(path.read_bytes())  # np.load does not close a damaged file
            found = np.load(file, allow_pickle=False)["totals"]  # a zip file, with a checksum
        # RuntimeError: a bit that says how the zip file is packed, or that it is encrypted.
        except (OSError, ValueError, EOFError, LookupError, RuntimeError, BadZipFile):
            return None
        return found if found.shape == shape and found.dtype == np.float64 else None

    def write(self, name: str, totals: np.ndarray) -> None:
        """Keep what a part gave."""
        path = self.path(name)
        if path is None:
            return
        buffer = io.BytesIO()
        np.savez(buffer, totals=totals)
        try:
            atomic_write(path, buffer.getvalue())
        except OSError as error:
            logger.warning("nothing more can be kept of this work: %s", error)
            self.folder = None

    def path(self, name: str) -> Path | None:
        """Return the file of a part."""
        return None if self.folder is None else self.folder / f"{name}.npz"

    def inner(self, name: str) -> Path | None:
        """Return the folder of a part that is a sweep, with a ledger of its own."""
        return None if self.folder is None else self.folder / name


@contextmanager
def open_ledger(
    execution: Execution, manifest_of: Callable[[], Mapping[str, Any]]
) -> Iterator[Ledger]:
    """Open a ledger, or begin one, and keep other processes' work out of it meanwhile.

    Args:
        execution: Where the ledger is, if there is one, and the processes that share it: the first
            writes the manifest, and each keeps its own parts.
        manifest_of: Returns plain data that says what the results depend on.

    Raises:
        ValueError: The ledger is another request's.
    """
    folder, processes = execution.ledger, execution.processes
    if folder is None:
        yield Ledger(None)
        return
    manifest = manifest_of()

    def begin() -> int:
        try:
            with one_clear_error(folder):
                folder.mkdir(parents=True, exist_ok=True)
            check_manifest(folder, manifest)
        except OSError as error:
            logger.warning("nothing can be kept of this work: %s", error)
            return False
        return True

    ledger = Ledger(folder if on_main(processes, begin) else None)
    with ExitStack() as held:
        if ledger.folder is not None and processes.is_main:
            try:
                held.enter_context(hold(folder))
                remove_leftovers(folder)
            except (OSError, ValueError) as error:
                logger.warning("nothing is kept of this work: %s", error)
                ledger.folder = None
        yield ledger


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
            f"folder {str(folder)!r}, and the work begins anew"
        ) from None
    others = [key for key in plain if found.get(key) != plain[key]]
    if others:
        raise ValueError(
            f"a ledger must be of the very same work, got one that differs in {others[0]} in "
            f"{str(folder)!r}; choose another folder or delete this one"
        )


def tensor_digest(*tensors: Tensor) -> str:
    """Return the sha256 of the bytes of some tensors, one after the other."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def known_by(model: HookedGPT, *tokens: Tensor) -> dict[str, Any]:
    """Return what the bits of any result depend on, as plain data for a manifest.

    Args:
        model: What is measured.
        tokens: What it is measured on.

    Raises:
        ValueError: The model has hooks, or parts of another class: weights do not say what it does.
    """
    if not can_be_entered(model):
        raise ValueError(
            "a model whose sweep is kept in a ledger must be a plain HookedGPT without hooks, as "
            f"a ledger knows it by its weights, got a {type(model).__name__} with hooks or parts "
            "of another class; take them off, or leave the ledger out"
        )
    device = model.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return {
        "model": tensor_digest(*model.state_dict().values()),
        "config": model.config.to_dict(),
        "tokens": tensor_digest(*tokens),
        "threads": torch.get_num_threads(),
        "device": str(model.device),
        "dtype": str(model.cfg.dtype),
        "autocast": None if autocast is None else str(autocast),
        "precision": torch.get_float32_matmul_precision(),
        "versions": versions(),
    }
