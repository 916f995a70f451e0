"""What is kept of unfinished work does not stay for ever."""

import os
import time
from pathlib import Path

import pytest

from apps.kept_sweeps import KEPT_DAYS, ledger_of
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
        os.utime(home / name, times=(0, time.time() - age * 24 * 3600))
    with hold(home / "held"):
        assert ledger_of(["asked for again"]) == asked
    assert {path.name for path in home.iterdir()} == {"new", "held", asked.name}
    assert (asked / "chunk-000000.npz").exists()
    ledger_of(["something else"])
    assert {path.name for path in home.iterdir()} == {"new", asked.name}
