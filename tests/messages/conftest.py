"""A home with one run that tests may break, and the command line that refuses it."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.cli import main

SMALL: str = """
    --length 3 --n-symbols 4 --steps 4 --batch-size 4 --warmup-steps 1 --checkpoint-every 2
    --eval-every 2 --eval-sequences 8 --device cpu --no-report
    --model.n-layers 1 --model.n-heads 2 --model.d-model 8
"""
PREFIX = "headlab: error: "


@pytest.fixture(scope="session")
def whole_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the complete run `tiny`: four steps of 1,246 numbers, checkpoints 0, 2, 4."""
    home = tmp_path_factory.mktemp("whole") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADLAB_HOME", str(home))
        assert main(["train", "reversal", "--name", "tiny", *SMALL.split()]) == 0
    return home


@pytest.fixture
def home(whole_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that is the home of runs for this test."""
    home = shutil.copytree(whole_home, tmp_path / "home")
    monkeypatch.setenv("HEADLAB_HOME", str(home))
    return home


@pytest.fixture
def small() -> list[str]:
    """Flags that make the run `tiny`."""
    return SMALL.split()


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """The function that runs a command line and returns the one line that refuses it.

    The folder of the test is written <tmp> in it. With remarks=True, lines about the work may stand
    before it, as when a disk fills up while a model is trained.
    """

    def run(*arguments: str, remarks: bool = False) -> str:
        code = main(arguments)
        out, err = capsys.readouterr()
        before, _, line = err.rpartition(PREFIX)
        assert code == 2, (code, out, err)
        assert line.endswith("\n") and line.count("\n") == 1
        assert line.isascii() and line.strip().isprintable()
        assert "Traceback" not in err and PREFIX not in before
        assert remarks or (out, before) == ("", "")
        return line.strip().replace(str(tmp_path), "<tmp>")

    return run


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """The function that mounts a small file system of its own, or skips."""
    places: list[Path] = []

    def mount(name: str, options: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "headlab-test", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs to mount a tmpfs, which is refused here: {done.stderr.strip()}")
        places.append(place)
        return place

    try:
        yield mount
    finally:
        for place in places:
            subprocess.run(["umount", str(place)], check=True)
