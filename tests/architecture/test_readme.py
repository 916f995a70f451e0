"""The README's tree and its commands stay true."""

import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from apps.cli import COMMANDS, main
from apps.commands.arguments import fill_in

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
TREE = README.split("## What is where", 1)[1].split("```")[1]
TYPED = re.findall(r"(?:`headlab|\$ headlab|-m apps\.cli) ([a-z]+ [^`\n]+)", README)
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


class Understood(BaseException):
    """The parser has filled in a form: what follows takes too long here."""


@pytest.mark.parametrize("typed", sorted(set(TYPED)))
def test_commands_are_understood(typed, monkeypatch):
    words = shlex.split(typed)

    def filled(*given, **told):
        fill_in(*given, **told)
        raise Understood

    (where,) = (entry.where for entry in COMMANDS if entry.name == words[0])
    monkeypatch.setattr(import_module(where.split(":")[0]), "fill_in", filled)
    with pytest.raises(Understood):
        main(words)


def test_commands_are_found():
    assert {"probe reversal", "ablate reversal", "prune reversal --keep 2 --out small"} <= set(
        TYPED
    )
