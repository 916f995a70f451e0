"""Pictures show the numbers of their table: read from the artists, not from pixels."""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lab.vocab import Vocab
from probes import plots
from probes.ablation import ablation_sweep
from probes.entropy import entropy_profile
from probes.heads import score_heads
from probes.maps import attention_map
from probes.pruning import prune_heads


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
    lightness = plots.PROBABILITY(np.linspace(0, 1, 64))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert lightness[0] == pytest.approx(1.0)
    assert (np.diff(lightness) < 0).all()


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
        if isinstance(p, Rectangle) and p.get_edgecolor() == matplotlib.colors.to_rgba(plots.ORANGE)
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


@pytest.mark.parametrize(("value", "extra"), [("entropy", 1), ("sink_free", 0)])
def test_entropy_lines_are_the_columns_under_their_ceiling(
    small_model, repeating_batch, value, extra
):
    frame = entropy_profile(small_model, repeating_batch)
    ax = plots.plot_entropy(frame, value=value)
    ceiling, *lines = ax.lines
    rows = np.arange(1 - extra, 14)
    np.testing.assert_array_equal(ceiling.get_xdata(), rows)
    np.testing.assert_allclose(np.asarray(ceiling.get_ydata()), np.log(rows + extra))
    drawn = [line for line in lines if len(line.get_xdata())]
    assert len(drawn) == 6
    pairs = [(layer, head) for layer in range(2) for head in range(3)]
    for (layer, head), line in zip(pairs, drawn, strict=True):
        own = frame[(frame["layer"] == layer) & (frame["head"] == head)][value].dropna()
        np.testing.assert_array_equal(line.get_ydata(), own)
        assert line.get_color() == plots.HEAD_COLOURS[head]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["all keys alike", "L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    assert ax.get_ylabel() == "entropy (nats)"


@pytest.mark.parametrize("metric", ["loss", "exact_match"])
def test_bars_are_the_changes(small_model, repeating_batch, metric):
    frame = ablation_sweep(small_model, repeating_batch)
    ax = plots.plot_ablation(frame, metric=metric)
    rows = frame[frame["metric"] == metric]
    assert [bar.get_height() for bar in ax.patches] == rows["delta"].tolist()
    layers = [bar.get_facecolor() == matplotlib.colors.to_rgba(plots.ORANGE) for bar in ax.patches]
    assert layers == rows["head"].isna().tolist()
    (whiskers,) = ax.collections
    ends = np.array([np.asarray(path.vertices)[:, 1] for path in whiskers.get_paths()])
    np.testing.assert_allclose(ends[:, 0], np.minimum(rows["ci_low"], rows["delta"]), atol=1e-12)
    np.testing.assert_allclose(ends[:, 1], np.maximum(rows["ci_high"], rows["delta"]), atol=1e-12)
    assert [label.get_text() for label in ax.get_xticklabels()][2:5] == [
        "L0H2",
        "all of\nlayer 0",
        "L1H0",
    ]


def test_given_axes_are_drawn_on_and_pyplot_knows_nothing(small_model, repeating_batch):
    import matplotlib.pyplot as plt

    frame = ablation_sweep(small_model, repeating_batch)
    settings = dict(matplotlib.rcParams)
    ax = Figure().add_subplot()
    assert plots.plot_ablation(frame, ax=ax) is ax
    plots.plot_entropy(entropy_profile(small_model, repeating_batch))
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings


def test_table_is_left_as_it_was(small_model, repeating_batch):
    frame = entropy_profile(small_model, repeating_batch)
    before = frame.copy()
    plots.plot_entropy(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_what_is_not_in_the_table_is_refused(small_model, repeating_batch):
    heads = score_heads(small_model, repeating_batch, ["first"])
    with pytest.raises(ValueError, match=r"unknown probe of this table 'fist'.*'first'"):
        plots.plot_head_grid(heads, probe="fist")
    with pytest.raises(ValueError, match=r"unknown entropy column 'normalised'"):
        plots.plot_entropy(entropy_profile(small_model, repeating_batch), value="normalised")
    loss = ablation_sweep(small_model, repeating_batch, metrics=["loss"])
    with pytest.raises(ValueError, match=r"metric of this table 'exact_match'; choose from loss"):
        plots.plot_ablation(loss, metric="exact_match")
