"""Tables to pictures: every function takes a tidy table and returns the Axes it drew on.

A function draws on the Axes given, or on those of a new figure: `plot_labels(frame).figure`. What
several charts on one sheet show is `probes.figures`'s.
"""

from probes.plots.bars import plot_ablation, plot_ladder
from probes.plots.canvas import new_figure, png_bytes
from probes.plots.curves import plot_dynamics, plot_entropy, plot_spectrum
from probes.plots.grids import plot_head_grid
from probes.plots.labels import plot_confusion, plot_labels
from probes.plots.maps import plot_attention

__all__ = [
    "new_figure",
    "plot_ablation",
    "plot_attention",
    "plot_confusion",
    "plot_dynamics",
    "plot_entropy",
    "plot_head_grid",
    "plot_labels",
    "plot_ladder",
    "plot_spectrum",
    "png_bytes",
]
