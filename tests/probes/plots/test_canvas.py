"""Charts draw where they are told, and change nothing else."""

import io

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from probes import plots
from probes.ablation.table import ablation_sweep
from probes.attention.entropy import entropy_profile


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


@pytest.mark.parametrize("width", [2.0, 6.0])
def test_a_note_stands_below_the_picture_within_its_width(width):
    figure = plots.new_figure(width, 1.0)
    note = "a $run_1$ caf\xe9 \u4e2d | " + "input: five hundred sequences | " * 6
    with Image.open(io.BytesIO(plots.png_bytes(figure))) as bare:
        size, told = bare.size, bare.info
    assert "Description" not in told
    with Image.open(io.BytesIO(plots.png_bytes(figure, note=note))) as noted:
        assert noted.info["Description"] == note
        assert noted.width == size[0]
        strip = np.asarray(noted.convert("L"))[size[1] :]
    assert figure.texts == []
    ink = np.argwhere(strip < 200)
    assert len(ink) > 0
    assert ink.min() > 0
    assert (ink.max(axis=0) < np.array(strip.shape) - 5).all()
