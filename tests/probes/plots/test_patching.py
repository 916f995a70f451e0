"""Patches, lenses, attributions and edges are drawn as their tables have them."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh

from probes import plots


def cells(ax) -> np.ndarray:
    """Return the numbers of a grid."""
    (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
    return np.asarray(mesh.get_array())


def patches(heads: list, positions: list) -> pd.DataFrame:
    """Return two layers of cells, whose share is 0, 0.1, 0.2, ..."""
    rows = [(layer, pos, head) for layer in (0, 1) for pos in positions for head in heads]
    frame = pd.DataFrame(rows, columns=["layer", "pos", "head"])
    frame = frame.astype({"pos": "Int64", "head": "Int64"})
    return frame.assign(share=np.arange(len(rows)) / 10, activation="z")


@pytest.mark.parametrize(
    ("heads", "positions", "down", "across", "first"),
    [
        ([0, 2], [None], ["0", "1"], ["0", "2"], [0.0, 0.1]),
        ([None], [3, 4, 5], ["0", "1"], ["3", "4", "5"], [0.0, 0.1, 0.2]),
        ([0, 11], [3, 4], ["L0H0", "L0H11", "L1H0", "L1H11"], ["3", "4"], [0.0, 0.2]),
        ([None], [None], ["0", "1"], [], [0.0]),
    ],
)
def test_patches_are_cells_of_layers_heads_and_positions(heads, positions, down, across, first):
    ax = plots.plot_patching(patches(heads, positions))
    assert [label.get_text() for label in ax.get_yticklabels()] == down
    assert [label.get_text() for label in ax.get_xticklabels()] == across
    np.testing.assert_allclose(cells(ax)[0], first)
    assert ax.get_title(loc="left") == "What comes back with a head's output"


def test_lens_is_a_line_or_a_grid_of_probabilities():
    frame = pd.DataFrame(
        {"layer": [0, 1, 2], "pos": pd.array([None] * 3, dtype="Int64"),
         "log_prob": [-3.0, -1.0, -0.5], "ci_low": -4.0, "ci_high": -0.1,
         "entropy": [2.0, 1.0, 0.5]}
    )  # fmt: skip
    answer, entropy = plots.plot_lens(frame).lines
    assert answer.get_ydata().tolist() == [-3.0, -1.0, -0.5]
    assert entropy.get_ydata().tolist() == [-2.0, -1.0, -0.5]
    grid = plots.plot_lens(frame.assign(pos=pd.array([4] * 3, dtype="Int64")))
    np.testing.assert_allclose(cells(grid)[:, 0], np.exp([-3.0, -1.0, -0.5]))


def test_attributions_sum_to_the_title():
    frame = pd.DataFrame(
        {"part": ["embed", "head", "mlp", "b_U", "b_O"], "layer": [None, 0, 1, None, 0],
         "head": [None, 3, None, None, None], "attribution": [0.5, 2.0, -3.0, 0.25, 0.125],
         "ci_low": -4.0, "ci_high": 4.0}
    ).astype({"layer": "Int64", "head": "Int64"})  # fmt: skip
    ax = plots.plot_attribution(frame, most=3)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "L1 MLP", "L0H3", "embed", "2 others"
    ]  # fmt: skip
    assert [bar.get_width() for bar in ax.patches] == [-3.0, 2.0, 0.5, 0.375]
    assert ax.get_title(loc="left") == "Who makes the logit of -0.12"
    assert len(plots.plot_attribution(frame, most=4).patches) == 5


def test_edges_are_named_from_writer_to_reader():
    frame = pd.DataFrame(
        {"writer": ["embed", "head", "mlp"], "writer_layer": [None, 0, 0],
         "writer_head": [None, 1, None], "reader": ["mlp", "q", "logits"],
         "reader_layer": [0, 1, None], "reader_head": [None, 2, None], "score": [0.1, -2.0, 1.0],
         "ci_low": -3.0, "ci_high": 3.0}
    )  # fmt: skip
    ax = plots.plot_edges(frame, most=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "L0H1 > L1H2 q",
        "L0 MLP > logits",
    ]
