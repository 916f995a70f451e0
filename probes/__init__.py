"""Questions asked of a model: which head looks where, how widely, and what breaks without it.

The names below are the package's public face, loaded on first use: `import probes` imports no
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.ablation import ablation_sweep, mean_reference
    from probes.entropy import entropy_profile
    from probes.heads import score_heads
    from probes.pruning import prune_heads
    from probes.registry import get_probe, probe_names
    from probes.report import write_report

__all__ = [
    "ablation_sweep",
    "entropy_profile",
    "get_probe",
    "mean_reference",
    "probe_names",
    "prune_heads",
    "score_heads",
    "write_report",
]

WHERE = {
    "ablation_sweep": "probes.ablation",
    "entropy_profile": "probes.entropy",
    "get_probe": "probes.registry",
    "mean_reference": "probes.ablation",
    "probe_names": "probes.registry",
    "prune_heads": "probes.pruning",
    "score_heads": "probes.heads",
    "write_report": "probes.report",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in WHERE:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(WHERE[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
