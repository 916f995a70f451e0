"""Converted weights are kept, checked before they are trusted, and never in the way of a model."""

import os
import shutil
import stat
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from lab.config import ModelConfig
from lab.families.weight_cache import cache_home, cached_model, read_tensors, write_tensors
from lab.hooked_gpt import HookedGPT
from lab.weights import read_weights

SHA = "0" * 64


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headlab" / "pretrained"


class Builder:
    """Makes a model and counts how often."""

    times = 0

    def __call__(self) -> HookedGPT:
        self.times += 1
        shape = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_vocab": 5, "n_ctx": 4}
        model = HookedGPT(ModelConfig(**shape, tie_word_embeddings=True, seed=3))
        model.provenance = "made in a test"
        return model.eval()


def equal(one: HookedGPT, other: HookedGPT) -> bool:
    mine, its = one.state_dict(), other.state_dict()
    same = all(torch.equal(tensor, its[name]) for name, tensor in mine.items())
    return same and mine.keys() == its.keys() and one.config == other.config


def test_the_second_load_builds_nothing(home: Path):
    build = Builder()
    first = cached_model("tiny", SHA, build, HookedGPT)
    second = cached_model("tiny", SHA, build, HookedGPT)
    assert build.times == 1
    assert equal(first, second)
    assert second.provenance == "made in a test"
    assert not second.training
    assert second.cfg.device == "cpu"
    assert [path.name for path in home.iterdir()] == [f"tiny-{SHA[:16]}-v1"]
    cached_model("tiny", "1" * 64, build, HookedGPT)
    assert build.times == 2  # another file, another model


def damage_byte(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def empty_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def a_link_elsewhere(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent.parent / "elsewhere")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder.parent.parent / "elsewhere")


def a_file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_bytes(b"x")


@pytest.mark.parametrize(
    "damage",
    [damage_byte, cut_off, empty_config, no_manifest, a_link_elsewhere, a_file_instead],
)
def test_a_damaged_cache_is_built_again(home: Path, damage: Callable[[Path], None]):
    build = Builder()
    first = cached_model("tiny", SHA, build, HookedGPT)
    (folder,) = home.iterdir()
    damage(folder)
    assert equal(cached_model("tiny", SHA, build, HookedGPT), first)
    assert build.times == 2
    assert equal(cached_model("tiny", SHA, build, HookedGPT), first)
    assert build.times == 2


def test_a_full_disk_still_gives_a_model(
    home: Path, full_disk: Callable[[int], AbstractContextManager[None]]
):
    build = Builder()
    with full_disk(500), pytest.warns(UserWarning, match="not cached, so the next load is as slow"):
        model = cached_model("tiny", SHA, build, HookedGPT)
    assert equal(model, Builder()())
    assert not list(home.iterdir())


def test_a_cache_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch):
    home.parent.mkdir(parents=True)
    home.write_text("a file where a folder should be")
    with pytest.warns(UserWarning, match="place for output must be writable"):
        assert equal(cached_model("tiny", SHA, Builder(), HookedGPT), Builder()())

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(UserWarning, match="Could not determine home directory"):
        cached_model("tiny", SHA, Builder(), HookedGPT)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
def test_a_read_only_cache(home: Path):
    home.mkdir(parents=True)
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.warns(UserWarning, match="place for output must be writable"):
            cached_model("tiny", SHA, Builder(), HookedGPT)
    finally:
        home.chmod(stat.S_IRWXU)


def test_another_process_was_quicker(home: Path):
    build = Builder()

    def slowly() -> HookedGPT:
        cached_model("tiny", SHA, build, HookedGPT)
        return build()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached_model("tiny", SHA, slowly, HookedGPT)
    assert len(list(home.iterdir())) == 1


def test_tensors_are_written_as_the_library_reads_them(tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a": torch.randn(3, 4, generator=generator).T,
        "b": torch.ones((), dtype=torch.float64),
        "c": torch.zeros(0, 2),
        "d": torch.randn(5, generator=generator).bfloat16(),
    }
    path = tmp_path / "some.safetensors"
    write_tensors(path, tensors)
    own, _ = read_tensors(path)
    for read in (own, read_weights(path)):
        assert read.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(read[name], tensor), name
            assert read[name].dtype == tensor.dtype


def test_the_place_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert cache_home() == tmp_path / "cache" / "headlab"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/to/be/ignored")
    assert cache_home().is_absolute()
    assert cache_home().name == "headlab"
