"""The README's tree stays true."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = (ROOT / "README.md").read_text().split("## What is where", 1)[1].split("```")[1]
NAMED = {line.split()[0] for line in TREE.splitlines() if line.strip()}


def tracked_folders() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout: there is no list of tracked files")
    return {name.split("/")[0] + "/" for name in listed.stdout.split("\0") if "/" in name}


def test_tree_names_every_top_level_folder():
    assert tracked_folders() <= NAMED


@pytest.mark.parametrize("package", ["lab", "probes", "apps"])
def test_tree_names_every_module(package):
    modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    modules |= {f"{path.parent.name}/" for path in (ROOT / package).glob("*/__init__.py")}
    assert modules <= NAMED


def test_tree_names_nothing_that_does_not_exist():
    folder = ROOT
    for line in TREE.splitlines():
        if not line.strip():
            continue
        name = line.split()[0]
        if not line.startswith(" "):
            folder = ROOT / name
            assert folder.exists(), name
        else:
            assert (folder / name).exists(), f"{folder.name}/{name}"
