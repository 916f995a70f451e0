"""Converted weights in the user's cache directory, so that the second load is quick.

A cached model is a folder as `lab.checkpoint` writes it, but without the second copy of tied
embeddings, and written and read a tensor at a time. It is never trusted: every byte is hashed as it
is read, and what is damaged is built again. Without a place to write, models load all the same.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from lab.config import SCHEMA_VERSION, ModelConfig
from lab.durable import atomic_dir, remove_leftovers, to_json
from lab.families.token_text import saved_tokenizer, write_tokenizer
from lab.manifest import check_size, read_manifest, read_versioned, seal_folder, verified
from lab.model import GPT, AnyGPT
from lab.weights import DTYPES, check_header, damaged, expected_shapes, read_header

logger = logging.getLogger(__name__)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CONVERSION = 1
"""Increased when the same file gives other weights, tokens or provenance than before."""


def cache_home() -> Path:
    """Return the user's cache directory.

    Raises:
        RuntimeError: The user has no home.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "headlab"
    place = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / place / "headlab"


def cached_model(
    name: str, source_sha256: str, build: Callable[[], AnyGPT], kind: type[AnyGPT]
) -> AnyGPT:
    """Return a model from the cache, or build it and keep it there.

    Args:
        name: What the model is called.
        source_sha256: Of the file that it is made of: another file, another entry.
        build: Makes the model, on the CPU.
        kind: The class of the model.

    Warns:
        UserWarning: The cache could not be written: the next load takes as long as this one.
    """
    try:
        folder = cache_home() / "pretrained" / f"{name}-{source_sha256[:16]}-v{CONVERSION}"
    except RuntimeError as error:
        warn_uncached(error)
        return build()
    try:
        if folder.exists():
            return read_cached(folder, kind)
    except (ValueError, OSError) as error:
        logger.info("building %s again: %s", name, error)
    model = build()
    try:
        remove(folder)
        write_cached(model, folder)
    except (ValueError, OSError) as error:
        if not intact(folder):  # otherwise another process was faster
            warn_uncached(error)
    return model


def remove(path: Path) -> None:
    """Remove whatever has the name of a cached model."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()


def warn_uncached(error: Exception) -> None:
    warnings.warn(
        f"the converted weights are not cached, so the next load is as slow: {error}", stacklevel=4
    )


def intact(folder: Path) -> bool:
    try:
        read_cached(folder, GPT)
    except (ValueError, OSError):
        return False
    return True


def stored_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in expected_shapes(config):
        if not (config.tie_word_embeddings and name == "unembed.W_U"):
            yield name, shape


def write_cached(model: GPT, folder: Path) -> None:
    """Write a model into a new folder.

    Raises:
        ValueError: The folder exists.
        OSError: The place cannot be written or is full; nothing is left behind.
    """
    remove_leftovers(folder.parent, folder.name)
    with atomic_dir(folder) as temporary:
        described = {"schema_version": SCHEMA_VERSION, "model": model.config.to_dict()}
        described["weights"] = model.provenance
        (temporary / CONFIG).write_bytes(to_json(described))
        parameters = dict(model.named_parameters())
        write_tensors(
            temporary / WEIGHTS, {name: parameters[name] for name, _ in stored_shapes(model.config)}
        )
        write_tokenizer(model.tokenizer, temporary)
        seal_folder(temporary)


def read_cached(folder: Path, kind: type[AnyGPT]) -> AnyGPT:
    """Read a model, checking every byte.

    Raises:
        ValueError: Something is missing or is not what was written.
    """
    entries = read_manifest(folder)
    if CONFIG not in entries or WEIGHTS not in entries:
        raise ValueError(f"cached model must be whole, got {str(folder)!r} without a part")
    described = read_versioned(verified(folder, CONFIG, entries[CONFIG]))
    config = ModelConfig.from_dict(described.get("model", {}))
    weights = check_size(folder, WEIGHTS, entries[WEIGHTS])
    check_header(weights, stored_shapes(config))
    state, sha256 = read_tensors(weights)
    if sha256 != entries[WEIGHTS].sha256:
        raise damaged(weights, "other bytes than were written")
    model = assembled(config, state, kind)
    model.tokenizer = saved_tokenizer(folder, entries)
    model.provenance = described.get("weights")
    return model


def assembled(config: ModelConfig, state: Mapping[str, Tensor], kind: type[AnyGPT]) -> AnyGPT:
    """Return a model with these tensors, without initialising or copying them."""
    with torch.device("meta"):
        model = kind(config)
    model.load_state_dict(dict(state), assign=True)
    # Sets cfg.dtype and cfg.device; the weights do not change.
    return model.to("cpu").eval()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a .safetensors file with the memory of one tensor."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(raw(tensor.detach().cpu().contiguous()))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a checked .safetensors file, and the sha256 of all bytes read."""
    entries = read_header(path)
    digest = hashlib.sha256()
    state = {}
    with path.open("rb") as file:
        start = file.read(8)
        digest.update(start)
        digest.update(file.read(int.from_bytes(start, "little")))
        for name, entry in entries.items():
            tensor = torch.empty(entry.shape, dtype=entry.dtype)
            if file.readinto(raw(tensor)) != tensor.numel() * tensor.element_size():
                raise damaged(path, "fewer bytes than its header asks for")
            digest.update(raw(tensor))
            state[name] = tensor
    return state, digest.hexdigest()


def raw(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data
