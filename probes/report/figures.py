"""The figures of a report: several charts on one sheet, sized by the model.

What one chart shows is `probes.plots`'s.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lab.naming import head_label
from probes import plots
from probes.film.frames import find_onsets
from probes.head_classes import shown_label
from probes.plots import canvas
from probes.plots.curves import entropy_ceiling
from probes.plots.grids import draw_cells
from probes.registry import SOURCE_PROBES

MOST_PANELS = 32
"""Up to this many heads, each has a panel for its entropy; more become rows of a map."""

FEW_HEADS = 8
"""Up to this many heads in a layer, cells are large."""


def label_sheet(labels: pd.DataFrame, task: str | None) -> Figure:
    """Draw what each head is called, on the task if there is one."""
    shown = [shown_label(label, task) for label in labels["label"]]
    return canvas.figure_of(plots.plot_labels(labels.assign(label=shown)))


def stripe_sheet(heads: pd.DataFrame) -> Figure:
    """Draw how much heads attend to the answer's source, on time and late."""
    return canvas.figure_of(plots.plot_ladder(heads, probes=SOURCE_PROBES))


def ladder_sheet(evidence: pd.DataFrame) -> Figure:
    """Draw how much heads look around the earlier copy of a token, beside the control."""
    return canvas.figure_of(plots.plot_ladder(evidence))


def spectrum_sheet(spectrum: pd.DataFrame) -> Figure:
    """Draw how much heads attend to each distance."""
    return canvas.figure_of(plots.plot_spectrum(spectrum))


def film_sheet(film: pd.DataFrame) -> Figure:
    """Draw how the scores of one probe came about, with the steps where heads set in."""
    probe = str(film["probe"].iloc[0])
    return canvas.figure_of(plots.plot_dynamics(film, probe=probe, onsets=find_onsets(film)))


def score_grids(heads: pd.DataFrame) -> Figure:
    """Draw one grid of heads a probe."""
    names = list(dict.fromkeys(heads["probe"]))
    n_layers, n_heads = (heads[axis].nunique() for axis in ("layer", "head"))
    cell = 0.55 if n_heads <= FEW_HEADS else 0.36
    width = 0.9 + cell * n_heads
    across = min(4, len(names), max(1, int(24 / width)))
    down = -(-len(names) // across)
    figure = canvas.new_figure(width * across, 0.4 + (1.1 + cell * n_layers) * down)
    for ax, name in zip(figure.subplots(down, across, squeeze=False).flat, names, strict=False):
        plots.plot_head_grid(heads, probe=name, ax=ax)
    for ax in figure.axes[len(names) :]:
        ax.set_axis_off()
    sheet_title(figure, "Share of attention on each probe's targets")
    return figure


def sheet_title(figure: Figure, text: str) -> None:
    """Write above several charts what they all show."""
    left = 0.1 / figure.get_figwidth()
    figure.suptitle(text, x=left, ha="left", color=canvas.INK, fontweight="bold")


def entropy_sheet(entropy: pd.DataFrame) -> Figure:
    """Draw each head's entropy by position: a panel a head, or of many heads a row each."""
    pairs = entropy[["layer", "head"]].drop_duplicates()
    return entropy_panels(entropy) if len(pairs) <= MOST_PANELS else entropy_rows(entropy)


def entropy_panels(entropy: pd.DataFrame) -> Figure:
    """Draw a panel a head, layers down: all share their axes, so that heads can be compared."""
    layers, heads = (sorted(set(entropy[axis].tolist())) for axis in ("layer", "head"))
    figure = canvas.new_figure(1.0 + max(5.0, 2.6 * len(heads)), 1.2 + 1.9 * len(layers))
    panels = figure.subplots(len(layers), len(heads), sharex=True, sharey=True, squeeze=False)
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            ax = panels[row, column]
            own = entropy[(entropy["layer"] == layer) & (entropy["head"] == head)]
            if own.empty:  # pruned
                ax.set_axis_off()
            else:
                entropy_panel(own, ax)
                ax.set_title(
                    head_label(layer, head), loc="left", color=canvas.INK, fontweight="bold"
                )
    figure.supxlabel("query position", color=canvas.INK)
    figure.supylabel("entropy (nats)", color=canvas.INK)
    figure.legend(
        handles=[
            Line2D([], [], color=canvas.BLUE, linewidth=2.4, label="its attention"),
            Line2D(
                [],
                [],
                color=canvas.ORANGE,
                linewidth=2,
                dashes=(3, 1.5),
                label="without the first key",
            ),
            Line2D(
                [], [], color=canvas.MUTED, linewidth=1, label="all keys alike: the most there is"
            ),
        ],
        loc="outside upper left",
        title="Entropy of each head's attention, by position",
        title_fontproperties={"weight": "bold", "size": 12},
        alignment="left",
        ncols=3,
        frameon=False,
        fontsize=11,
    )
    return figure


def entropy_panel(own: pd.DataFrame, ax: Axes) -> None:
    """Draw one head's entropy, with and without the first key, under the ceiling."""
    rows, ceiling = own["query_pos"].to_numpy(), entropy_ceiling(own)
    ax.plot(ceiling.index, ceiling, color=canvas.MUTED, linewidth=1)
    ax.fill_between(ceiling.index, ceiling, color=canvas.HIDDEN, zorder=0)
    ax.plot(rows, own["entropy"], color=canvas.BLUE, linewidth=2.4)
    ax.plot(rows, own["sink_free"], color=canvas.ORANGE, linewidth=2, dashes=(3, 1.5))
    ax.set_xlim(0, max(1, int(rows[-1])))
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    canvas.tidy(ax)


def entropy_rows(entropy: pd.DataFrame) -> Figure:
    """Draw two maps, a row a head: the share of the largest possible entropy at each position."""
    n_rows = len(entropy[["layer", "head"]].drop_duplicates())
    figure = canvas.new_figure(14.0, min(40.0, 1.6 + 0.09 * n_rows))
    titles = {"normalised": "Its attention", "sink_free_normalised": "Without the first key"}
    axes = figure.subplots(1, 2)
    meshes = []
    for ax, (value, title) in zip(axes, titles.items(), strict=True):
        grid = entropy.pivot(index=["layer", "head"], columns="query_pos", values=value)
        meshes.append(draw_cells(ax, grid))
        ax.set_aspect("auto")
        pairs = grid.index.tolist()
        starts = [i for i, pair in enumerate(pairs) if i == 0 or pair[0] != pairs[i - 1][0]]
        ax.set_yticks(starts, [head_label(*pairs[start]) for start in starts])
        for start in starts[1:]:
            ax.axhline(start, color=canvas.MUTED, linewidth=0.6)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        ax.set_title(title, loc="left", color=canvas.INK, fontweight="bold")
        ax.set_xlabel("query position", color=canvas.INK)
    bar = figure.colorbar(meshes[0], ax=list(axes), shrink=0.5, ticks=[0, 0.5, 1])
    bar.set_label("entropy, 1 where all keys are alike", color=canvas.INK)
    sheet_title(figure, "Entropy of each head's attention, by position")
    bar.outline.set_visible(False)
    return figure


def ablation_panels(ablation: pd.DataFrame) -> Figure:
    """Draw what each ablation changes: loss above, exact match below; zeros left, means right."""
    panels = [(metric, mode) for metric in ("loss", "exact_match") for mode in ("zero", "mean")]
    n_bars = len(ablation[(ablation["metric"] == "loss") & (ablation["mode"] == "zero")])
    figure = canvas.new_figure(min(24.0, 1.5 + 1.15 * n_bars), 7.0)
    for ax, (metric, mode) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        own = ablation[ablation["mode"] == mode]
        plots.plot_ablation(own, metric=metric, ax=ax)
    return figure


def attention_sheet(attention: pd.DataFrame) -> Figure:
    """Draw one head's map as large as its sequence needs."""
    n_pos = int(attention["query_pos"].max()) + 1
    figure = canvas.new_figure(1.9 + 0.27 * n_pos, 1.3 + 0.27 * n_pos)
    plots.plot_attention(attention, ax=figure.add_subplot())
    return figure
