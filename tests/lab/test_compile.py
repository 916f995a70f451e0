"""A compiled model computes the same, and no hook that comes later is ignored."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(once: Callable[..., Path]) -> dict[str, dict[str, Any]]:
    """What compiled.py saw, by kind of model and check."""

    def compile_and_look(told: Path) -> None:
        here = Path(__file__)
        with told.open("w") as output:
            command = [sys.executable, "-m", "tests.lab.compiled"]
            subprocess.run(command, cwd=here.parents[2], stdout=output, check=True)

    return json.loads(once("compiled.json", compile_and_look).read_text())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_one_graph_gives_the_same_logits_and_gradients(
    found: dict[str, dict[str, Any]], kind: str
) -> None:
    assert found[kind]["logits"] < 1e-5
    assert found[kind]["gradients"] < 1e-5


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "hook_embed"),
        ("gpt2", "blocks.0.attn.hook_pattern"),
        ("gpt2", "blocks.0.attn.hook_z"),
        ("gpt2", "blocks.0.mlp.hook_post"),
        ("gpt2", "gates"),
        ("llama", "blocks.0.attn.hook_rot_q"),
        ("llama", "blocks.0.attn.hook_result"),
        ("llama", "blocks.0.hook_mlp_in"),
        ("llama", "gates"),
    ],
)
def test_a_hook_added_later_takes_effect_and_goes_again(
    found: dict[str, dict[str, Any]], kind: str, name: str
) -> None:
    seen = found[kind][name]
    assert seen["apart"] < 1e-5 < 1e-3 < seen["effect"]
    assert seen["left"] == 0.0


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_observers_are_called(found: dict[str, dict[str, Any]], kind: str) -> None:
    assert found[kind]["observed"] == [0]
