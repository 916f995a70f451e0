"""Models of other libraries before conversion, in memory or in a folder.

Nothing is downloaded, no pickle is loaded, no code from a folder is run. GGUF files are
`lab.families.gguf_file`'s; which of their tensors is which of ours is `lab.families`'s.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from lab.durable import read_json
from lab.families.family import Family, HFConfig
from lab.families.registry import get_family
from lab.manifest import is_file_within
from lab.naming import quoted
from lab.weights import PICKLE_SUFFIXES, damaged, read_header, reject_pickle

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class Foreign:
    """A transformers model: its config, and its tensors one at a time."""

    family: Family
    config: HFConfig
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of every tensor, known before any is read."""
    tensor: Callable[[str], Tensor]
    """Reads a tensor by name, into memory of its own."""
    provenance: str
    """Description of these weights in tables."""


def live_model(model: nn.Module) -> Foreign:
    """Describe a transformers model in memory; its tensors are copied later.

    Raises:
        ValueError: It is not a transformers model, or its family is unknown.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"model must be one of transformers, got {type(model).__name__}; give a folder or a "
            "GGUF file"
        )
    family = get_family(model.config.model_type)
    state = model.state_dict()
    name = model.config.name_or_path
    called = f", {Path(name).name}" if name else ""
    return Foreign(
        family=family,
        config=model.config.to_dict(),
        shapes={key: tuple(t.shape) for key, t in state.items()},
        tensor=lambda key: state[key].detach().clone(),
        provenance=f"{type(model).__name__} of transformers{called}",
    )


def full_config(data: Mapping[str, Any], where: str) -> tuple[Family, HFConfig]:
    """Return the family of a config, and all its keys with transformers' defaults.

    Raises:
        ValueError: The family is unknown, or transformers does not take the values.
    """
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    family = get_family(data.get("model_type"))
    config_class = getattr(transformers, family.model_class).config_class
    try:
        return family, config_class.from_dict(dict(data)).to_dict()
    except (
        *(StrictDataclassError, ValueError, TypeError, KeyError, AttributeError),
        ArithmeticError,  # no heads to share a width
    ) as error:
        raise ValueError(
            f"{CONFIG} must be a {family.name} config that transformers takes, got "
            f"{quoted(str(error))} in {where}"
        ) from None


def model_folder(folder: Path) -> Foreign:
    """Describe a folder that save_pretrained or a hub wrote: config.json and safetensors.

    Raises:
        ValueError: It lacks one of them, holds pickled weights only, or is damaged.
    """
    if not is_file_within(folder / CONFIG, folder):
        raise ValueError(
            f"folder must hold {CONFIG} and {WEIGHTS}, got no {CONFIG} in {str(folder)!r}; "
            "give the folder that save_pretrained wrote"
        )
    data = read_json(folder / CONFIG)
    if "schema_version" in data:
        raise ValueError(
            f"folder must be one of transformers, got {str(folder)!r}, which headlab wrote; "
            "use HookedGPT.load"
        )
    family, config = full_config(data, repr(str(folder)))
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    for path in weight_files(folder):
        for name, entry in read_header(path).items():
            shapes[name], files[name] = entry.shape, path

    def tensor(name: str) -> Tensor:
        try:
            with safe_open(files[name], framework="pt") as file:
                # A copy, because the mapped file may be truncated later.
                return file.get_tensor(name).clone()
        except Exception as error:  # the library's own errors have no common base
            raise damaged(files[name], quoted(str(error))) from None

    return Foreign(
        family=family,
        config=config,
        shapes=shapes,
        tensor=tensor,
        provenance=f"{family.model_class}, folder {folder.resolve().name}",
    )


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model: one, or the shards that its index lists.

    Raises:
        ValueError: The folder has no such file, or one that the index lists is missing.
    """
    if is_file_within(folder / WEIGHTS, folder):
        return [folder / WEIGHTS]
    if is_file_within(folder / INDEX, folder):
        listed = read_json(folder / INDEX).get("weight_map")
        names = set(listed.values()) if isinstance(listed, dict) else set()
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"{INDEX} must list a file for each tensor, got {quoted(listed)} in {str(folder)!r}"
            )
        for name in names:
            if not is_file_within(folder / name, folder):
                raise ValueError(
                    f"{quoted(name)} must be there, as {INDEX} says, got no such file in "
                    f"{str(folder)!r}; restore it from a copy"
                )
        return [folder / name for name in sorted(names)]
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in PICKLE_SUFFIXES:
            reject_pickle(path)
    raise ValueError(f"folder must hold {WEIGHTS} or {INDEX}, got neither in {str(folder)!r}")


def sharper(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return a dtype, also by its name; only floating-point types are accepted.

    Raises:
        ValueError: It is not a floating-point type.
    """
    found = dtype
    if isinstance(dtype, str):
        found = getattr(torch, dtype.removeprefix("torch."), dtype)
    if found is None or (isinstance(found, torch.dtype) and found.is_floating_point):
        return found
    got = str(dtype) if isinstance(dtype, torch.dtype) else quoted(dtype)
    raise ValueError(f"dtype must be a floating-point type, got {got}")
