"""Bars are the numbers of their table, with their intervals and chance."""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer

from probes import plots
from probes.ablation.sweep import Ablation
from probes.ablation.table import ablation_sweep, head_donors
from probes.attention.heads import score_heads
from probes.head_classes import LADDER
from probes.plots.canvas import ORANGE
from probes.registry import SOURCE_PROBES, get_probe


@pytest.mark.parametrize("metric", ["loss", "exact_match"])
def test_bars_are_the_changes(small_model, repeating_batch, metric):
    frame = ablation_sweep(small_model, repeating_batch)
    ax = plots.plot_ablation(frame, metric=metric)
    rows = frame[frame["metric"] == metric]
    assert [bar.get_height() for bar in ax.patches] == rows["delta"].tolist()
    layers = [bar.get_facecolor() == matplotlib.colors.to_rgba(ORANGE) for bar in ax.patches]
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


def rungs(ax):
    return [bars for bars in ax.containers if isinstance(bars, BarContainer)]


def column(frame: pd.DataFrame, probe: str, name: str) -> np.ndarray:
    """Return a column of the rows of one probe, head by head."""
    own = frame[frame["probe"] == probe].sort_values(["layer", "head"])
    return own[name].to_numpy(dtype=float)


def test_stripes_stand_beside_each_other_with_interval_and_chance(small_model, repeating_batch):
    frame = score_heads(small_model, repeating_batch)
    ax = plots.plot_ladder(frame, probes=SOURCE_PROBES)
    heads = [(layer, head) for layer in range(2) for head in range(3)]
    assert [text.get_text() for text in ax.get_xticklabels()] == [f"L{a}H{b}" for a, b in heads]
    assert len(rungs(ax)) == 3
    for name, bars in zip(SOURCE_PROBES, rungs(ax), strict=True):
        np.testing.assert_allclose([bar.get_height() for bar in bars], column(frame, name, "score"))
        middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        np.testing.assert_allclose(
            middles, np.arange(6) + (SOURCE_PROBES.index(name) - 1) * 0.8 / 3
        )
    lines = [c for c in ax.collections if c.get_gid() == "chance"]
    drawn = [np.asarray(path.vertices)[0, 1] for c in lines for path in c.get_paths()]
    np.testing.assert_allclose(
        drawn, np.concatenate([column(frame, name, "chance") for name in SOURCE_PROBES])
    )
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {get_probe(name).rung for name in SOURCE_PROBES} < set(texts)


def test_a_ladder_has_the_heads_furthest_above_chance_and_their_controls():
    scores = {(0, 0): 0.1, (0, 5): 0.9, (1, 1): 0.5, (1, 2): float("nan")}
    rows = [
        {"layer": layer, "head": head, "probe": name, "score": score * (name == "induction"),
         "chance": 0.05, "control": 0.02, "effect": 0.0, "ci_low": 0.0, "ci_high": 0.0}
        for (layer, head), score in scores.items() for name in LADDER
    ]  # fmt: skip
    ax = plots.plot_ladder(pd.DataFrame(rows), most=2)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["L0H5", "L1H1"]
    assert [bar.get_height() for bar in rungs(ax)[2]] == [0.9, 0.5]
    # The intervals of such a table are those of effects, which are no bars here.
    assert not [c for c in ax.containers if not isinstance(c, BarContainer)]
    controls = [c.get_offsets().tolist() for c in ax.collections if c.get_gid() == "control"]
    assert [y for places in controls for _, y in places] == [0.02] * 6


def test_what_is_not_in_the_table_is_refused(small_model, repeating_batch):
    loss = ablation_sweep(small_model, repeating_batch, metrics=["loss"])
    with pytest.raises(ValueError, match=r"metric of this table 'exact_match'; choose from loss"):
        plots.plot_ablation(loss, metric="exact_match")
    with pytest.raises(ValueError, match=r"unknown probe of this table 'sources'; choose from fi"):
        plots.plot_ladder(
            score_heads(small_model, repeating_batch, ["first"]), probes=SOURCE_PROBES
        )


def test_every_metric_and_mode_can_be_drawn(small_model, repeating_batch):
    donors = head_donors(small_model, repeating_batch)
    frame = ablation_sweep(
        small_model,
        repeating_batch,
        Ablation(mode="resample", donors=donors),
        metrics=["kl", "margin"],
    )
    ax = plots.plot_ablation(frame, metric="margin")
    assert ax.get_ylabel() == "change in margin (logit; down is worse)"
    assert ax.get_title(loc="left") == "Without a head (another sequence's instead)"
    part = ablation_sweep(small_model, repeating_batch, sets=[[(0, 0)], [(0, 1)], [(0, 0), (0, 1)]])
    names = [label.get_text() for label in plots.plot_ablation(part).get_xticklabels()]
    assert names == ["L0H0", "L0H1", "all of\nlayer 0"]
