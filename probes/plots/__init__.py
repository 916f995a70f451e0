"""Tables to pictures: every function takes a tidy table and returns the Axes it drew on.

A function draws on the Axes given, or on those of a new figure: `plot_labels(frame).figure`. What
several charts on one sheet show is `probes.report.figures`'s.
"""

from probes.plots.attribution import plot_attribution, plot_edges
from probes.plots.bars import plot_ablation, plot_ladder
from probes.plots.canvas import new_figure, png_bytes
from probes.plots.curves import plot_dynamics, plot_entropy, plot_spectrum
from probes.plots.effects import plot_effects, plot_joint, plot_shapley
from probes.plots.feeders import plot_feeders
from probes.plots.first_order import plot_first_order
from probes.plots.grids import plot_head_grid
from probes.plots.interplay import plot_pairs, plot_repair
from probes.plots.labels import plot_confusion, plot_labels
from probes.plots.maps import plot_attention
from probes.plots.patching import plot_lens, plot_patching
from probes.plots.pruning import plot_pruning_curve

__all__ = [
    "new_figure",
    "plot_ablation",
    "plot_attention",
    "plot_attribution",
    "plot_confusion",
    "plot_dynamics",
    "plot_edges",
    "plot_effects",
    "plot_entropy",
    "plot_feeders",
    "plot_first_order",
    "plot_head_grid",
    "plot_joint",
    "plot_labels",
    "plot_ladder",
    "plot_lens",
    "plot_pairs",
    "plot_patching",
    "plot_pruning_curve",
    "plot_repair",
    "plot_shapley",
    "plot_spectrum",
    "png_bytes",
]
