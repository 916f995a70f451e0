"""Dots are the heads, exact across and estimated up; a title says how well the ranks agree."""

import pandas as pd
import pytest

from probes import plots

HEADS = pd.DataFrame(
    {"layer": 0, "head": [0, 1, 2], "delta": [-1.0, 0.5, 0.0], "ci_low": -1.0, "ci_high": 1.0,
     "estimate": [-0.5, 0.4, 0.1], "importance": [0.6, 0.4, 0.2], "metric": "margin",
     "unit": "logit"}
)  # fmt: skip
AGREEMENT = pd.DataFrame(
    {"estimator": ["attribution patching", "importance by example"], "spearman": [0.5, 0.75],
     "ci_low": [0.25, 0.5], "ci_high": [0.75, 1.0], "shared": [1, 2], "top": 2}
)  # fmt: skip


@pytest.mark.parametrize(
    ("column", "dots", "title"),
    [
        (
            "estimate",
            [[-1.0, -0.5], [0.5, 0.4], [0.0, 0.1]],
            "Attribution patching against exact ablation\n"
            "Spearman 0.50 (95 %: 0.25 to 0.75), 1 of the top 2 shared",
        ),
        (
            "importance",
            [[1.0, 0.6], [0.5, 0.4], [0.0, 0.2]],
            "Importance by example against exact ablation\n"
            "Spearman 0.75 (95 %: 0.50 to 1.00), 2 of the top 2 shared",
        ),
    ],
)
def test_dots_are_heads_and_sizes_have_no_sign(column, dots, title):
    ax = plots.plot_first_order(HEADS, AGREEMENT, column=column, named=2)
    (heads,) = (c for c in ax.collections if c.get_gid() == "heads")
    assert heads.get_offsets().data.tolist() == dots
    assert ax.get_title(loc="left") == title
    assert [text.get_text() for text in ax.texts] == ["L0H0", "L0H1"]


def test_unknown_estimate_is_told():
    with pytest.raises(ValueError, match="unknown estimate 'estimates'; choose from estimate, gra"):
        plots.plot_first_order(HEADS, AGREEMENT, column="estimates")


def test_heads_on_one_spot_share_a_name_and_the_line_is_told():
    heads = pd.concat([HEADS, HEADS.tail(1).assign(head=3, delta=0.01)], ignore_index=True)
    heads["estimate"] *= 1e-7
    ax = plots.plot_first_order(heads, AGREEMENT)
    assert [text.get_text() for text in ax.texts] == ["L0H0", "L0H1", "L0H2\nL0H3"]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["equal to the exact change"]
    ax.figure.canvas.draw()
    assert ax.yaxis.get_offset_text().get_text() == ""
    ticks = [label.get_text() for label in ax.get_yticklabels()]
    assert all(tick == "0" or tick[-2:] in ("07", "08") for tick in ticks)
