"""Pretrained models as HookedGPTs: by name, from a file, a folder or memory.

Headlab downloads nothing. `lab.families` converts the weights, and
`lab.families.hugging_face` converts them back.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lab.durable import file_sha256
from lab.families.family import read_state, with_own_head
from lab.families.foreign import Foreign, live_model, model_folder, sharper
from lab.families.gguf_file import gguf_model, open_gguf
from lab.families.token_text import adds_bos, check_tokenizer, gguf_tokenizer, read_tokenizer
from lab.families.weight_cache import assembled, cached_model
from lab.model import AnyGPT
from lab.naming import quoted, unknown_name
from lab.packaged import KNOWN, packaged_file
from lab.runtime import pick_device
from lab.weights import reject_pickle

OFFER = (
    "or give a transformers model, its folder (config.json and .safetensors) or a .gguf file; "
    "headlab downloads nothing"
)


def from_pretrained(
    source: str | Path | nn.Module,
    kind: type[AnyGPT],
    *,
    tokenizer: Any = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
) -> AnyGPT:
    """Return a HookedGPT with the logits of a GPT-2, Llama or GPT-NeoX model.

    Args:
        source: A known name ("smollm2-135m-instruct"), a folder that save_pretrained wrote, a GGUF
            file, or a live transformers model, which is copied.
        kind: The class of the model: HookedGPT, or a subclass.
        tokenizer: A fast tokenizer of transformers; None: the source's own, if it has one.
        device: Where the model goes; "auto": the GPU, if there is one.
        dtype: The weights' dtype or its name; None: the source's, and float32 for half precision.

    Raises:
        ValueError: The name or the device is unknown, `tokenizer` is something else, the file is
            damaged or a pickle, or a HookedGPT does not support the architecture.
    """
    dtype = sharper(dtype)
    if not isinstance(source, str | Path | nn.Module):
        raise ValueError(
            f"model must be a name, a path or a model of transformers, got {quoted(source)}"
        )
    if isinstance(device, str):
        device = pick_device(device)
    if tokenizer is not None:
        check_tokenizer(tokenizer)
    model = from_memory(source, kind) if isinstance(source, nn.Module) else from_disk(source, kind)
    if tokenizer is not None:
        model.tokenizer = tokenizer
    if model.tokenizer is not None:
        model.cfg.default_prepend_bos = adds_bos(model.tokenizer)
    return model.to(device=device, dtype=dtype)


def from_memory(source: nn.Module, kind: type[AnyGPT]) -> AnyGPT:
    """Return a copy of a live transformers model."""
    return translated(live_model(source), kind)


def from_disk(source: str | Path, kind: type[AnyGPT]) -> AnyGPT:
    """Return the model of a known name, a folder or a file."""
    path = Path(source)
    if str(source) in KNOWN:
        return packaged_model(str(source), kind)
    try:
        if path.is_dir():
            model = translated(model_folder(path), kind)
            model.tokenizer = read_tokenizer(path)
            return model
        if path.is_file():
            return from_file(path, kind)
    except OSError as error:
        if error.errno is None:
            raise
        raise ValueError(
            f"model must be readable, got {error.strerror!r} at {quoted(str(source))}"
        ) from None
    raise ValueError(f"{unknown_name('pretrained model', str(source), KNOWN)}; {OFFER}")


def from_file(path: Path, kind: type[AnyGPT]) -> AnyGPT:
    """Return the model of a GGUF file."""
    reject_pickle(path)
    if path.suffix == ".safetensors":
        raise ValueError(
            "model must be a folder with config.json and .safetensors, got the file "
            f"{str(path)!r}; give the folder that holds it"
        )
    return from_gguf(path, kind)


def from_gguf(path: Path, kind: type[AnyGPT], provenance: str | None = None) -> AnyGPT:
    """Return the model of a GGUF file, with its tokenizer if its kind is known."""
    file = open_gguf(path)
    model = translated(gguf_model(file, provenance), kind)
    model.tokenizer = gguf_tokenizer(file.metadata)
    return model


def translated(foreign: Foreign, kind: type[AnyGPT]) -> AnyGPT:
    """Return a model converted from foreign tensors, one at a time."""
    family, shapes, tensor = foreign.family, foreign.shapes, foreign.tensor
    described = with_own_head(family, foreign.config, shapes, tensor)
    config = family.model_config(described)
    state = dict(read_state(family, described, shapes, tensor))
    model = assembled(config, state, kind)
    model.provenance = foreign.provenance
    return model


def packaged_model(name: str, kind: type[AnyGPT]) -> AnyGPT:
    """Return a known model, from the cache or from the package that has its weights."""
    known = KNOWN[name]
    path = packaged_file(known, name)

    def build() -> AnyGPT:
        return from_gguf(path, kind, known.provenance)

    return cached_model(name, file_sha256(path), build, kind)
