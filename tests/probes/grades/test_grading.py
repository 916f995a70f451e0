"""Grades of labels, by hand on a dozen heads and against brute force."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.grades.grading import (
    GRADED_HEADS,
    SCORED,
    average_precision,
    class_grades,
    confusion,
    false_positives,
    flags,
    gain_recall,
    tabled,
    variant_grades,
)

UNSCORED = (math.nan,) * len(SCORED)


def graded(*heads, labeler="ours"):
    """A table of heads, each (truth, label) or (truth, label, {what differs})."""
    rows = []
    for place, (truth, label, *more) in enumerate(heads):
        own = {
            "seed": 0, "number": 0, "layer": 0, "head": place, "truth": truth, "variant": "plain",
            "beta": 8.0, "silent": False, "redundant_with": "", "parts": "", "model": "",
            "labeler": labeler, "label": label, "said_silent": False, "said_redundant_with": "",
            "said_mixture": "", **dict(zip(SCORED, UNSCORED, strict=True)),
            **(more[0] if more else {}),
        }  # fmt: skip
        rows.append(tuple(own[name] for name in GRADED_HEADS.names))
    return tabled(rows, GRADED_HEADS)


def numbers(frame, name, columns=("n_heads", "precision", "recall", "f1")):
    """What a table says in one row."""
    return [frame[column].to_dict()[name] for column in columns]


def test_precision_recall_and_f1_of_each_class_and_their_mean():
    heads = graded(
        ("previous", "previous"),
        ("previous", "previous"),
        ("previous", "none"),
        ("current", "previous"),
        ("current", "current"),
        ("none", "broad"),
        ("none", "current"),
        ("previous", "none", {"beta": 4.0}),
        ("mixed", "previous", {"variant": "mixture"}),
        ("previous", "mixed", {"variant": "lopsided"}),
    )
    grades = class_grades(heads).set_index("class")
    assert numbers(grades, "previous") == [3, *[pytest.approx(2 / 3)] * 3]
    assert numbers(grades, "current") == [2, 0.5, 0.5, 0.5]
    assert numbers(grades, "none") == [2, 0.5, 0.5, 0.5]
    assert math.isnan(numbers(grades, "induction")[2])
    assert numbers(grades, "macro")[0] == 7


def test_a_class_that_is_there_and_never_answered_has_no_f1():
    heads = graded(("induction", "none", {"induction": 0.3}), ("none", "none"))
    grades = class_grades(heads).set_index("class")
    assert numbers(grades, "induction") == [1, 0, 0, 0]


def test_a_class_that_a_labeler_does_not_know_is_no_fault_of_its_mean():
    heads = graded(("induction", "none"), ("none", "none"), ("previous", "previous"))
    grades = class_grades(heads).set_index("class")
    assert numbers(grades, "induction", ("n_heads",)) == [1]
    assert all(map(math.isnan, numbers(grades, "induction", ("precision", "recall", "f1"))))
    assert numbers(grades, "macro") == [3, 0.75, 1.0, pytest.approx((1 + 2 / 3) / 2)]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.1, 0.3, 0.3000001, 0.8, math.nan])),
        min_size=1,
        max_size=12,
    )
)
def test_average_precision_is_the_sum_over_thresholds(pairs):
    is_it = np.array([one for one, _ in pairs])
    score = np.array([number for _, number in pairs])
    got = average_precision(is_it, score)
    if not is_it.any():
        assert math.isnan(got)
        return
    filled = np.where(np.isnan(score), -1.0, score)
    area, before = 0.0, 0.0
    for cut in sorted(set(filled), reverse=True):
        said = filled >= cut
        recall = (is_it & said).sum() / is_it.sum()
        area += (recall - before) * (is_it & said).sum() / said.sum()
        before = recall
    assert got == pytest.approx(area)


def test_confusion_tells_near_misses_and_mixtures_apart():
    heads = graded(
        ("none", "first", {"variant": "one row late"}),
        ("none", "none", {"variant": "one row late"}),
        ("none", "none", {"variant": "offset 2"}),
        ("mixed", "mixed", {"variant": "mixture"}),
        ("first", "first"),
        ("first", "none", {"beta": 2.0}),
    )
    rows = confusion(heads)[["truth", "label", "n_heads"]].to_numpy().tolist()
    assert rows == [
        ["first", "first", 1],
        ["mixture", "mixed", 1],
        ["none: offset 2", "none", 1],
        ["none: one row late", "first", 1],
        ["none: one row late", "none", 1],
    ]


def test_recall_by_gain_counts_no_label_apart_from_a_wrong_one():
    heads = graded(
        ("previous", "previous", {"beta": 2.0}),
        ("previous", "broad", {"beta": 2.0}),
        ("previous", "current", {"beta": 2.0}),
        ("previous", "previous", {"beta": 8.0}),
        ("none", "none", {"beta": 8.0}),
    )
    rows = gain_recall(heads, [2.0, 8.0])[["beta", "n_heads", "recall", "wrong"]]
    assert rows.to_numpy().tolist() == [
        [2.0, 3, pytest.approx(1 / 3), pytest.approx(1 / 3)],
        [8.0, 1, 1, 0],
    ]


def test_even_broad_and_none_are_no_discovery():
    heads = graded(*(("none", name) for name in ("none", "uniform", "broad", "first")))
    row = false_positives(heads).iloc[0]
    assert (row["n_heads"], row["n_labelled"], row["rate"]) == (4, 1, 0.25)


def test_right_answers_by_variant_and_model():
    heads = graded(
        ("previous", "previous", {"model": "LN, rotary, 2 key heads, rotated"}),
        ("previous", "none", {"model": "LN, absolute, 2 key heads, rotated"}),
        ("mixed", "mixed", {"variant": "mixture", "model": "RMS, absolute, 4 key heads, rotated"}),
        ("current", "none", {"beta": 2.0, "model": "RMS, absolute, 4 key heads, rotated"}),
    )
    told = {row["variant"]: row for row in variant_grades(heads).to_dict("records")}
    assert (told["head: plain"]["n_heads"], told["head: plain"]["right"]) == (2, 0.5)
    assert told["head: mixture"]["right"] == 1.0
    assert told["model: LN, rotated"]["n_heads"] == 2
    assert told["model: rotary"]["right"] == 1.0
    assert told["model: rotated"]["n_heads"] == 3


def test_flags():
    mixture = {"variant": "mixture", "parts": "previous 0.52 + first 0.48"}
    heads = graded(
        ("first", "first", {"silent": True, "said_silent": True}),
        ("first", "first", {"silent": True}),
        ("first", "first", {"said_silent": True}),
        ("mixed", "mixed", {**mixture, "said_mixture": "previous 0.52 + first 0.50"}),
        ("mixed", "previous", {**mixture, "said_mixture": "previous 0.52 + first 0.40"}),
        (
            "current",
            "current",
            {"variant": "twin", "redundant_with": "L0H6", "said_redundant_with": "L0H1,L0H6"},
        ),
        ("current", "current", {"variant": "twin", "redundant_with": "L0H5"}),
    )
    told = flags(heads).set_index("flag")
    columns = ("n_heads", "precision", "recall")
    assert numbers(told, "silent", columns) == [2, 0.5, 0.5]
    assert numbers(told, "mixed", columns) == [2, 1.0, 0.5]
    assert numbers(told, "parts", ("n_heads", "recall")) == [2, 0.5]
    assert numbers(told, "redundant", ("n_heads", "recall")) == [2, 0.5]
