"""The command line as tests call it: in this process, with what it printed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from apps.cli import main

Outcome = tuple[int, str, str]
"""Exit code, stdout, stderr."""
Headlab = Callable[..., Outcome]


@pytest.fixture
def headlab(capsys: pytest.CaptureFixture[str]) -> Headlab:
    """Give the function that runs a command line, its words as arguments."""

    def run(*arguments: str) -> Outcome:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def tiny_home(monkeypatch: pytest.MonkeyPatch, studio_home: Path) -> Path:
    """Make the home of the runs `tiny` and `raw` the one that commands look in."""
    monkeypatch.setenv("HEADLAB_HOME", str(studio_home))
    return studio_home


@pytest.fixture
def new_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make an empty folder the home of runs."""
    home = tmp_path / "home"
    monkeypatch.setenv("HEADLAB_HOME", str(home))
    return home
