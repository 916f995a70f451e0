"""Grids show the numbers of their table: read from the artists, not from pixels."""

import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from probes import plots
from probes.attention.heads import score_heads
from probes.plots.canvas import PROBABILITY
from probes.pruning.removing import prune_heads


def mesh_of(ax):
    (mesh,) = (artist for artist in ax.collections if isinstance(artist, QuadMesh))
    return mesh


def shown(ax) -> np.ma.MaskedArray:
    return np.ma.asarray(mesh_of(ax).get_array())


def test_grid_shows_layers_down_heads_across_on_one_scale(small_model, repeating_batch):
    frame = score_heads(small_model, repeating_batch)
    ax = plots.plot_head_grid(frame, probe="induction")
    rows = frame[frame["probe"] == "induction"]
    scores = rows.pivot(index="layer", columns="head", values="score").to_numpy()
    np.testing.assert_array_equal(shown(ax), scores)
    assert mesh_of(ax).get_clim() == (0.0, 1.0)
    assert ax.get_ylim() == (2.0, 0.0)
    written = {t.get_position(): t.get_text() for t in ax.texts}
    assert written == {
        (head + 0.5, layer + 0.5): f"{scores[layer, head]:.2f}"
        for layer in range(2)
        for head in range(3)
    }
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == (
        "head",
        "layer",
        "Induction",
    )


def test_missing_head_leaves_its_cell_empty(small_model, repeating_batch):
    frame = score_heads(prune_heads(small_model, [(1, 0)]), repeating_batch, ["first"])
    ax = plots.plot_head_grid(frame, probe="first")
    assert np.ma.getmaskarray(shown(ax)).tolist() == [
        [False, False, False],
        [True, False, False],
    ]
    assert len(ax.texts) == 5


def test_lightness_falls_from_none_to_all():
    lightness = PROBABILITY(np.linspace(0, 1, 64))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert lightness[0] == pytest.approx(1.0)
    assert (np.diff(lightness) < 0).all()


def test_a_probe_that_is_not_in_the_table_is_refused(small_model, repeating_batch):
    heads = score_heads(small_model, repeating_batch, ["first"])
    with pytest.raises(ValueError, match=r"unknown probe of this table 'fist'.*'first'"):
        plots.plot_head_grid(heads, probe="fist")
