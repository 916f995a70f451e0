"""Weights as .safetensors files: their expected content, checked before memory is allocated.

A pickle is never loaded. `lab.checkpoint` places the files in folders.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from lab.checks import LARGEST_WHOLE, is_whole
from lab.config import ModelConfig
from lab.naming import quoted, unknown_name

LONGEST_HEADER = 100 * 2**20
"""Bytes; the same bound as in the safetensors library."""
MOST_AXES = 8
"""No tensor of a model has more axes."""
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
"""Types of weights, by the format's names."""
OTHER_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Types of masks, counters and quantised weights: a file that has them is not damaged.
"""
UNKNOWN_DTYPES = ("U16", "U32", "U64", "C64", "F4", "F6_E2M3", "F6_E3M2", "F8_E8M0")
"""The other types of the format, which weights do not use."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The entry of a tensor in the header of a .safetensors file."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor in the state_dict of a model of this config.

    It is a generator, so that a false config of many layers costs nothing: the first missing tensor
    ends it.
    """
    width, d_head, mlp = config.d_model, config.head_width, config.mlp_width
    yield "embed.W_E", (config.d_vocab, width)
    if config.positional_embedding_type == "standard":
        yield "pos_embed.W_pos", (config.n_ctx, width)
    for layer in range(config.n_layers):
        block, heads, kv_heads = f"blocks.{layer}.", config.n_heads_of(layer), config.kv_heads
        if config.kept_heads is not None:
            kv_heads = len(config.kv_heads_of(layer))
        yield from norm_shapes(f"{block}ln1", config)
        for letter, number in (("Q", heads), ("K", kv_heads), ("V", kv_heads)):
            yield f"{block}attn.W_{letter}", (number, width, d_head)
            yield f"{block}attn.b_{letter}", (number, d_head)
        yield f"{block}attn.W_O", (heads, d_head, width)
        yield f"{block}attn.b_O", (width,)
        if config.attn_only:
            continue
        yield from norm_shapes(f"{block}ln2", config)
        if config.gated_mlp:
            yield f"{block}mlp.W_gate", (width, mlp)
        if config.act_fn == "solu_ln":
            yield f"{block}mlp.ln.w", (mlp,)
            yield f"{block}mlp.ln.b", (mlp,)
        yield f"{block}mlp.W_in", (width, mlp)
        yield f"{block}mlp.b_in", (mlp,)
        yield f"{block}mlp.W_out", (mlp, width)
        yield f"{block}mlp.b_out", (width,)
    yield from norm_shapes("ln_final", config)
    yield "unembed.W_U", (width, config.vocab_out)
    yield "unembed.b_U", (config.vocab_out,)


def norm_shapes(norm: str, config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of the parameters of a normalisation."""
    if config.normalization_type is not None:
        yield f"{norm}.w", (config.d_model,)
    if config.normalization_type == "LN":
        yield f"{norm}.b", (config.d_model,)


def weights_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a .safetensors file, the same for the same tensors."""
    # Cloned, because two names may share memory (tied embeddings), which the format rejects.
    own = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return to_safetensors(own, metadata={"format": "pt"})


def reject_pickle(path: Path) -> None:
    """Raise ValueError if a file is a pickle, by its name or its first bytes."""
    named = path.suffix.lower() in PICKLE_SUFFIXES
    start = b""
    if path.is_file() and not named:
        with path.open("rb") as file:
            start = file.read(9)
    # A .safetensors header opens with "{" at byte 8; its length may look like a pickle's start.
    magic = start[:4] == b"PK\x03\x04" or start[:1] == b"\x80"
    if named or (magic and start[8:9] != b"{"):
        raise ValueError(
            f"weights must be a .safetensors file, got the pickle {str(path)!r}, which could run "
            "any code while it loads; convert it with safetensors where you trust it"
        )


def damaged(path: Path, why: str) -> ValueError:
    """Return the error for a damaged .safetensors file."""
    return ValueError(
        f"{path.name} must be a whole .safetensors file, got {why} in {str(path)!r}; "
        "restore it from a copy or train again"
    )


def unreadable(path: Path, name: str, dtype: object) -> ValueError:
    """Return the error for a tensor in an unsupported type."""
    return ValueError(
        f"{quoted(name)} must be of one of the types {', '.join(DTYPES)}, got {quoted(dtype)} in "
        f"{str(path)!r}; write the weights without quantisation"
    )


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors that a .safetensors file lists, reading its header only.

    Raises:
        ValueError: If the file is a pickle, cut off, or its header contradicts itself.
    """
    reject_pickle(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise damaged(path, f"{size} bytes, which end before its header")
        text = file.read(length)
    try:
        header = json.loads(text)
    except RecursionError as error:
        raise damaged(path, "a header that is not one") from error
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise damaged(path, "a header that is not JSON") from error
    try:
        entries, end = described_tensors(path, header)
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise damaged(path, "a header that is not one") from error
    if end != size - 8 - length:
        raise damaged(path, f"{size} bytes where its header asks for {8 + length + end}")
    return entries


def described_tensors(path: Path, header: Any) -> tuple[dict[str, TensorEntry], int]:
    """Return the tensors of a parsed header, and their total number of bytes."""
    header.pop("__metadata__", None)
    entries = {}
    end = 0
    for name, told in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if told["dtype"] in UNKNOWN_DTYPES:
            raise unreadable(path, name, told["dtype"])
        entry = TensorEntry((DTYPES | OTHER_DTYPES)[told["dtype"]], tuple(told["shape"]))
        offsets = list(told["data_offsets"])
        whole = len(offsets) == 2 and all(map(is_whole, (*offsets, *entry.shape)))
        if not whole or len(entry.shape) > MOST_AXES or max(entry.shape, default=0) > LARGEST_WHOLE:
            raise damaged(path, f"a size of {quoted(name)} that no tensor has")
        begin, stop = offsets
        if min(entry.shape, default=0) < 0:
            raise damaged(path, f"a negative size of {quoted(name)}")
        if begin != end or stop - begin != math.prod(entry.shape) * entry.dtype.itemsize:
            raise damaged(path, f"a size of {quoted(name)} that its shape contradicts")
        entries[name], end = entry, stop
    return entries, end


def check_header(path: Path, expected: Iterator[tuple[str, tuple[int, ...]]]) -> torch.dtype:
    """Return the dtype of all tensors of a file, after checking their names and shapes.

    Raises:
        ValueError: If a tensor is missing, unknown or of another shape.
    """
    held = read_header(path)
    for name, entry in held.items():
        if entry.dtype not in DTYPES.values():
            raise unreadable(path, name, str(entry.dtype).removeprefix("torch."))
    left = dict(held)
    for name, shape in expected:
        entry = left.pop(name, None)
        if entry is None:
            raise ValueError(
                f"{path.name} must hold {name!r} of shape {list(shape)}, as its config.json says, "
                f"got no such tensor in {str(path)!r}; use weights and config of one model"
            )
        if entry.shape != shape:
            raise ValueError(
                f"{name} must have the shape {list(shape)}, as its config.json says, got "
                f"{quoted(list(entry.shape))} in {str(path)!r}; use weights and config of one model"
            )
    if left:
        name = next(iter(left))
        known = [known for known in held if known not in left]
        raise ValueError(f"{path}: {unknown_name('tensor', name, known)}")
    dtypes = {entry.dtype for entry in held.values()}
    if len(dtypes) != 1:
        raise damaged(path, f"tensors of {len(dtypes)} different dtypes")
    return dtypes.pop()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checked file to the CPU.

    Raises:
        ValueError: If the safetensors library reads the header in another way.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise damaged(path, "a header that is not one") from error


def weight_not_finite(model: nn.Module) -> str | None:
    """Return the name of the first weight that holds NaN or infinity; None: all are finite."""
    for name, weight in model.named_parameters():
        if weight.is_meta:  # offloaded: its data is not here
            continue
        if not bool(weight.detach().isfinite().all()):
            return name
    return None
