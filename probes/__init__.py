"""Questions asked of a model: which head looks where, how widely, and what breaks without it.

The names below are the package's public face, loaded on first use: `import probes` imports no
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.ablation.pairs import pair_effects
    from probes.ablation.redundancy import head_redundancy, label_groups
    from probes.ablation.shapley import shapley_values
    from probes.ablation.sweep import Ablation, sweep_sets
    from probes.ablation.table import ablation_sweep, head_donors, mean_reference
    from probes.attention.distances import head_distances
    from probes.attention.entropy import entropy_profile
    from probes.attention.heads import score_heads
    from probes.attention.offsets import offset_spectrum
    from probes.attention.peaks import head_peaks
    from probes.borrowed.answers import Answers
    from probes.borrowed.attribution import logit_attribution
    from probes.borrowed.edges import edge_attribution
    from probes.borrowed.lens import logit_lens
    from probes.borrowed.patching import patch_activations
    from probes.feeders.composition import composition_scores
    from probes.feeders.scores import feeder_scores
    from probes.film.frames import film_checkpoints, find_onsets
    from probes.film.writer import FilmSettings, FilmWriter
    from probes.first_order.agreement import first_order_study
    from probes.first_order.attribution_patching import estimated_ablations, estimated_patches
    from probes.first_order.importance import head_importance
    from probes.first_order.self_repair import repair_split
    from probes.labels.rules import Cuts
    from probes.labels.study import label_heads, label_study
    from probes.pruning.curves import pruning_curve, random_band, removable
    from probes.pruning.hard_concrete import learn_gates
    from probes.pruning.pruned_run import export_pruned_model
    from probes.pruning.removing import certify, prune_heads
    from probes.pruning.survivors import survivor_labels
    from probes.reading.inputs import content_control, repeated_batch, repeated_pair
    from probes.registry import get_probe, probe_names
    from probes.report.folder import write_report
    from probes.writing.copying import copying_scores
    from probes.writing.values import head_values

__all__ = [
    "Ablation",
    "Answers",
    "Cuts",
    "FilmSettings",
    "FilmWriter",
    "ablation_sweep",
    "certify",
    "composition_scores",
    "content_control",
    "copying_scores",
    "edge_attribution",
    "entropy_profile",
    "estimated_ablations",
    "estimated_patches",
    "export_pruned_model",
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
    "learn_gates",
    "logit_attribution",
    "logit_lens",
    "mean_reference",
    "offset_spectrum",
    "pair_effects",
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
    "Ablation": "probes.ablation.sweep",
    "Answers": "probes.borrowed.answers",
    "Cuts": "probes.labels.rules",
    "FilmSettings": "probes.film.writer",
    "FilmWriter": "probes.film.writer",
    "ablation_sweep": "probes.ablation.table",
    "certify": "probes.pruning.removing",
    "composition_scores": "probes.feeders.composition",
    "content_control": "probes.reading.inputs",
    "copying_scores": "probes.writing.copying",
    "edge_attribution": "probes.borrowed.edges",
    "entropy_profile": "probes.attention.entropy",
    "estimated_ablations": "probes.first_order.attribution_patching",
    "estimated_patches": "probes.first_order.attribution_patching",
    "export_pruned_model": "probes.pruning.pruned_run",
    "feeder_scores": "probes.feeders.scores",
    "film_checkpoints": "probes.film.frames",
    "find_onsets": "probes.film.frames",
    "first_order_study": "probes.first_order.agreement",
    "get_probe": "probes.registry",
    "head_distances": "probes.attention.distances",
    "head_donors": "probes.ablation.table",
    "head_importance": "probes.first_order.importance",
    "head_peaks": "probes.attention.peaks",
    "head_redundancy": "probes.ablation.redundancy",
    "head_values": "probes.writing.values",
    "label_groups": "probes.ablation.redundancy",
    "label_heads": "probes.labels.study",
    "label_study": "probes.labels.study",
    "learn_gates": "probes.pruning.hard_concrete",
    "logit_attribution": "probes.borrowed.attribution",
    "logit_lens": "probes.borrowed.lens",
    "mean_reference": "probes.ablation.table",
    "offset_spectrum": "probes.attention.offsets",
    "pair_effects": "probes.ablation.pairs",
    "patch_activations": "probes.borrowed.patching",
    "probe_names": "probes.registry",
    "prune_heads": "probes.pruning.removing",
    "pruning_curve": "probes.pruning.curves",
    "random_band": "probes.pruning.curves",
    "removable": "probes.pruning.curves",
    "repair_split": "probes.first_order.self_repair",
    "repeated_batch": "probes.reading.inputs",
    "repeated_pair": "probes.reading.inputs",
    "score_heads": "probes.attention.heads",
    "shapley_values": "probes.ablation.shapley",
    "survivor_labels": "probes.pruning.survivors",
    "sweep_sets": "probes.ablation.sweep",
    "write_report": "probes.report.folder",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in WHERE:
        raise AttributeError(f"module 'probes' has no attribute {name!r}")
    return getattr(import_module(WHERE[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
