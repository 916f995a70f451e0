"""Pairs are cells below the diagonal; repair is the way from the direct to the total effect."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh

from probes import plots
from probes.plots.canvas import MUTED


def test_pairs_are_cells_of_their_two_heads():
    frame = pd.DataFrame(
        {"layer": [0, 0, 0], "head": [1, 0, 0], "other_layer": [1, 0, 1], "other_head": [0, 1, 0],
         "interaction": [2.0, 0.5, -0.1], "ci_low": [1.0, 0.1, -0.5], "ci_high": [3.0, 0.9, 0.4],
         "metric": "loss", "unit": "nats"}
    )  # fmt: skip
    ax = plots.plot_pairs(frame)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["L0H0", "L0H1"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L0H1", "L1H0"]
    (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
    drawn = np.ma.masked_invalid(np.asarray(mesh.get_array()))
    assert drawn.tolist() == [[0.5, None], [-0.1, 2.0]]
    grey = [text.get_text() for text in ax.texts if text.get_color() == MUTED]
    assert grey == ["-0.10"]
    assert ax.get_xlabel() == ""
    few = plots.plot_pairs(frame, most=2)
    assert [text.get_text() for text in few.texts] == ["2.00"]
    assert few.get_xlabel() == "not drawn: 2 of 3 pairs, at most 5.0e-01 either way"


def test_heads_that_do_not_interact_are_counted_and_empty_cells_have_no_frame():
    heads = [(0, head) for head in range(4)]
    pairs = [(a, b) for a in heads for b in heads if a < b]
    frame = pd.DataFrame(
        {"layer": 0, "head": [a[1] for a, _ in pairs], "other_layer": 0,
         "other_head": [b[1] for _, b in pairs], "interaction": [0.5, 0.2, 4e-4, 0.1, 3e-4, -2e-4],
         "ci_low": -1.0, "ci_high": 1.0, "metric": "loss", "unit": "nats"}
    )  # fmt: skip
    ax = plots.plot_pairs(frame)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L0H1", "L0H2"]
    assert ax.get_xlabel() == "not drawn: 3 of 6 pairs, at most 4.0e-04 either way"
    (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
    assert np.asarray(mesh.get_edgecolor())[:, 3].tolist() == [1, 0, 1, 1]


def test_repair_goes_from_direct_to_total():
    frame = pd.DataFrame(
        {"heads": ["L0H0", "L0H1", "L1H0"] * 2, "metric": "margin", "unit": "logit",
         "norm": ["free"] * 3 + ["frozen"] * 3, "direct": [1.0, 0.1, -0.2, 9, 9, 9],
         "total": [0.4, 0.2, -3.0, 9, 9, 9]}
    )  # fmt: skip
    ax = plots.plot_repair(frame, most=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L1H0", "L0H0"]
    for name, values in (("direct", [-0.2, 1.0]), ("total", [-3.0, 0.4])):
        (dots,) = (c for c in ax.collections if c.get_gid() == name)
        np.testing.assert_allclose(np.asarray(dots.get_offsets())[:, 0], values)
    with pytest.raises(
        ValueError, match="unknown norm of this table 'fre'; choose from free, froz"
    ):
        plots.plot_repair(frame, norm="fre")
