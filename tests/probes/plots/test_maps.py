"""A head's map shows every cell that it sees, and any token can stand beside it."""

import matplotlib
import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle

from lab.vocab import Vocab
from probes import plots
from probes.attention.maps import attention_map
from probes.plots.canvas import ORANGE


def mesh_of(ax):
    (mesh,) = (artist for artist in ax.collections if isinstance(artist, QuadMesh))
    return mesh


def shown(ax) -> np.ma.MaskedArray:
    return np.ma.asarray(mesh_of(ax).get_array())


def test_map_shows_every_visible_cell_and_frames_the_sources(small_model, repeating_batch):
    frame = attention_map(small_model, repeating_batch, layer=0, head=1)
    ax = plots.plot_attention(frame)
    cells = shown(ax).filled(np.nan)
    rows, keys = frame["query_pos"].to_numpy(), frame["key_pos"].to_numpy()
    np.testing.assert_array_equal(cells[rows, keys], frame["probability"])
    assert all(np.isnan(cells[q, k]) for q in range(14) for k in range(q + 1, 14))
    framed = {
        (int(p.get_y()), int(p.get_x()))
        for p in ax.patches
        if isinstance(p, Rectangle) and p.get_edgecolor() == matplotlib.colors.to_rgba(ORANGE)
    }
    sources = frame[frame["is_source"]]
    assert framed == set(zip(sources["query_pos"], sources["key_pos"], strict=True))
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {
        "holds the answer",
        "not visible yet",
    }


def test_any_token_can_be_written(small_model, repeating_batch):
    hostile = Vocab(("$\\frac", "$$", "<b>", "a\nb", "%s", "\\"))
    frame = attention_map(small_model, repeating_batch, layer=0, head=0, vocab=hostile)
    ax = plots.plot_attention(frame)
    assert plots.png_bytes(ax.figure, dpi=30).startswith(b"\x89PNG")
    assert ax.get_xticklabels()[0].get_text() == "$\\frac"
