"""Models on disk: the same bits back, every damage one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.checkpoint import (
    OPTIMIZER,
    load_checkpoint,
    save_model,
)
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.manifest import MANIFEST, seal_folder
from lab.run_folders import CONFIG, WEIGHTS, open_run
from lab.tasks.registry import get_task
from lab.trainer import make_optimizer
from lab.weights import weights_bytes


def small(**changes: Any) -> ModelConfig:
    base = {"n_layers": 1, "n_heads": 2, "d_model": 8, "d_vocab": 6, "n_ctx": 8}
    return ModelConfig(**{**base, **changes})


@pytest.fixture
def run_dir(finished_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished_run, tmp_path / "home" / "tiny")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True, "positional_embedding_type": "sinusoidal"},
        {"positional_embedding_type": "rotary", "kept_heads": ((1,),), "seed": 5},
    ],
)
def test_saved_and_loaded_is_the_same_bits(tmp_path, changes, dtype):
    model = HookedGPT(small(**changes)).to(dtype)
    model.save(tmp_path / "model")
    loaded = HookedGPT.load(tmp_path / "model")
    assert loaded.config == model.config and not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
        assert loaded.state_dict()[name].dtype == dtype
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {CONFIG, WEIGHTS, MANIFEST}
    with pytest.raises(ValueError, match="folder must be new, got"):
        save_model(model, tmp_path / "model")


def test_a_run_gives_its_trained_model_or_a_step(run_dir):
    trained = HookedGPT.load(run_dir)
    last = HookedGPT.load(run_dir, step=6)
    first = HookedGPT.load(run_dir / "checkpoints" / "step-000000")
    assert torch.equal(trained.W_E, last.W_E)
    assert torch.equal(first.W_E, HookedGPT(open_run(run_dir).config.model).W_E)
    assert not torch.equal(first.W_E, trained.W_E)
    with pytest.raises(
        ValueError, match=r"step must be one with a checkpoint \(0, 2, 4, 6\), got 5"
    ):
        HookedGPT.load(run_dir, step=5)


def test_a_run_knows_the_symbols_of_its_task(run_dir, tmp_path):
    trained = open_run(run_dir).config
    task = get_task(trained.task, length=trained.length, n_symbols=trained.n_symbols)
    for step in (None, 0):
        model = HookedGPT.load(run_dir, step=step)
        assert model.tokenizer == task.vocab
        assert model.to_tokens("ba").tolist() == [task.vocab.encode("ba")]
    model.save(tmp_path / "alone")
    assert HookedGPT.load(tmp_path / "alone").tokenizer is None


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_folder_is_not_loaded(run_dir, name, damage):
    folder = run_dir / "checkpoints" / "step-000004"
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 4
    if damage == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(data[:-5] if damage == "cut" else data)
    with pytest.raises(
        ValueError, match=rf"^{name} must (be there|have).*; restore it from a copy"
    ):
        HookedGPT.load(folder)


def test_a_folder_without_manifest_is_not_loaded(run_dir):
    folder = run_dir / "checkpoints" / "step-000004"
    (folder / MANIFEST).unlink()
    with pytest.raises(
        ValueError, match=r"folder must be complete, got .* without its manifest\.json"
    ):
        HookedGPT.load(folder)
    (run_dir / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"run must be complete, got 'tiny', .* with --resume"):
        HookedGPT.load(run_dir)
    with pytest.raises(ValueError, match=r"run must be a folder with a config\.json, got"):
        HookedGPT.load(run_dir / "nowhere")
    with pytest.raises(
        ValueError, match="must be a run folder or a checkpoint folder, got the file"
    ):
        HookedGPT.load(run_dir / WEIGHTS)


def test_another_config_is_found_before_memory_is_taken(tmp_path, monkeypatch):
    HookedGPT(small()).save(tmp_path / "model")
    path = tmp_path / "model" / CONFIG
    data = json.loads(path.read_text())
    monkeypatch.setattr(HookedGPT, "__init__", None)  # building the model would fail
    for change, message in (
        ({"d_model": 10**7, "d_head": 4}, r"embed\.W_E must have the shape \[6, 10000000\]"),
        ({"n_layers": 10_000}, r"must hold 'blocks\.1\.ln1\.w' of shape \[8\], as its config"),
        ({"positional_embedding_type": "rotary"}, r"unknown tensor 'pos_embed\.W_pos'"),
    ):
        path.write_text(json.dumps(data | {"model": data["model"] | change}))
        seal_folder(tmp_path / "model")  # an honest manifest over weights and config of two models
        with pytest.raises(ValueError, match=message):
            HookedGPT.load(tmp_path / "model")


def test_config_keys_and_versions_are_checked(tmp_path):
    HookedGPT(small()).save(tmp_path / "model")
    path = tmp_path / "model" / CONFIG
    data = json.loads(path.read_text())
    for change, message in (
        (
            {"model": data["model"] | {"n_head": 2}},
            r"json: unknown ModelConfig key 'n_head'.*n_heads",
        ),
        ({"schema_version": 2}, "schema_version must be at most 1, got 2 in .*; update headlab"),
        ({"model": {}}, r"json: ModelConfig must have the key 'n_layers', got none"),
    ):
        path.write_text(json.dumps(data | change))
        seal_folder(tmp_path / "model")
        with pytest.raises(ValueError, match=message):
            HookedGPT.load(tmp_path / "model")


def test_pickles_are_refused_wherever_they_lie(tmp_path, run_dir):
    (tmp_path / "only").mkdir()
    model = HookedGPT(small())
    torch.save(model.state_dict(), tmp_path / "only" / "model.pt")
    torch.save(model.state_dict(), run_dir / WEIGHTS)
    for path in (tmp_path / "only", tmp_path / "only" / "model.pt", run_dir):
        with pytest.raises(ValueError, match=r"must be a \.safetensors file, got the pickle '.*'"):
            HookedGPT.load(path)


def test_a_full_disk_leaves_no_half_model(tmp_path, full_disk):
    with (
        full_disk(3000),
        pytest.raises(OSError, match="place for output must be on a disk with room"),
    ):
        HookedGPT(small()).save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_goes_into_its_own_model_only(run_dir, tiny_config):
    folder = run_dir / "checkpoints" / "step-000004"
    other = HookedGPT(small(n_heads=4))
    with pytest.raises(
        ValueError, match=r"checkpoint must be of the model in training, got another"
    ):
        load_checkpoint(folder, other, make_optimizer(other, tiny_config))
    model = HookedGPT(tiny_config.model)
    (folder / OPTIMIZER).write_bytes(weights_bytes({"exp_avg.embed.W_E": torch.zeros(1)}))
    seal_folder(folder)
    with pytest.raises(ValueError, match=r"exp_avg\.embed\.W_E must have the shape \[6, 8\]"):
        load_checkpoint(folder, model, make_optimizer(model, tiny_config))
    folder.rename(folder.with_name("step-000005"))
    with pytest.raises(ValueError, match=r"training\.json must name the step of its folder, got 4"):
        load_checkpoint(folder.with_name("step-000005"), model, make_optimizer(model, tiny_config))
