"""Questions asked of a model: which head looks where, how widely, and what breaks without it.

The names below are the package's public face, loaded on first use: `import probes` imports no
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.ablation import ablation_sweep, head_donors, mean_reference
    from probes.answers import Answers
    from probes.attribution import logit_attribution
    from probes.attribution_patching import estimated_ablations, estimated_patches
    from probes.composition import composition_scores
    from probes.copying import copying_scores
    from probes.distances import head_distances
    from probes.edges import edge_attribution
    from probes.entropy import entropy_profile
    from probes.feeders import feeder_scores
    from probes.film import film_checkpoints, find_onsets
    from probes.film_writer import FilmSettings, FilmWriter
    from probes.first_order import first_order_study
    from probes.heads import score_heads
    from probes.importance import head_importance
    from probes.inputs import content_control, repeated_batch, repeated_pair
    from probes.label_rules import Cuts
    from probes.labels import label_heads, label_study
    from probes.lens import logit_lens
    from probes.offsets import offset_spectrum
    from probes.patching import patch_activations
    from probes.peaks import head_peaks
    from probes.pruning import prune_heads
    from probes.pruning_curves import pruning_curve, random_band, removable
    from probes.redundancy import head_redundancy, label_groups
    from probes.registry import get_probe, probe_names
    from probes.report import write_report
    from probes.self_repair import repair_split
    from probes.shapley import shapley_values
    from probes.survivors import survivor_labels
    from probes.sweep import Ablation, sweep_sets
    from probes.values import head_values

__all__ = [
    "Ablation",
    "Answers",
    "Cuts",
    "FilmSettings",
    "FilmWriter",
    "ablation_sweep",
    "composition_scores",
    "content_control",
    "copying_scores",
    "edge_attribution",
    "entropy_profile",
    "estimated_ablations",
    "estimated_patches",
    "feeder_scores",
    "film_checkpoints",
    "find_onsets",
    "first_order_study",
    "get_probe",
    "head_distances",
    "head_donors",
    "head_importance",
    "head_peaks",
    "head_redundancy",
    "head_values",
    "label_groups",
    "label_heads",
    "label_study",
    "logit_attribution",
    "logit_lens",
    "mean_reference",
    "offset_spectrum",
    "patch_activations",
    "probe_names",
    "prune_heads",
    "pruning_curve",
    "random_band",
    "removable",
    "repair_split",
    "repeated_batch",
    "repeated_pair",
    "score_heads",
    "shapley_values",
    "survivor_labels",
    "sweep_sets",
    "write_report",
]

WHERE = {
    "Ablation": "probes.sweep",
    "Answers": "probes.answers",
    "Cuts": "probes.label_rules",
    "FilmSettings": "probes.film_writer",
    "FilmWriter": "probes.film_writer",
    "ablation_sweep": "probes.ablation",
    "composition_scores": "probes.composition",
    "content_control": "probes.inputs",
    "copying_scores": "probes.copying",
    "edge_attribution": "probes.edges",
    "entropy_profile": "probes.entropy",
    "estimated_ablations": "probes.attribution_patching",
    "estimated_patches": "probes.attribution_patching",
    "feeder_scores": "probes.feeders",
    "film_checkpoints": "probes.film",
    "find_onsets": "probes.film",
    "first_order_study": "probes.first_order",
    "get_probe": "probes.registry",
    "head_distances": "probes.distances",
    "head_donors": "probes.ablation",
    "head_importance": "probes.importance",
    "head_peaks": "probes.peaks",
    "head_redundancy": "probes.redundancy",
    "head_values": "probes.values",
    "label_groups": "probes.redundancy",
    "label_heads": "probes.labels",
    "label_study": "probes.labels",
    "logit_attribution": "probes.attribution",
    "logit_lens": "probes.lens",
    "mean_reference": "probes.ablation",
    "offset_spectrum": "probes.offsets",
    "patch_activations": "probes.patching",
    "probe_names": "probes.registry",
    "prune_heads": "probes.pruning",
    "pruning_curve": "probes.pruning_curves",
    "random_band": "probes.pruning_curves",
    "removable": "probes.pruning_curves",
    "repair_split": "probes.self_repair",
    "repeated_batch": "probes.inputs",
    "repeated_pair": "probes.inputs",
    "score_heads": "probes.heads",
    "shapley_values": "probes.shapley",
    "survivor_labels": "probes.survivors",
    "sweep_sets": "probes.sweep",
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
