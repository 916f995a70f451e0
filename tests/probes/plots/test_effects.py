"""Effects are the changes of their table: worse is orange, all together stand beside the sum."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from probes import plots
from probes.plots.canvas import MUTED, ORANGE
from probes.plots.grids import draw_signed


def effects(delta: list[float], metric: str = "loss") -> pd.DataFrame:
    """Return the rows of one layer of heads; the last one's interval holds 0."""
    n = len(delta)
    return pd.DataFrame(
        {"layer": 0, "head": np.arange(n), "metric": metric, "delta": delta, "unit": "nats",
         "ci_low": [*([0.1] * (n - 1)), -1.0], "ci_high": 1.0}
    )  # fmt: skip


def colours(ax) -> np.ndarray:
    """Return red, green and blue of each cell of a grid."""
    (mesh,) = (c for c in ax.collections if isinstance(c, matplotlib.collections.QuadMesh))
    ax.figure.canvas.draw()
    return mesh.get_facecolors()[:, :3]


@pytest.mark.parametrize(("metric", "worse"), [("loss", 1.0), ("margin", -1.0)])
def test_worse_is_orange_better_is_blue_and_nothing_is_white(metric, worse):
    frame = effects([worse, 0.0, -worse], metric)
    orange, white, blue = colours(plots.plot_effects(frame, metric=metric))
    assert orange[0] > orange[2]
    assert blue[2] > blue[0]
    np.testing.assert_allclose(white, 1.0, atol=0.01)


def test_numbers_are_the_changes_and_doubtful_ones_are_grey():
    frame = effects([0.5, -0.001, 0.25], "margin")
    ax = plots.plot_effects(frame, metric="margin")
    assert [text.get_text() for text in ax.texts] == ["0.50", "0.00", "0.25"]
    assert [text.get_color() == MUTED for text in ax.texts] == [False, False, True]
    assert ax.figure.axes[1].get_ylabel() == (
        "change in margin\n(nats; orange is worse)\ngrey numbers: the interval holds 0"
    )
    dark = plots.plot_effects(effects([0.5, -0.5]))  # the ground of the second is navy
    assert [text.get_color() for text in dark.texts][1] not in (MUTED, "white")
    small = plots.plot_effects(effects([2e-4, 1e-5]))
    assert [text.get_text() for text in small.texts] == ["2e-04", "1e-05"]


def test_one_giant_among_many_does_not_make_all_others_white():
    values = np.full((20, 10), 0.5)
    values[3, 3] = 100.0
    for grid, coloured in ((values, True), (np.array([[0.5, 100.0]]), False)):
        ax = plots.new_figure(4.0, 4.0).add_subplot()
        draw_signed(ax, pd.DataFrame(grid), "label")
        assert (colours(ax)[0][2] < 0.6) == coloured


def group() -> pd.DataFrame:
    """Return the table of a pair that costs 3 together and 0.75 one by one."""
    rows = [
        {"head": None, "delta": 3.0, "singles": 0.75, "control": 0.1, "ci_low": 2.5, "ci_high": 3.5,
         "control_low": 0.0, "control_high": 0.3},
        {"head": 0, "delta": 0.5, "ci_low": 0.4, "ci_high": 0.6},
        {"head": 1, "delta": 0.25, "ci_low": 0.2, "ci_high": 0.3},
    ]  # fmt: skip
    frame = pd.DataFrame(rows).assign(
        group="pair", layer=0, metric="loss", unit="nats", n_controls=8
    )
    return frame.astype({"head": "Int64"})


def test_singles_stand_on_each_other_beside_their_sum_and_the_joint_effect():
    ax = plots.plot_joint(group(), group="pair")
    bars = [(bar.get_y(), bar.get_height()) for bar in ax.patches]
    np.testing.assert_allclose(bars, [(0, 0.5), (0.5, 0.25), (0, 0.75), (0, 3.0), (0, 0.1)])
    assert ax.patches[3].get_facecolor() == matplotlib.colors.to_rgba(ORANGE)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == [
        "L0H0", "L0H1", "sum of\nsingles", "all\ntogether", "as many others,\nmean of 8 sets"
    ]  # fmt: skip
    (whiskers,) = (c for c in ax.collections if c.get_gid() == "whiskers")
    ends = [np.asarray(path.vertices)[:, 1].tolist() for path in whiskers.get_paths()]
    np.testing.assert_allclose(ends[1], [0.7, 0.8])  # the second head stands on the first
    assert ends[-2:] == [[2.5, 3.5], [0.0, 0.3]]
    assert ax.get_ylabel() == "change in loss (nats; up is worse)"
    tiny = group().assign(delta=[2e-7, 1e-7, 1e-7])
    ax = plots.plot_joint(tiny, group="pair")
    assert ax.get_ylim()[0] <= 0  # with a tick of its own
    assert [text.get_text() for text in ax.texts][:2] == ["+1e-07", "+1e-07"]
    with pytest.raises(ValueError, match=r"unknown group of this table 'par'; .* mean 'pair'\?"):
        plots.plot_joint(group(), group="par")


def test_values_stand_between_alone_and_last():
    frame = pd.DataFrame(
        {"layer": 0, "head": [0, 2], "value": [1.0, 2.0], "ci_low": 0.9, "ci_high": 2.1,
         "alone": [0.1, 0.2], "last": [2.0, 3.5], "joint": 3.0, "metric": "loss", "unit": "nats"}
    )  # fmt: skip
    ax = plots.plot_shapley(frame)
    assert [bar.get_height() for bar in ax.patches] == [1.0, 2.0]
    for name in ("alone", "last"):
        (dots,) = (c for c in ax.collections if c.get_gid() == name)
        np.testing.assert_allclose(dots.get_offsets().data[:, 1], frame[name])
    assert ax.get_title(loc="left") == "Each head's share of +3.00 nats together"


def test_sets_only_are_no_grid_and_unknown_metrics_are_told():
    frame = effects([1.0]).assign(head=pd.array([None], dtype="Int64"), heads="L0H0,L1H1")
    frame = frame.assign(mode="zero")
    with pytest.raises(ValueError, match="must have rows of single heads to be a grid, got sets"):
        plots.plot_effects(frame)
    with pytest.raises(ValueError, match="unknown metric of this table 'lost'"):
        plots.plot_effects(frame, metric="lost")
    names = [label.get_text() for label in plots.plot_ablation(frame).get_xticklabels()]
    assert names == ["L0H0\nL1H1"]
