"""Labels have a colour and a name each, and a confusion matrix counts what it is given."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from probes import plots
from probes.plots.canvas import INK, ink_on
from probes.plots.labels import ENTRIES, label_colour


def labelled(*rows: tuple[int, int, str, str, float, bool]) -> pd.DataFrame:
    names = ("layer", "head", "label", "strength", "score", "silent")
    return pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])


FRAME = labelled(
    (0, 0, "previous", "strong", 0.97, False),
    (0, 4, "first", "weak", 0.31, True),
    (2, 0, "reversal", "strong", 0.88, False),
    (2, 1, "none", "", 0.12, False),
)


def test_each_head_stands_in_its_place_with_label_and_score():
    ax = plots.plot_labels(FRAME)
    cells = {patch.get_gid(): patch for patch in ax.patches if patch.get_gid()}
    # Layer 1 and heads 2 and 3 are gone: rows and columns are the numbers that are left.
    assert {label: (cell.get_x() // 1, cell.get_y() // 1) for label, cell in cells.items()} == {
        "previous": (0, 0), "first": (2, 0), "reversal": (0, 1), "none": (1, 1)
    }  # fmt: skip
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "4"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0", "2"]
    assert to_rgb(cells["previous"].get_facecolor()) == to_rgb(label_colour("previous"))
    # A weak label is pale in a frame of its own colour.
    assert to_rgb(cells["first"].get_edgecolor()) == to_rgb(label_colour("first"))
    assert sum(to_rgb(cells["first"].get_facecolor())) > sum(to_rgb(label_colour("first")))
    texts = {text.get_text() for text in ax.texts}
    assert texts == {"prev", "0.97", "first", "0.31", "rev", "0.88", "-"}
    assert len(ax.lines) == 1  # the silent head is struck through
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["reversal (1)", "previous (1)", "first (1)", "none (1)", "silent (1)",
                      "pale: weak"]  # fmt: skip


def test_no_two_labels_look_alike_even_without_red_and_green():
    """Distances as a person without the red receptors sees them (Vienot et al. 1999)."""
    seen = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
    assert label_colour("reversal") == label_colour("sources")
    for one, other in itertools.combinations(ENTRIES.values(), 2):
        linear = [np.array(to_rgb(entry.colour)) ** 2.2 for entry in (one, other)]
        assert np.abs(seen @ linear[0] - seen @ linear[1]).max() > 0.08, (one.name, other.name)


@pytest.mark.parametrize("colour", [entry.colour for entry in ENTRIES.values()])
def test_text_on_every_label_can_be_read(colour):
    def luminance(c):
        parts = np.array(to_rgb(c))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    dark, light = sorted((luminance(ink_on(colour)), luminance(colour)))
    assert (light + 0.05) / (dark + 0.05) >= 3.5  # WCAG asks for 3 of large text


def test_a_confusion_matrix_counts_heads_by_truth_and_label():
    counts = {("previous", "previous"): 48, ("previous", "none"): 2, ("off_by_one", "none"): 50}
    frame = pd.DataFrame(
        [{"truth": t, "label": label, "n_heads": n} for (t, label), n in counts.items()]
    )
    ax = plots.plot_confusion(frame)
    (mesh,) = (artist for artist in ax.collections if isinstance(artist, QuadMesh))
    np.testing.assert_allclose(np.asarray(mesh.get_array()), [[0.96, 0.04], [0.0, 1.0]])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["previous", "off_by_one"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["previous", "none"]
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {(0.5, 0.5): "48", (1.5, 0.5): "2", (1.5, 1.5): "50"}
    framed = [p.get_xy() for p in ax.patches if isinstance(p, Rectangle)]
    assert framed == [(0, 0)]
    assert {p.get_edgecolor()[:3] for p in ax.patches} == {to_rgb(INK)}
