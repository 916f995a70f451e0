"""Curves are the columns of their table, under their ceiling or beside chance."""

import numpy as np
import pandas as pd
import pytest
import torch

from probes import plots
from probes.attention.entropy import entropy_profile
from probes.plots.canvas import FAINT, HEAD_COLOURS
from probes.plots.curves import entropy_ceiling


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
        assert line.get_color() == HEAD_COLOURS[head]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["all keys alike", "L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    assert ax.get_ylabel() == "entropy (nats)"


def test_the_ceiling_of_a_bidirectional_model_is_flat(build_model, repeating_batch):
    frame = entropy_profile(build_model(attention_dir="bidirectional"), repeating_batch)
    for value, keys in (("entropy", 14), ("sink_free", 13)):
        ceiling = plots.plot_entropy(frame, value=value).lines[0]
        np.testing.assert_array_equal(ceiling.get_xdata(), np.arange(14))
        np.testing.assert_allclose(np.asarray(ceiling.get_ydata()), np.log(keys))


def test_the_ceiling_of_padded_sequences_counts_what_rows_see(build_model, repeating_batch):
    tokens = repeating_batch.tokens
    mask = torch.ones_like(tokens)
    mask[:, :3] = 0
    frame = entropy_profile(build_model(), tokens, attention_mask=mask)
    ceiling = entropy_ceiling(frame)
    np.testing.assert_array_equal(ceiling.index, np.arange(3, 14))
    np.testing.assert_allclose(ceiling, np.log(np.arange(1, 12)))


def sharp(entropy: list[float], keys: list[int]) -> pd.DataFrame:
    """Return the columns that a ceiling is read from, of one head."""
    most = np.log(np.array(keys, dtype=float))
    shares = np.where(most > 0, np.array(entropy) / np.where(most > 0, most, 1), np.nan)
    return pd.DataFrame(
        {"query_pos": np.arange(len(keys)), "entropy": entropy, "normalised": shares}
    )


def test_heads_that_are_perfectly_sharp_still_have_a_ceiling():
    causal = entropy_ceiling(sharp([0.0, 0.0, 0.0, 0.7], [1, 2, 3, 4]))
    np.testing.assert_allclose(causal, np.log([1, 2, 3, 4]))
    whole = entropy_ceiling(sharp([0.0, 0.3, 0.0, 0.0], [4, 4, 4, 4]))
    np.testing.assert_allclose(whole, np.log([4, 4, 4, 4]))


def spectrum() -> pd.DataFrame:
    """Return four distances of three heads: two look one and three back, one nowhere."""
    mass = {(0, 2): [0.1, 0.8, 0.1, 0.0], (1, 0): [0.0, 0.1, 0.2, 0.7], (1, 3): [0.25] * 4}
    return pd.DataFrame(
        [
            {"layer": layer, "head": head, "offset": d, "mass": m, "chance": 0.25 - d / 100}
            for (layer, head), masses in mass.items()
            for d, m in enumerate(masses)
        ]
    )


def test_a_spectrum_names_the_heads_above_chance_and_draws_the_others_faintly():
    ax = plots.plot_spectrum(spectrum(), most=2)
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(lines["L0H2"].get_ydata(), [0.1, 0.8, 0.1, 0.0])
    np.testing.assert_array_equal(lines["L1H0"].get_xdata(), [0, 1, 2, 3])
    chance = lines["chance: all keys alike"]
    np.testing.assert_allclose(np.asarray(chance.get_ydata()), [0.25, 0.24, 0.23, 0.22])
    (faint,) = (line for line in ax.lines if line.get_color() == FAINT)
    np.testing.assert_array_equal(faint.get_ydata(), [0.25] * 4)
    assert lines["L0H2"].get_color() != lines["L1H0"].get_color()
    named = plots.plot_spectrum(spectrum(), heads=[(1, 3)])
    assert named.get_legend_handles_labels()[1][0] == "L1H3"
    with pytest.raises(ValueError, match=r"unknown head of this table 'L0H0'; choose from L0H2"):
        plots.plot_spectrum(spectrum(), heads=[(0, 0)])


def film() -> pd.DataFrame:
    """Return five frames of two heads and two probes; one score is missing."""
    scores = {(0, 0): [0.1, 0.1, 0.6, 0.9, 0.9], (0, 1): [0.1, 0.2, np.nan, 0.2, 0.1]}
    return pd.DataFrame(
        [
            {"step": 10 * i, "layer": layer, "head": head, "probe": probe,
             "score": score if probe == "previous" else 0.0, "chance": 0.1}
            for (layer, head), own in scores.items() for i, score in enumerate(own)
            for probe in ("previous", "first")
        ]
    )  # fmt: skip


def test_a_film_is_drawn_with_its_onsets_and_gaps():
    onsets = pd.DataFrame(
        [
            {"layer": 0, "head": 0, "probe": "previous", "step": 20, "score": 0.6},
            {"layer": 0, "head": 0, "probe": "first", "step": 30, "score": 0.4},
        ]
    )
    ax = plots.plot_dynamics(film(), probe="previous", onsets=onsets)
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(lines["L0H0"].get_xdata(), [0, 10, 20, 30, 40])
    np.testing.assert_array_equal(lines["L0H0"].get_ydata(), [0.1, 0.1, 0.6, 0.9, 0.9])
    assert np.isnan(lines["L0H1"].get_ydata()).tolist() == [False, False, True, False, False]
    marks = [c.get_offsets().tolist() for c in ax.collections if len(c.get_offsets())]
    assert marks == [[[20.0, 0.6]]]
    assert "sets in (step 20)" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert (ax.get_xlabel(), ax.get_ylim()) == ("training step", (0.0, 1.02))
    with pytest.raises(ValueError, match=r"unknown probe of this table 'last'; choose from first"):
        plots.plot_dynamics(film(), probe="last")


def test_an_entropy_that_is_not_in_the_table_is_refused(small_model, repeating_batch):
    with pytest.raises(ValueError, match=r"unknown entropy column 'normalised'"):
        plots.plot_entropy(entropy_profile(small_model, repeating_batch), value="normalised")
