"""Charts draw where they are told, and change nothing else."""

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

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
