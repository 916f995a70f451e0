"""Feeders are the drops of their table, largest on top, beside controls."""

import matplotlib
import pandas as pd
import pytest

from probes import plots
from probes.plots.canvas import BLUE, ORANGE


def feeders() -> pd.DataFrame:
    """Return two targets: of L2H1, L1H0 is the feeder; L2H2 has a lower score."""
    base = {"target_layer": 2, "ci_low": 0.0, "ci_high": 0.9, "loss_ci_low": 0.0, "loss_ci_high": 1}
    columns = ("head", "heads", "target_head", "baseline", "drop", "feeds")
    rows = [
        (3, "L0H3", 1, 0.8, 0.1, False),
        (0, "L1H0", 1, 0.8, 0.7, True),
        (None, "L0H3,L1H0", 1, 0.8, 0.75, True),
        (0, "L1H0", 2, 0.5, 0.2, False),
    ]
    frame = pd.DataFrame(rows, columns=list(columns)).assign(**base)
    frame = frame.assign(
        control=[0.01, 0.02, 0.03, 0.04], loss_delta=[1.0, 0.5, 1.5, 0.0], loss_control=0.1
    )
    return frame.astype({"head": "Int64"})


def test_largest_drop_is_on_top_below_the_joint_one():
    ax = plots.plot_feeders(feeders())
    assert ax.get_title(loc="left") == "What L2H1 loses without earlier heads"
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["2 heads together", "L1H0", "L0H3"]
    bars = sorted(ax.patches, key=lambda bar: bar.get_y())
    assert [bar.get_width() for bar in bars] == [0.75, 0.7, 0.1]
    expected = [matplotlib.colors.to_rgba(c) for c in (ORANGE, ORANGE, BLUE)]
    assert [bar.get_facecolor() for bar in bars] == expected
    (controls,) = (c for c in ax.collections if c.get_gid() == "control")
    assert controls.get_offsets().data[:, 0].tolist() == [0.03, 0.02, 0.01]
    assert "its whole score" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_what_cannot_be_told_is_no_blue_bar_and_no_control_is_no_diamond():
    feeds = pd.array([False, None, True, False], dtype="boolean")
    ax = plots.plot_feeders(feeders().assign(feeds=feeds, control=float("nan")))
    told = [text.get_text() for text in ax.get_legend().get_texts()]
    assert [text for text in told if "feed" in text or "told" in text] == [
        "feeds it",
        "does not feed it",
        "cannot be told",
    ]
    assert not any("controls" in text for text in told)


def test_loss_ranks_heads_by_what_it_rises():
    ax = plots.plot_feeders(feeders(), value="loss_delta", most=1)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["2 heads together", "L0H3"]
    assert ax.get_xlabel() == "rise of the second copy's loss (nats)"


def test_other_targets_can_be_asked_for_and_unknown_ones_are_told():
    assert len(plots.plot_feeders(feeders(), target=(2, 2)).patches) == 1
    with pytest.raises(ValueError, match="unknown target of this table 'L3H0'; choose from L2H1, "):
        plots.plot_feeders(feeders(), target=(3, 0))
    with pytest.raises(ValueError, match="unknown value of feeders 'los'; choose from drop, loss_"):
        plots.plot_feeders(feeders(), value="los")
