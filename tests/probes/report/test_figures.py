"""The sheets of a report: what is on them, and that they fit models of few and of many heads."""

import numpy as np
import pandas as pd
import pytest

from lab.tasks.registry import get_task
from probes import plots
from probes.attention.entropy import entropy_profile
from probes.report import figures


@pytest.fixture
def entropy(small_model, repeating_batch) -> pd.DataFrame:
    return entropy_profile(small_model, repeating_batch)


def of_size(entropy: pd.DataFrame, n_layers: int, n_heads: int) -> pd.DataFrame:
    """Return the table as if the model had other heads."""
    own = entropy[(entropy["layer"] == 0) & (entropy["head"] == 0)]
    return pd.concat(
        [own.assign(layer=a, head=b) for a in range(n_layers) for b in range(n_heads)],
        ignore_index=True,
    )


def test_each_head_has_a_panel_of_its_own_with_its_two_lines(entropy) -> None:
    sheet = figures.entropy_sheet(entropy)
    pairs = entropy[["layer", "head"]].drop_duplicates().to_numpy().tolist()
    assert [ax.get_title(loc="left") for ax in sheet.axes] == [f"L{a}H{b}" for a, b in pairs]
    for ax, (layer, head) in zip(sheet.axes, pairs, strict=True):
        own = entropy[(entropy["layer"] == layer) & (entropy["head"] == head)]
        ceiling, whole, sink_free = (line.get_ydata() for line in ax.lines)
        assert np.allclose(ceiling, np.log(own["query_pos"] + 1.0))
        assert np.array_equal(whole, own["entropy"])
        assert np.array_equal(sink_free, own["sink_free"], equal_nan=True)
        assert ax.get_ylim() == sheet.axes[0].get_ylim()


def test_a_pruned_head_leaves_its_panel_empty(entropy) -> None:
    left = entropy[(entropy["layer"] != 0) | (entropy["head"] != 0)]
    first, *others = figures.entropy_sheet(left).axes
    assert not first.axison and not first.lines
    assert all(len(ax.lines) == 3 for ax in others)


def test_many_heads_become_rows(entropy) -> None:
    sheet = figures.entropy_sheet(of_size(entropy, 12, 12))
    whole, sink_free, _ = sheet.axes
    for ax, value in ((whole, "normalised"), (sink_free, "sink_free_normalised")):
        grid = ax.collections[0].get_array().reshape(144, -1)
        own = entropy[(entropy["layer"] == 0) & (entropy["head"] == 0)][value]
        assert np.allclose(grid.filled(np.nan), own.to_numpy(), equal_nan=True)
    labels = [text.get_text() for text in whole.get_yticklabels()]
    assert labels == [f"L{layer}H0" for layer in range(12)]


def test_no_sheet_is_a_ribbon_however_many_heads() -> None:
    names = ("sources", "sources_plus_1", "previous", "current", "first", "duplicate", "induction")
    for n_layers, n_heads in ((1, 1), (2, 4), (4, 8), (12, 12)):
        rows = [
            {"layer": a, "head": b, "probe": name, "score": 0.5}
            for a in range(n_layers) for b in range(n_heads) for name in names
        ]  # fmt: skip
        width, height = figures.score_grids(pd.DataFrame(rows)).get_size_inches()
        assert max(width, height) <= 26
        assert 1 / 4 <= width / height <= 6


def test_titles_keep_away_from_the_edge(small_model) -> None:
    from probes.attention.maps import attention_map

    batch = get_task("reversal", length=3, n_symbols=4).sample(1, seed=0)
    sheet = figures.attention_sheet(attention_map(small_model, batch, layer=0, head=0))
    plots.png_bytes(sheet, dpi=50)
    top = sheet.get_window_extent().y1 - sheet.axes[0]._left_title.get_window_extent().y1
    assert top >= 0.08 * sheet.dpi
