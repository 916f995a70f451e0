"""What a package exports is documented; a private helper may let its name speak."""

import ast
import functools
import importlib
import inspect
from pathlib import Path
from types import FunctionType

import pytest

CALLED_MOST = (
    "lab.HeadGates.ablate",
    "lab.HookedGPT",
    "lab.HookedGPT.generate",
    "lab.HookedGPT.run_with_cache",
    "lab.get_task",
    "lab.train",
    "probes.ablation_sweep",
    "probes.copying_scores",
    "probes.entropy_profile",
    "probes.get_probe",
    "probes.head_importance",
    "probes.label_heads",
    "probes.logit_attribution",
    "probes.logit_lens",
    "probes.mean_reference",
    "probes.next_token_table",
    "probes.offset_spectrum",
    "probes.prune_heads",
    "probes.pruning_curve",
    "probes.repeated_batch",
    "probes.score_heads",
)
ROOT = Path(__file__).resolve().parents[2]


def exporting_modules() -> list[str]:
    """Return the modules and packages that list what they export in `__all__`."""
    found = []
    for path in sorted(file for part in ("lab", "probes") for file in (ROOT / part).rglob("*.py")):
        targets = [
            ast.unparse(target)
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            for target in getattr(node, "targets", [])
        ]
        if any("__all__" in target for target in targets):
            module = path.relative_to(ROOT).with_suffix("")
            found.append(".".join(module.parts).removesuffix(".__init__"))
    return found


def without_docstring(name: str, value: object) -> list[str]:
    """Return the name, and those of public methods, that have no docstring of their own."""
    if not isinstance(value, type):
        return [name] if callable(value) and not value.__doc__ else []
    members = {
        f"{name}.{key}": getattr(member, "__func__", member)
        for key, member in vars(value).items()
        if not key.startswith("_")
    }
    documented = (FunctionType, property)
    bare = [key for key, member in members.items() if isinstance(member, documented)
            and not inspect.getdoc(member)]  # fmt: skip
    return bare if value.__doc__ else [name, *bare]


@pytest.mark.parametrize("module", exporting_modules())
def test_everything_exported_has_a_docstring_down_to_its_public_methods(module):
    package = importlib.import_module(module)
    values = {name: getattr(package, name) for name in package.__all__}
    assert [bare for name, value in values.items() for bare in without_docstring(name, value)] == []


def test_the_two_packages_export():
    assert {"lab", "probes"} <= set(exporting_modules())


@pytest.mark.parametrize("name", CALLED_MOST)
def test_what_people_call_most_shows_a_call_that_runs(name):
    package, *path = name.split(".")
    called = functools.reduce(getattr, path, importlib.import_module(package))
    assert ">>> " in (inspect.getdoc(called) or "")
