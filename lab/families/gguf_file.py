"""GGUF files of llama.cpp as transformers models: names, order of rows, settings, dequantised.

This module reverts what llama.cpp's converter changes: it reorders Llama's query and key rows,
transposes GPT-2's matrices and sorts GPT-NeoX's queries, keys and values.
`lab.families.token_text` reads the tokenizer of a file.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from lab.checks import is_whole, require_number
from lab.families.foreign import Foreign, full_config
from lab.naming import quoted, unknown_name

MISSING = (
    "GGUF files must be read with the package gguf, got no such package; "
    "install it with `pip install gguf`"
)

LLAMA_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
NEOX_NAMES = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "gpt_neox.layers.{}.input_layernorm",
    "blk.{}.attn_qkv": "gpt_neox.layers.{}.attention.query_key_value",
    "blk.{}.attn_output": "gpt_neox.layers.{}.attention.dense",
    "blk.{}.ffn_norm": "gpt_neox.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
}

Settings = Mapping[str, Any]
"""The file's metadata, the architecture's keys without its name before them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """llama.cpp's names and layout of one architecture."""

    model_type: str
    names: Mapping[str, str]
    sizes: Mapping[str, str]
    """Metadata keys, and the equivalent transformers keys."""
    more: Callable[[Settings, set[str]], dict[str, Any]]
    """Computes config keys that need more than a table, from settings and tensor names."""
    undo: Callable[[str, Tensor, Mapping[str, Any]], Tensor]
    """Puts a tensor, by its transformers name, back into transformers' order."""


def llama_more(settings: Settings, names: set[str]) -> dict[str, Any]:
    d_model, heads = settings["embedding_length"], settings["attention.head_count"]
    d_head = settings.get("attention.key_length", d_model // heads)
    turned = settings.get("rope.dimension_count", d_head)
    for key, got, rule in (
        ("rope.dimension_count", turned, d_head),
        ("attention.value_length", settings.get("attention.value_length", d_head), d_head),
        ("expert_count", settings.get("expert_count", 0), 0),
        ("attention.sliding_window", settings.get("attention.sliding_window", 0), 0),
    ):
        if got != rule:
            raise ValueError(
                f"{key} must be {rule} in a llama GGUF file, got {quoted(got)}; a HookedGPT "
                "computes no other"
            )
    return {
        "head_dim": d_head,
        "num_key_value_heads": settings.get("attention.head_count_kv", heads),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": settings.get("rope.freq_base", 10_000.0),
        },
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_down.bias" in names,
    }


def neox_more(settings: Settings, _: set[str]) -> dict[str, Any]:
    d_head = settings["embedding_length"] // settings["attention.head_count"]
    # Half a dimension more, so that the product with d_head is never rounded below the number.
    share = min(1.0, (settings.get("rope.dimension_count", d_head) + 0.5) / d_head)
    return {
        "use_parallel_residual": settings.get("use_parallel_residual", True),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": settings.get("rope.freq_base", 10_000.0),
            "partial_rotary_factor": share,
        },
    }


def llama_undo(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Put query and key rows from llama.cpp's pairs (2i, 2i + 1) back to (i, i + half)."""
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    found = re.search(r"\.([qk])_proj\.(?:weight|bias)$", name)
    if found is None:
        return tensor
    pattern = "(head half two) ... -> (head two half) ..."
    return rearrange(tensor, pattern, head=heads[found[1]], two=2)


def gpt2_undo(name: str, tensor: Tensor, _: Mapping[str, Any]) -> Tensor:
    """Transpose the matrices that GPT-2 stores input first."""
    return tensor.T if re.search(r"\.c_(attn|proj|fc)\.weight$", name) else tensor


def neox_undo(name: str, tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Interleave queries, keys and values by head again."""
    if ".query_key_value." not in name:
        return tensor
    pattern = "(part head d_head) ... -> (head part d_head) ..."
    return rearrange(tensor, pattern, part=3, head=config["num_attention_heads"])


LAYOUTS: Mapping[str, Layout] = {
    "llama": Layout(
        model_type="llama",
        names=LLAMA_NAMES,
        sizes={
            "block_count": "num_hidden_layers",
            "attention.head_count": "num_attention_heads",
            "embedding_length": "hidden_size",
            "feed_forward_length": "intermediate_size",
            "context_length": "max_position_embeddings",
            "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        },
        more=llama_more,
        undo=llama_undo,
    ),
    "gpt2": Layout(
        model_type="gpt2",
        names=GPT2_NAMES,
        sizes={
            "block_count": "n_layer",
            "attention.head_count": "n_head",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "context_length": "n_positions",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        more=lambda settings, names: {},
        undo=gpt2_undo,
    ),
    "gptneox": Layout(
        model_type="gpt_neox",
        names=NEOX_NAMES,
        sizes={
            "block_count": "num_hidden_layers",
            "attention.head_count": "num_attention_heads",
            "embedding_length": "hidden_size",
            "feed_forward_length": "intermediate_size",
            "context_length": "max_position_embeddings",
            "attention.layer_norm_epsilon": "layer_norm_eps",
        },
        more=neox_more,
        undo=neox_undo,
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class GGUFFile:
    """An open GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    """Every key of its header; lists are Python lists."""
    tensors: Mapping[str, Any]
    """gguf.ReaderTensor by llama.cpp's name; their data is mapped, not read."""


def open_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file.

    Raises:
        ValueError: The package gguf is missing, or the file is damaged or of another kind.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ValueError(MISSING) from None
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ValueError(f"a file that starts with {magic!r}")
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{path.name} must be a whole GGUF file, got {quoted(str(error))} in {str(path)!r}; "
            "restore it from a copy"
        ) from None
    return GGUFFile(
        path=path, metadata=metadata, tensors={tensor.name: tensor for tensor in reader.tensors}
    )


def gguf_model(file: GGUFFile, provenance: str | None = None) -> Foreign:
    """Describe the model in a GGUF file as a transformers model.

    Args:
        file: The open file.
        provenance: What tables say of these weights; None: the file's name and precision.

    Raises:
        ValueError: The architecture is unknown, or a setting asks for what a HookedGPT does not
            compute.
    """
    architecture = str(file.metadata.get("general.architecture"))
    layout = LAYOUTS.get(architecture)
    if layout is None:
        raise ValueError(unknown_name("GGUF architecture", architecture, LAYOUTS))
    start = f"{architecture}."
    settings = {
        key.removeprefix(start): value
        for key, value in file.metadata.items()
        if key.startswith(start)
    }
    check_settings(settings, layout, file)
    names = set(file.tensors)
    theirs = {name: transformers_name(name, layout) for name in names}
    tied = "output.weight" not in names
    config = {
        "model_type": layout.model_type,
        "vocab_size": int(file.tensors["token_embd.weight"].shape[-1]),
        "tie_word_embeddings": tied,
        **{new: settings[old] for old, new in layout.sizes.items()},
        **layout.more(settings, names),
    }
    family, full = full_config(config, repr(str(file.path)))
    ours = {new: old for old, new in theirs.items()}

    def tensor(name: str) -> Tensor:
        return layout.undo(name, dequantised(file.tensors[ours[name]]), full)

    shapes = {}
    for old, new in theirs.items():
        # From the file's header, so that shapes are checked before anything is dequantised.
        blank = torch.empty(tuple(map(int, reversed(file.tensors[old].shape))), device="meta")
        matrix = layout.model_type == "gpt2" and blank.ndim == 2
        shapes[new] = tuple((layout.undo(new, blank, full) if matrix else blank).shape)
    return Foreign(
        family=family,
        config=full,
        shapes=shapes,
        tensor=tensor,
        provenance=provenance or f"GGUF file {file.path.name}, {precision(file)}",
    )


def check_settings(settings: Settings, layout: Layout, file: GGUFFile) -> None:
    """Raise ValueError for missing or non-integer sizes, and for scaled wavelengths."""
    for key in layout.sizes:
        value = settings.get(key)
        if key.endswith("epsilon"):
            require_number(key, value, 0.0)
        elif not (is_whole(value) and value > 0):
            raise ValueError(
                f"{key} must be one whole number of at least 1 in a GGUF file, got "
                f"{quoted(value)} in {str(file.path)!r}; a HookedGPT has the same sizes in every "
                "layer"
            )
    scaling = settings.get("rope.scaling.type", "none")
    factors = [name for name in file.tensors if name.startswith("rope_")]
    if scaling != "none" or factors or settings.get("rope.scale_linear", 1.0) != 1.0:
        raise ValueError(
            "rope.scaling.type must be 'none', since a HookedGPT scales no wavelengths, got "
            f"{quoted(factors[0] if factors else scaling)} in {str(file.path)!r}; analyse the "
            "model with TransformerBridge.boot_transformers"
        )
    if "token_embd.weight" not in file.tensors:
        raise ValueError(
            f"GGUF file must hold token_embd.weight, got none in {str(file.path)!r}; use a file "
            "with a whole language model"
        )


def transformers_name(name: str, layout: Layout) -> str:
    """Return transformers' name of a tensor; an unknown one keeps its name, to be rejected."""
    stem, _, kind = name.rpartition(".")
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    general = stem if found is None else f"blk.{{}}.{found[2]}"
    known = layout.names.get(general)
    if known is None:
        return name
    return f"{known.format(found[1]) if found else known}.{kind}"


def dequantised(tensor: Any) -> Tensor:
    """Return the numbers of one of the file's tensors, in float32."""
    from gguf import dequantize

    try:
        numbers = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:  # the package does not know the type
        raise ValueError(
            f"{tensor.name} must have a type that the package gguf dequantises, got "
            f"{tensor.tensor_type.name}"
        ) from None
    return torch.from_numpy(numbers.copy() if not numbers.flags.writeable else numbers).float()


def precision(file: GGUFFile) -> str:
    """Return the quantisation of the blocks' matrices, and that they were dequantised."""
    kinds = {
        tensor.tensor_type.name
        for name, tensor in file.tensors.items()
        if name.startswith("blk.") and len(tensor.shape) > 1
    }
    plain = kinds <= {"F32", "F16", "BF16", "F64"}
    return ", ".join(sorted(kinds)) + ("" if plain else ", dequantised")
