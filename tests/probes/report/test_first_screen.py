"""The sentence of the first screen names the clearest head by its label, or says that none is."""

import pandas as pd

from probes.report.first_screen import best_head, sentence_about


def rows(*scores):
    names = ("layer", "head", "probe", "score", "chance", "kappa")
    return pd.DataFrame([dict(zip(names, row, strict=True)) for row in scores])


def test_sentence_names_the_clearest_head():
    frame = rows(
        (0, 1, "sources", 0.97, 0.06, 0.968),
        (0, 2, "sources", 0.90, 0.06, 0.894),
        (0, 3, "first", 0.99, 0.1, 0.989),
        (1, 0, "sources", 0.07, 0.06, 0.01),
    )
    assert sentence_about(frame, "reversal") == (
        "L0H1 looks like a reversal head (0.97): where it counts, it puts 97 % of its attention on "
        "the position that holds the answer (chance 6 %); so does 1 more."
    )
    assert best_head(frame.iloc[2:])["probe"] == "first"
    assert sentence_about(frame.iloc[2:]).startswith("L0H3 looks like a first-token head (0.99)")
    assert sentence_about(frame.iloc[3:]).startswith("No head stands out: the furthest above")
    assert sentence_about(rows((0, 0, "first", *[float("nan")] * 3))).startswith("No head was")
    induction = rows((1, 1, "sources", 0.8, 0.1, 0.77))
    assert "an induction head" in sentence_about(induction, "induction")


def test_sentence_calls_a_head_by_its_label():
    frame = rows((1, 0, "sources", 0.8, 0.1, 0.77), (1, 1, "sources", 0.1, 0.1, 0.0))
    for label, task, words in (
        ("sources", "reversal", "looks like a reversal head (0.80): where"),
        ("sources", "copy", "looks like a copy head (0.80): where"),
        ("sources", "induction", "looks like a source head (0.80): where"),
        ("induction", None, "looks like an induction head (0.80): where"),
        ("mixed", "reversal", "stands out (0.80): where it counts, it puts 80 %"),
    ):
        labels = pd.DataFrame({"layer": [1, 1], "head": [1, 0], "label": ["uniform", label]})
        assert sentence_about(frame, task, labels).startswith(f"L1H0 {words}")
