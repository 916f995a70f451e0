"""Checkpoints of TransformerLens's HookedTransformer (2.x and 3.x), as HookedGPT models.

A checkpoint is a state dict and the config that it was saved with, which `lab.lens.old_config`
translates. `lab.checkpoint` reads the folders that headlab writes.
"""

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lab.checks import require
from lab.config import ModelConfig
from lab.lens.old_config import FLAGS, config_fields, folded_norms, translate_config
from lab.model import AnyGPT
from lab.naming import bare, quoted
from lab.weights import PICKLE_SUFFIXES, expected_shapes

BUFFERS = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE|rotary_sin|rotary_cos)")
"""Buffers of the old attention; a HookedGPT computes them when it needs them."""
FOREIGN = re.compile(r"GLOBAL ([\w.]*\w)(?= )")
"""Finds, in an error of torch.load(weights_only=True), the name that a pickle imports."""
MOST_NAMES = 5
"""Names of tensors that a message lists of each kind."""


def load_tl_checkpoint(
    source: str | Path | Mapping[str, Any], cfg: Any, kind: type[AnyGPT], device: str = "cpu"
) -> AnyGPT:
    """Build the HookedGPT with the logits of a saved HookedTransformer.

    Args:
        source: The state dict: a .safetensors file, a .pt file (read with weights_only=True, so
            that nothing in it runs), or the dict itself.
        cfg: Its HookedTransformerConfig: a dict, a JSON file, or an object with these fields.
        kind: The class of the model: HookedGPT, or a subclass.
        device: Where the model goes.

    Returns:
        The model in evaluation mode, in the dtype of the tensors. A folded checkpoint (LNPre,
        RMSPre) has norms with w = 1 and b = 0.

    Raises:
        ValueError: A field asks for what a HookedGPT does not compute; tensors are missing, unknown
            or of another shape; or a file is damaged or holds more than tensors.
        OSError: A file cannot be read.
    """
    fields = config_fields(cfg)
    state = plain_names(read_state(source))
    config = translate_config(fields, d_vocab=vocabulary(state))
    check_tensors(state, config, folded=folded_norms(fields))
    model = kind(config).to(state["embed.W_E"].dtype)
    model.load_state_dict(model.state_dict() | state)
    for flag in FLAGS:
        getattr(model, f"set_{flag}")(bool(fields.get(flag, False)))
    model.cfg.default_prepend_bos = bool(fields.get("default_prepend_bos", True))
    return model.to(device).eval()


def read_state(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors by name, of a file or of a mapping."""
    held = read_file(Path(source)) if isinstance(source, str | Path) else source
    if not isinstance(held, Mapping):
        raise ValueError(
            f"a state dict must map names to tensors, got a {type(held).__name__}; "
            "give model.state_dict()"
        )
    for name, tensor in held.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            got = type(tensor).__name__
            raise ValueError(
                f"a state dict must map names to tensors, got {quoted(name)}: {got}; "
                "if it is one entry of a larger dict, give that entry"
            )
    return dict(held)


def read_file(path: Path) -> Any:
    """Return the content of a .safetensors or .pt file, without running code in it."""
    require(not path.is_dir(), "a checkpoint", "a file, not a folder", str(path))
    suffix = path.suffix.lower()
    if suffix not in (".safetensors", *PICKLE_SUFFIXES):
        raise ValueError(
            f"a checkpoint must be a .safetensors or a .pt file, got {str(path)!r}; name it for "
            "what it is"
        )
    with path.open("rb"):  # raises the usual error if the file is missing
        pass
    try:
        if suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the libraries do not document what they raise for damage
        foreign = isinstance(error, pickle.UnpicklingError) and FOREIGN.search(str(error))
        if foreign and not is_cut_in(path, foreign[1]):
            raise ValueError(
                f"a {suffix} checkpoint must hold tensors only, got {bare(foreign[1])} in "
                f"{str(path)!r}, which is not loaded because it could run any code; where you "
                "trust it, load it with the old library and save model.state_dict()"
            ) from None
        raise ValueError(
            f"a checkpoint must be a whole {suffix} file of tensors, got {str(path)!r}, which "
            f"cannot be read ({type(error).__name__}); copy it again, or save model.state_dict() "
            "again"
        ) from None


def is_cut_in(path: Path, name: str) -> bool:
    """Return whether a file ends inside a dotted name, which torch.load then reads as another.

    torch.load mistakes the last byte of such a line for its newline.
    """
    last = name.rpartition(".")[2].encode()
    with path.open("rb") as file:
        file.seek(-min(len(last) + 1, path.stat().st_size), os.SEEK_END)
        return file.read()[:-1] == last


def plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a state dict by the names of a HookedGPT, buffers left out.

    Grouped-query attention stored its keys and values as _W_K, _b_K, _W_V and _b_V.
    """
    found = {}
    for name, tensor in state.items():
        if BUFFERS.fullmatch(name):
            continue
        plain = re.sub(r"\.attn\._(?=[Wb]_[KV]$)", ".attn.", name)
        if plain in found:
            raise ValueError(
                f"a state dict must hold {quoted(plain)} once, got it with and without its "
                "underscore; remove one"
            )
        found[plain] = tensor
    return found


def vocabulary(state: Mapping[str, Tensor]) -> int:
    """Return the number of token ids in the embedding."""
    W_E = state.get("embed.W_E")
    if W_E is None or W_E.ndim != 2:
        raise ValueError(
            "a state dict must hold embed.W_E of two axes, got no such tensor; give one of a "
            "HookedTransformer"
        )
    return len(W_E)


def check_tensors(state: Mapping[str, Tensor], config: ModelConfig, *, folded: bool) -> None:
    """Raise ValueError unless a state dict holds the tensors of a config, of one dtype.

    Args:
        state: The tensors, by the names of a HookedGPT.
        config: The model that they must fit.
        folded: Whether the norms have no weights.
    """
    norm = re.compile(r"(.*\.)?(ln1|ln2|ln_final)\.[wb]")
    inner_norm = re.compile(r".*\.mlp\.ln\.[wb]")
    bare_inner = folded or config.normalization_type != "LN"
    missing, misshapen, left = [], [], set(state)
    for name, shape in expected_shapes(config):
        if (folded and norm.fullmatch(name)) or (bare_inner and inner_norm.fullmatch(name)):
            continue
        if name not in state:
            missing.append(name)
            if len(missing) > len(state):  # a config that claims ten thousand layers
                break
            continue
        left.discard(name)
        if tuple(state[name].shape) != shape:
            got = list(state[name].shape)
            misshapen.append(f"{name} of shape {got} where it must be {list(shape)}")
    found = (("no", missing), ("unknown", sorted(left)), ("", misshapen))
    told = [f"{kind} {listed(names)}".strip() for kind, names in found if names]
    if told:
        raise ValueError(
            f"a state dict must hold the tensors that its cfg describes, got {'; '.join(told)}; "
            "give the cfg that it was saved with"
        )
    odd = sorted(name for name, tensor in state.items() if not is_plain(tensor))
    if odd:
        raise ValueError(
            "the tensors of a state dict must be dense floating-point numbers, got others in "
            f"{listed(odd)}; convert them with .to_dense() or .float()"
        )
    dtypes = {tensor.dtype for tensor in state.values()}
    require(len(dtypes) == 1, "a state dict", "of one dtype", sorted(map(str, dtypes)))


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense and has a floating-point type."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    return dense and tensor.is_floating_point()


def listed(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(bare(name) for name in names[:MOST_NAMES]) + more
