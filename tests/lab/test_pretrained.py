"""Models that others trained: from memory and folders, and what is refused there."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from lab.hooked_gpt import HookedGPT
from lab.vocab import letter_vocab
from tests.lab.small_transformers import GPT2, SHAPE, llama, same_logits, some_tokens, stirred


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
    same_logits(HookedGPT.from_pretrained(str(tmp_path / "shards")), llama())
    next((tmp_path / "shards").glob("model-00002*")).unlink()
    with pytest.raises(ValueError, match=r"must be there, as model.safetensors.index.json says"):
        HookedGPT.from_pretrained(tmp_path / "shards")


def test_a_shard_outside_its_folder_is_not_read(folder: Path, tmp_path: Path):
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"lm_head.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="got no such file"):
        HookedGPT.from_pretrained(folder)


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
    model = HookedGPT.from_pretrained(folder, dtype=asked)
    assert model.W_E.dtype == model.cfg.dtype == got
    assert torch.equal(model.W_E, tensors["model.embed_tokens.weight"].to(got))


def test_older_writing_of_the_same_model(folder: Path):
    """Configs before transformers 5 say rope_theta; GPT-2's first files lack `transformer.`."""
    hf = llama(rope_theta=123.0)
    data = json.loads((folder / "config.json").read_text())
    del data["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(data | {"rope_theta": 123.0}))
    same_logits(HookedGPT.from_pretrained(folder), hf)

    gpt2 = stirred(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2))
    gpt2.save_pretrained(folder.parent / "gpt2")
    path = folder.parent / "gpt2" / "model.safetensors"
    old = {name.removeprefix("transformer."): t for name, t in load_file(path).items()}
    old |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 16, 16).tril() for layer in range(2)}
    save_file(old, path)
    same_logits(HookedGPT.from_pretrained(folder.parent / "gpt2"), gpt2)


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
        HookedGPT.from_pretrained(folder)


def test_other_settings_of_gpt2_are_refused():
    for key, value in (("scale_attn_by_inverse_layer_idx", True), ("scale_attn_weights", False)):
        config = transformers.GPT2Config(**GPT2, **{key: value})
        with pytest.raises(ValueError, match=f"{key} must be {not value} in a gpt2 model"):
            HookedGPT.from_pretrained(stirred(transformers.GPT2LMHeadModel, config))


def test_gate_biases_have_no_place():
    with pytest.raises(ValueError, match=r"gate_proj.bias must be 0 in a HookedGPT"):
        HookedGPT.from_pretrained(llama(mlp_bias=True))
    hf = llama(mlp_bias=True)
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if name.endswith(("gate_proj.bias", "up_proj.bias")):
                parameter.zero_()
    same_logits(HookedGPT.from_pretrained(hf), hf)


@pytest.mark.usefixtures("as_a_user")
def test_devices_and_tokenizers_of_no_kind_are_refused():
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        HookedGPT.from_pretrained(llama(), device="gpu")
    with pytest.raises(ValueError, match=r"tokenizer must be one of transformers, .* got 'Vocab'"):
        HookedGPT.from_pretrained(llama(), tokenizer=letter_vocab(3))
    assert HookedGPT.from_pretrained(llama(), device="auto").config.n_layers == 2


def test_heads_of_other_kinds_are_refused():
    config = transformers.LlamaConfig(**SHAPE, pad_token_id=0)
    with pytest.raises(ValueError, match=r"lm_head.weight must be a tensor .* got no such tensor"):
        HookedGPT.from_pretrained(stirred(transformers.LlamaForSequenceClassification, config))
    with pytest.raises(ValueError, match="model must be one of transformers, got Linear"):
        HookedGPT.from_pretrained(nn.Linear(2, 2))


class Trap:
    """What a malicious pickle would be made of."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('a pickle was loaded')",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_no_pickle_is_loaded(folder: Path, name: str):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"weights must be a .safetensors file, got the pickle"):
        HookedGPT.from_pretrained(folder)
    with pytest.raises(ValueError, match="got the pickle"):
        HookedGPT.from_pretrained(folder / name)


def test_damaged_weights(folder: Path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"must be a whole .safetensors file"):
        HookedGPT.from_pretrained(folder)


def test_names_that_are_nothing(folder: Path, tmp_path: Path):
    message = r"unknown pretrained model 'gpt2'; choose from smollm2-135m-instruct; or give"
    with pytest.raises(ValueError, match=message):
        HookedGPT.from_pretrained("gpt2")
    with pytest.raises(ValueError, match=r"did you mean 'smollm2-135m-instruct'"):
        HookedGPT.from_pretrained("smollm2-135m-instrukt")
    with pytest.raises(ValueError, match="give the folder that holds it"):
        HookedGPT.from_pretrained(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"must hold config.json and model.safetensors"):
        HookedGPT.from_pretrained(folder)
    with pytest.raises(ValueError, match="model must be readable, got 'File name too long'"):
        HookedGPT.from_pretrained("x" * 5000)
    with pytest.raises(ValueError, match="dtype must be a floating-point type"):
        HookedGPT.from_pretrained(tmp_path, dtype=torch.int8)


def test_saving_and_loading_again(folder: Path, tmp_path: Path):
    model = HookedGPT.from_pretrained(folder)
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


# What is asked for wrongly ------------------------------------------------------------------------


def test_no_heads_to_share_a_width(folder: Path):
    change_config(folder, num_attention_heads=0)
    with pytest.raises(ValueError, match=r"^config.json must be a llama config that transformers"):
        HookedGPT.from_pretrained(folder)


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
        HookedGPT.from_pretrained(folder)


def test_a_mask_of_whole_numbers_beside_the_weights_is_passed_over(tmp_path: Path):
    hf = stirred(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2))
    hf.save_pretrained(tmp_path / "masked")
    weights = tmp_path / "masked" / "model.safetensors"
    mask = {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16, dtype=torch.uint8)}
    save_file({**load_file(weights), **mask}, weights, metadata={"format": "pt"})
    same_logits(HookedGPT.from_pretrained(tmp_path / "masked"), hf)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("source", [None, 3, b"small"])
def test_a_source_is_a_name_a_path_or_a_model(source: Any):
    with pytest.raises(ValueError, match=r"^model must be a name, a path or a model of transf"):
        HookedGPT.from_pretrained(source)


@pytest.mark.usefixtures("as_a_user")
def test_a_dtype_by_its_name(folder: Path):
    for name in ("bfloat16", "torch.bfloat16"):
        assert HookedGPT.from_pretrained(folder, dtype=name).W_E.dtype == torch.bfloat16
    for wrong in ("bfloat61", "nn", 3):
        with pytest.raises(ValueError, match=r"^dtype must be a floating-point type, got "):
            HookedGPT.from_pretrained(folder, dtype=wrong)
