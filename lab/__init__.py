"""Models that can be looked into, and what it takes to train them.

The names below are the package's public face, loaded on first use: `import lab` imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.config import ModelConfig, SampleConfig, TrainConfig
    from lab.gates import HeadGates
    from lab.model import HookedGPT
    from lab.tasks.registry import get_task
    from lab.training import train

__all__ = [
    "HeadGates",
    "HookedGPT",
    "ModelConfig",
    "SampleConfig",
    "TrainConfig",
    "get_task",
    "train",
]

WHERE = {
    "HeadGates": "lab.gates",
    "HookedGPT": "lab.model",
    "ModelConfig": "lab.config",
    "SampleConfig": "lab.config",
    "TrainConfig": "lab.config",
    "get_task": "lab.tasks.registry",
    "train": "lab.training",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in WHERE:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    return getattr(import_module(WHERE[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
