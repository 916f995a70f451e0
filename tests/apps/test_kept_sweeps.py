"""What is kept of unfinished work does not stay for ever, and damage does not stop a command."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from apps.kept_sweeps import KEPT_DAYS, ledger_of, long_work
from lab.durable import hold


def test_old_work_goes_unless_it_is_held_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ledger_of(["asked for again"])
    assert asked is not None
    home = asked.parent
    for name in ("new", "old", "held", asked.name):
        age = KEPT_DAYS + (-1 if name == "new" else 1)
        (home / name).mkdir()
        (home / name / "chunk-000000.npz").write_bytes(b"")
        (home / name / "manifest.json").write_bytes(b"{}")
        os.utime(home / name, times=(0, time.time() - age * 24 * 3600))
    with hold(home / "held"):  # taking it and letting go are uses, so it is aged again after each
        os.utime(home / "held", times=(0, 0))
        assert ledger_of(["asked for again"]) == asked
    assert {path.name for path in home.iterdir()} == {"new", "held", asked.name}
    assert (asked / "chunk-000000.npz").exists()
    os.utime(home / "held", times=(0, 0))
    ledger_of(["something else"])
    assert {path.name for path in home.iterdir()} == {"new", asked.name}


@pytest.mark.parametrize("damaged", ["manifest.json", "greedy-8/manifest.json"])
def test_a_ledger_that_does_not_say_whose_it_is_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ledger_of(["asked for"])
    assert asked is not None
    (asked / "greedy-8").mkdir(parents=True)
    for name in ("manifest.json", "greedy-8/manifest.json"):
        (asked / name).write_bytes(b"{}")
    assert ledger_of(["asked for"]) == asked
    assert asked.is_dir()
    (asked / damaged).write_bytes(b'{"model": "5f')
    with hold(asked):
        ledger_of(["asked for"])
    assert asked.is_dir()
    ledger_of(["asked for"])
    assert not asked.exists()


def test_work_that_another_process_keeps_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ExitStack() as other:
        with long_work("nothing", "asked for") as work:
            work.ledger.mkdir()
            other.enter_context(hold(work.ledger))
        assert work.ledger.is_dir()
    with long_work("nothing", "asked for") as work:
        pass
    assert not work.ledger.exists()
