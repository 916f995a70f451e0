"""Rules about the source files themselves, that neither ruff nor the import contracts know."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("lab", "probes", "apps")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PYTHON = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_package_says_that_it_is_typed():
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").exists()] == []


def test_modules_are_named_for_what_they_hold():
    vague = {"util", "utils", "helper", "helpers", "common", "manager", "misc"}
    assert [named(path) for path in SOURCES if vague & set(re.split(r"[/_.]", named(path)))] == []


def test_files_are_ascii_and_of_a_size_to_read():
    assert [named(path) for path in PYTHON if not path.read_text(encoding="utf-8").isascii()] == []
    assert [named(path) for path in PYTHON if len(path.read_text().splitlines()) > 600] == []


def test_no_file_postpones_its_annotations():
    """It defeats the import hook that checks shapes in the tests."""
    postponed = re.compile(r"^from __future__ import .*annotations", re.MULTILINE)
    assert [named(path) for path in PYTHON if postponed.search(path.read_text())] == []


def test_apps_intervene_by_gates_never_by_hooks():
    """A hook is state on the model: one browser's ablation would show in another's numbers."""
    hooks = re.compile(r"add_(perma_)?hook|run_with_hooks|\bhooks\(|register_\w*hook")
    apps = [path for path in SOURCES if ROOT / "apps" in path.parents]
    assert [named(path) for path in apps if hooks.search(path.read_text())] == []


def test_no_public_function_shares_its_name_with_a_module():
    """Importing the module would put it in the place of the function."""
    packages = {path.parent for path in SOURCES if path.stem == "__init__"}
    assert packages
    for package in packages:
        files = [path for path in package.glob("*.py") if path.stem != "__init__"]
        modules = {path.stem for path in files}
        modules |= {path.parent.name for path in package.glob("*/__init__.py")}
        functions = {
            node.name
            for path in files
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        assert modules & functions == set(), named(package)


def test_no_file_names_the_host_of_a_package_registry():
    """Where packages come from is the business of pip's own settings."""
    parts = [("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"),
             ("npmjs", "org"), ("deb", "debian", "org"), ("anaconda", "org")]  # fmt: skip
    hosts = re.compile("|".join(re.escape(".".join(part)) for part in parts))
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout: there is no list of tracked files")
    tracked = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert tracked
    found = [
        named(path)
        for path in tracked
        if path.is_file() and hosts.search(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert found == []
