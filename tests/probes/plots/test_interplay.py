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
    assert [t.get_text() for t in plots.plot_pairs(frame, most=2).texts] == ["2.00"]


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
