"""What people install holds all that the packages read when they are imported."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_every_source_file_and_the_stubs_that_list_public_names(tmp_path):
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: pip install -e .[dev] brings it")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("headlab-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {"lab/__init__.pyi", "probes/__init__.pyi", "lab/py.typed"} <= held
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("lab", "probes", "apps")
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources <= held
