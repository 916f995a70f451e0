"""Checkpoints of TransformerLens's HookedTransformer (2.x and 3.x), as HookedGPT models.

A checkpoint is a state dict and the HookedTransformerConfig that it was saved with. What a
HookedGPT computes in the same way is translated, field by field; what it does not is refused by
name. Folders that headlab itself writes are `lab.checkpoint`'s.
"""

import json
import math
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lab.config import (
    LARGEST_SIZE,
    ModelConfig,
    is_whole,
    require,
    require_choice,
    require_whole,
)
from lab.model import HookedGPT
from lab.naming import bare, quoted, unknown_name
from lab.weights import PICKLE_SUFFIXES, expected_shapes

SAME = (
    "n_layers",
    "n_heads",
    "d_model",
    "d_head",
    "d_mlp",
    "d_vocab",
    "d_vocab_out",
    "n_ctx",
    "eps",
    "attention_dir",
    "attn_only",
    "gated_mlp",
    "parallel_attn_mlp",
    "n_key_value_heads",
    "rotary_base",
    "rotary_dim",
    "rotary_adjacent_pairs",
)
"""Fields that mean the same in a ModelConfig."""
TRANSLATED = ("act_fn", "normalization_type", "positional_embedding_type")
REQUIRED = ("n_layers", "d_model", "d_head", "n_ctx")
FLAGS = ("use_attn_result", "use_split_qkv_input", "use_attn_in", "use_hook_mlp_in")
"""Fields that ask for hooks; they are set on the model's cfg."""
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",  # one formula, written three ways
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "solu": "solu",
    "solu_ln": "solu_ln",
}
NORMS = {"LN": "LN", "LNPre": "LN", "RMS": "RMS", "RMSPre": "RMS"}
"""The Pre ones have w = 1 and b = 0, folded into what reads them."""
KEEP = "run this model with transformer-lens 3.9"
PRETRAINED = "load the original model with TransformerBridge.boot_transformers"
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "use_attn_scale": (
        (True,),
        "multiply W_Q and b_Q by sqrt(d_head), then set it to True",
    ),
    "scale_attn_by_inverse_layer_idx": (
        (False,),
        "divide W_Q and b_Q of layer l by l + 1, then set it to False",
    ),
    "final_rms": ((False,), KEEP),
    "use_local_attn": ((False,), KEEP),
    "num_experts": ((None,), PRETRAINED),
    "load_in_4bit": ((False,), "save the model without quantisation"),
    "post_embedding_ln": ((False,), PRETRAINED),
    "use_normalization_before_and_after": ((False,), PRETRAINED),
    "use_qk_norm": ((False,), PRETRAINED),
    "clip_qkv": ((None,), PRETRAINED),
    "use_attention_sinks": ((False,), PRETRAINED),
    "use_logn_attn": ((False,), PRETRAINED),
    "attn_scores_soft_cap": ((-1, 0, None), PRETRAINED),
    "output_logits_soft_cap": ((-1, 0, None), PRETRAINED),
    "use_dynamic_ntk_rope": ((False,), PRETRAINED),
    "use_NTK_by_parts_rope": ((False,), PRETRAINED),
    "use_yarn_rope": ((False,), PRETRAINED),
    "rotary_scaling_factor": ((1,), PRETRAINED),
    "rotary_base_local": ((None,), PRETRAINED),
    "relative_attention_num_buckets": ((None,), PRETRAINED),
}
"""Fields of what a HookedGPT does not compute: the values that switch it off, and a way out."""
POST_NORM = ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoeForCausalLM")
"""Values of original_architecture that made HookedTransformer compute something else."""
IGNORED = (
    # Where and how the old class ran, how it began, what it was called.
    "device", "n_devices", "dtype", "seed", "init_mode", "init_weights", "initializer_range",
    "model_name", "original_architecture", "from_checkpoint", "checkpoint_index",
    "checkpoint_label_type", "checkpoint_value", "n_params", "trust_remote_code",
    "layer_norm_folding", "uses_rms_norm", "ungroup_grouped_query_attention", "use_hook_tokens",
    "tie_word_embeddings",  # the state dict holds both matrices, and they may differ
    # Tokenizers.
    "tokenizer_name", "tokenizer_prepends_bos", "default_prepend_bos", "decoder_start_token_id",
    # Details of what REFUSED asks to be off.
    "attn_scale", "window_size", "attn_types", "experts_per_token", "norm_topk_prob",
    "quantization_method", "train_seq_length", "relative_attention_max_distance",
    "NTK_by_parts_low_freq_factor", "NTK_by_parts_high_freq_factor", "NTK_by_parts_factor",
    "NTK_original_ctx_len", "yarn_factor", "yarn_attention_factor", "yarn_beta_fast",
    "yarn_beta_slow", "yarn_original_max_position_embeddings", "yarn_truncate",
    "yarn_global_attn_only",
)  # fmt: skip
"""Fields that change nothing of what is computed."""
BUFFERS = re.compile(r"blocks\.\d+\.attn\.(mask|IGNORE|rotary_sin|rotary_cos)")
"""What the old attention kept beside its weights; a HookedGPT computes it on the fly."""
FOREIGN = re.compile(r"GLOBAL ([\w.]*\w)(?= )")
"""Where torch.load(weights_only=True) names what a pickle wants to import."""
MOST_NAMES = 5
"""Names of tensors that a message lists of each kind."""


def load_tl_checkpoint(
    source: str | Path | Mapping[str, Any], cfg: Any, device: str = "cpu"
) -> HookedGPT:
    """Build the HookedGPT that computes what a saved HookedTransformer computed.

    Args:
        source: The state dict: a .safetensors file, a .pt file (read with weights_only=True, so
            that nothing in it runs), or the dict itself.
        cfg: Its HookedTransformerConfig: a dict, a JSON file, or an object with these fields.
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
    config = translate_config(fields, state)
    check_tensors(state, config, folded=folded_norms(fields))
    model = HookedGPT(config).to(state["embed.W_E"].dtype)
    model.load_state_dict(model.state_dict() | state)
    for flag in FLAGS:
        getattr(model, f"set_{flag}")(bool(fields.get(flag, False)))
    return model.to(device).eval()


# The config ---------------------------------------------------------------------------------------


def config_fields(cfg: Any) -> dict[str, Any]:
    """Return the fields of an old config, once every one of them is known."""
    if isinstance(cfg, str | Path):
        cfg = read_json(Path(cfg))
    elif not isinstance(cfg, Mapping):
        cfg = getattr(cfg, "__dict__", cfg)
    if not isinstance(cfg, Mapping):
        raise ValueError(
            "cfg must be a dict, a JSON file or an object with the fields of "
            f"HookedTransformerConfig, got {type(cfg).__name__}"
        )
    known = (*SAME, *TRANSLATED, *FLAGS, *REFUSED, *IGNORED)
    for name in cfg:
        if name not in known:
            raise ValueError(unknown_name("HookedTransformerConfig field", str(name), known))
    for name in REQUIRED:
        if name not in cfg:
            raise ValueError(
                f"cfg must have the field {name!r}, which HookedTransformerConfig has no default "
                f"for, got {quoted(sorted(cfg))}"
            )
    return dict(cfg)


def read_json(path: Path) -> Any:
    """Read the JSON file that a config is in."""
    require(not path.is_dir(), "cfg", "a file, not a folder", str(path))
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(
            f"cfg must be a JSON file, got {str(path)!r}, which is none; write one with "
            "json.dump(cfg.to_dict(), file, default=str)"
        ) from None


def folded_norms(fields: Mapping[str, Any]) -> bool:
    """Tell whether the norms' weights were folded into what reads them."""
    return str(fields.get("normalization_type", "LN")).endswith("Pre")


def translate_config(fields: Mapping[str, Any], state: Mapping[str, Tensor]) -> ModelConfig:
    """Return the ModelConfig of an old config.

    Args:
        fields: The old config, in its own names.
        state: The tensors, for the vocabulary that the old class took from a tokenizer.

    Raises:
        ValueError: A field asks for what a HookedGPT does not compute.
    """
    refuse_what_differs(fields)
    values = {name: fields[name] for name in SAME if fields.get(name) is not None}
    if values.get("n_heads", -1) == -1:
        values["n_heads"] = values["d_model"] // values["d_head"]
    if values.get("d_vocab", -1) == -1:
        values["d_vocab"] = vocabulary(state)
    if values.get("d_vocab_out", -1) in (-1, values["d_vocab"]):
        values["d_vocab_out"] = None
    for name in ("rotary_base", "eps"):
        if is_whole(values.get(name)):  # 10000 for 10000.0
            values[name] = float(values[name])
    norm = fields.get("normalization_type", "LN")
    if norm is not None:
        require_choice("normalization_type", norm, tuple(NORMS))
        norm = NORMS[norm]
    act_fn = fields.get("act_fn") or "relu"
    require_choice("act_fn", act_fn, tuple(ACTIVATIONS))
    values |= {"normalization_type": norm, "act_fn": ACTIVATIONS[act_fn]}
    values["positional_embedding_type"] = fields.get("positional_embedding_type", "standard")
    return ModelConfig.from_dict(values)


def vocabulary(state: Mapping[str, Tensor]) -> int:
    """Return the number of token ids that the embedding has vectors for."""
    W_E = state.get("embed.W_E")
    if W_E is None or W_E.ndim != 2:
        raise ValueError(
            "a state dict must hold embed.W_E of two axes, got none; give a HookedTransformer's"
        )
    return len(W_E)


def refuse_what_differs(fields: Mapping[str, Any]) -> None:
    """Raise ValueError if a field asks for what a HookedGPT does not compute."""
    for name in ("d_model", "d_head"):
        require_whole(name, fields[name], 1, LARGEST_SIZE)
    rms = str(fields.get("normalization_type", "LN")).startswith(("RMS", "None"))
    for name, (off, remedy) in REFUSED.items():
        if name in fields and fields[name] not in off and not (name == "final_rms" and rms):
            raise ValueError(
                f"{name} must be {quoted(off[0])} in a HookedGPT, got {quoted(fields[name])}; "
                f"{remedy}"
            )
    scale, d_head = fields.get("attn_scale", -1), fields["d_head"]
    number = isinstance(scale, int | float)
    if not number or (scale != -1 and not math.isclose(scale, math.sqrt(d_head), rel_tol=1e-6)):
        raise ValueError(
            f"attn_scale must be sqrt(d_head) = {math.sqrt(d_head):.6g} in a HookedGPT, got "
            f"{quoted(scale)}; multiply W_Q and b_Q by sqrt(d_head) / attn_scale, then set it to -1"
        )
    if fields.get("original_architecture") in POST_NORM:
        raise ValueError(
            "original_architecture must not be one that normalises after attention and MLP, got "
            f"{quoted(fields['original_architecture'])}; {PRETRAINED}"
        )
    positions = fields.get("positional_embedding_type", "standard")
    if positions not in ("standard", "rotary"):
        raise ValueError(
            "positional_embedding_type must be standard or rotary in an old checkpoint, got "
            f"{quoted(positions)}; {KEEP}"
        )


# The tensors --------------------------------------------------------------------------------------


def read_state(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a state dict by name, whatever it is in."""
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
    """Return what a .safetensors or a .pt file holds, running nothing that is in it."""
    require(not path.is_dir(), "a checkpoint", "a file, not a folder", str(path))
    suffix = path.suffix.lower()
    if suffix not in (".safetensors", *PICKLE_SUFFIXES):
        raise ValueError(
            f"a checkpoint must be a .safetensors or a .pt file, got {str(path)!r}; name it for "
            "what it is"
        )
    with path.open("rb"):  # the libraries below describe a missing file in ways of their own
        pass
    try:
        if suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what the libraries raise for damage is not documented
        foreign = isinstance(error, pickle.UnpicklingError) and FOREIGN.search(str(error))
        if foreign:
            raise ValueError(
                f"a {suffix} checkpoint must hold tensors only, got {bare(foreign[1])} in "
                f"{str(path)!r}, which is not loaded because it could run any code; where you "
                "trust it, load it with the old library and save model.state_dict()"
            ) from None
        raise ValueError(
            f"a checkpoint must be a whole {suffix} file of tensors, got {str(path)!r}, which "
            f"cannot be read ({type(error).__name__}); copy it again, or save model.state_dict() "
            "anew"
        ) from None


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


def check_tensors(state: Mapping[str, Tensor], config: ModelConfig, *, folded: bool) -> None:
    """Raise ValueError unless a state dict holds the tensors of a config, of one dtype.

    Args:
        state: The tensors, by the names of a HookedGPT.
        config: What they must fit.
        folded: The norms have no weights of their own.
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
    """Tell whether a tensor holds floating-point numbers, one for each of its places."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    return dense and tensor.is_floating_point()


def listed(names: list[str]) -> str:
    """Return names as a message lists them: some, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(bare(name) for name in names[:MOST_NAMES]) + more
