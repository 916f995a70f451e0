"""`headlab card`: what it prints and writes. What it reaches is tests/probes/grades's."""

import math

import pandas as pd
import pytest

from apps.cli import main
from probes.grades import card as card_module
from probes.grades.card import DETECTOR, MEANS, OURS, graded_card
from probes.grades.grading import SCORED


@pytest.fixture
def small(monkeypatch):
    """The card of answers that nobody has measured: what is right, and one mistake."""

    def answered(seeds, jobs, progress):
        heads = [("previous", "plain", 8.0), ("none", "one row late", 8.0), ("none", "x", math.nan)]
        rows = []
        for place, (truth, variant, beta) in enumerate(heads):
            seed = -1 if variant == "x" else seeds[0]
            own = (
                seed,
                0,
                0,
                place,
                truth,
                variant,
                beta,
                False,
                "",
                "",
                "LN, absolute, 8 key heads, rotated",
            )
            for labeler in (OURS, DETECTOR, MEANS):
                label = "previous" if labeler == MEANS else truth
                scores = [0.9 if name == "previous" else math.nan for name in SCORED]
                rows.append((*own, labeler, label, False, "", "", *scores))
        progress(1, 1)
        return graded_card(rows)

    monkeypatch.setattr(card_module, "measure_card", answered)


def test_card_prints_grades_confusions_and_false_positives(small, capsys):
    assert main(["card", "--seeds", "tuning"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 planted models of seeds 0 to 99, 2 heads; the labels' thresholds were")
    wanted = ("precision", "PR-AUC", "detect_head at 0.4", "bare means at 0.4", "macro", "silent")
    for text in (
        *wanted,
        "none: one row",
        "head: one row late",
        "model: LN, rotated",
        "calls by their name, by gain",
        "random weights",
    ):
        assert text in out, text


def test_card_writes_its_tables_and_pictures(small, capsys, tmp_path):
    out = tmp_path / "card"
    assert main(["card", "--out", str(out)]) == 0
    names = ("heads", "grades", "confusion", "recall", "variants", "flags", "false_positives")
    for name in names:
        assert {f"{name}.{kind}" for kind in ("csv", "parquet", "json")} <= {
            path.name for path in out.iterdir()
        }
    assert len(list(out.glob("confusion-*.png"))) == 3
    heads = pd.read_parquet(out / "heads.parquet")
    assert len(heads) == 3 * 3


def test_card_stopped_by_ctrl_c_says_so_in_a_line(monkeypatch, capsys):
    def interrupted(seeds, jobs, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(card_module, "measure_card", interrupted)
    assert main(["card"]) == 130
    assert capsys.readouterr().err.endswith("headlab: stopped\n")


def test_card_refuses_an_unknown_set_of_seeds(capsys):
    assert main(["card", "--seeds", "all"]) == 2
    assert "seeds" in capsys.readouterr().err
