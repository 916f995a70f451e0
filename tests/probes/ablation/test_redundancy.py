"""Groups of heads that are known to stand in for each other, and what must be said of each head.

The planted heads here answer a reversal task; a logit that is right by one head is right without
its twin. Every number is compared with an evaluation of the gated model.
"""

import math

import numpy as np
import pytest
import torch

from lab.evaluation import evaluate
from lab.gates import HeadGates
from lab.naming import parse_head
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.ablation.matched_sets import draw_matched_sets
from probes.ablation.redundancy import Change, RedundancyPlan, head_redundancy, label_groups
from probes.ablation.shapley import shapley_values
from probes.labels.head_labels import label_heads
from probes.planted import PlantedHead, plant
from probes.schemas.cause import REDUNDANCY

COPY = PlantedHead(kind="reversal", beta=12.0, writes="copy")
AGAINST = PlantedHead(kind="reversal", beta=12.0, writes="anti_copy")
MARK = PlantedHead(kind="current", beta=12.0)
DEAD = PlantedHead(kind="first", beta=12.0, writes="nothing")
TASK = get_task("reversal", length=6, n_symbols=20)


def planted(*heads, against=1.0):
    """Return a model of one layer of heads, and sequences of its task with different letters."""
    model = plant([heads], word=6, d_vocab=22).model
    with torch.no_grad():
        for i, head in enumerate(heads):
            if head.writes == "anti_copy":
                model.blocks[0].attn.W_O[i] *= against
    symbols = torch.stack([torch.randperm(20, generator=g)[:6] + 2 for g in generators(12)])
    return model, TASK.sequences(symbols)


def generators(n):
    return [torch.Generator().manual_seed(i) for i in range(n)]


def verdicts(frame):
    return dict(zip(frame["group"] + frame["head"].map(str), frame["verdict"], strict=True))


def test_twins_can_go_one_by_one_but_not_together():
    model, batch = planted(COPY, COPY, DEAD, MARK)
    groups = {"sources": [(0, 1), (0, 0)], "other": [(0, 2), (0, 3)]}
    frame = head_redundancy(model, batch, groups, plan=RedundancyPlan(metric="token_accuracy"))
    assert frame.columns.tolist() == REDUNDANCY.names
    assert verdicts(frame) == {
        "sources<NA>": "needed",
        "sources0": "redundant",
        "sources1": "redundant",
        "other<NA>": "useless",
        "other2": "useless",
        "other3": "useless",
    }
    rows = frame[frame["group"] == "sources"]
    assert rows["heads"].unique().tolist() == ["L0H0,L0H1"]
    assert rows["baseline"].tolist() == [1.0] * 3
    assert rows["delta"].iloc[1:].tolist() == [0.0, 0.0]
    assert rows["delta"].iloc[0] <= -0.9
    assert rows["singles"].iloc[0] == 0.0
    # With its twin gone, each of them is all there is.
    assert rows["last"].iloc[1:].tolist() == [rows["delta"].iloc[0]] * 2
    assert rows["control"].iloc[0] == 0.0
    assert rows["control_in_layers"].iloc[0] == 1.0
    assert rows["n_controls"].tolist() == [1, 0, 0]  # there is one other pair


def test_a_single_head_of_its_kind_is_needed():
    model, batch = planted(COPY, DEAD, MARK)
    frame = head_redundancy(
        model, batch, {"sources": [(0, 0)]}, plan=RedundancyPlan(metric="token_accuracy")
    )
    assert frame["verdict"].tolist() == ["needed", "needed"]
    assert frame["delta"].iloc[0] == frame["delta"].iloc[1] == frame["last"].iloc[1]


def test_a_dead_head_among_twins_is_useless_once_every_set_was_tried():
    model, batch = planted(COPY, COPY, DEAD, MARK)
    groups = {"three": [(0, 0), (0, 1), (0, 2)]}
    some = head_redundancy(model, batch, groups, plan=RedundancyPlan(metric="token_accuracy"))
    assert some["verdict"].tolist() == ["needed", "redundant", "redundant", "unresolved"]
    assert some["value"].isna().all()
    every = head_redundancy(
        model, batch, groups, plan=RedundancyPlan(metric="token_accuracy", every_set=True)
    )
    assert every["verdict"].tolist() == ["needed", "redundant", "redundant", "useless"]
    shares = shapley_values(model, batch, groups["three"], metrics=["token_accuracy"])
    np.testing.assert_allclose(every["value"].iloc[1:], shares["value"], atol=1e-12)
    assert every["value"].iloc[1:].sum() == pytest.approx(every["delta"].iloc[0])
    assert every["value"].iloc[3] == pytest.approx(0.0, abs=1e-15)


def test_two_of_three_that_are_enough_hide_from_one_and_from_all_but_one():
    """Three heads for the answer, one of weight 1.5 against it: two are enough, one is not."""
    model, batch = planted(COPY, COPY, COPY, AGAINST, against=1.5)
    groups = {"sources": [(0, 0), (0, 1), (0, 2)]}
    some = head_redundancy(model, batch, groups, plan=RedundancyPlan(metric="exact_match"))
    assert some["delta"].tolist() == [-1.0, 0.0, 0.0, 0.0]
    assert some["last"].iloc[1:].tolist() == [0.0, 0.0, 0.0]
    assert set(some["verdict"].iloc[1:]) == {"unresolved"}
    every = head_redundancy(
        model, batch, groups, plan=RedundancyPlan(metric="exact_match", every_set=True)
    )
    assert set(every["verdict"].iloc[1:]) == {"redundant"}
    np.testing.assert_allclose(every["value"].iloc[1:], -1.0 / 3.0, atol=1e-12)


def test_nothing_is_claimed_where_nothing_is_scored():
    model, batch = planted(COPY, COPY, DEAD, MARK)
    blank = Batch(batch.tokens, torch.zeros_like(batch.loss_mask), batch.sources)
    for every_set in (False, True):
        frame = head_redundancy(
            model, blank, {"a": [(0, 0), (0, 1)]}, plan=RedundancyPlan(every_set=every_set)
        )
        assert frame["delta"].isna().all()
        assert frame["verdict"].tolist() == ["unresolved"] * 3


def test_numbers_are_those_of_the_gated_model(small_model, repeating_batch):
    groups = {"a": [(0, 0), (1, 1), (1, 2)], "b": [(0, 1)]}
    frame = head_redundancy(
        small_model, repeating_batch, groups, plan=RedundancyPlan(controls=3), seed=5
    )

    def loss_without(heads):
        gates = HeadGates.ablate(heads, like=small_model)
        return evaluate(small_model, repeating_batch, gates=gates).loss

    whole = loss_without([])
    np.testing.assert_allclose(frame["baseline"], whole, atol=1e-12)
    for row in frame[frame["head"].notna()].itertuples():
        heads = [parse_head(label) for label in row.heads.split(",")]
        own = (int(row.layer), int(row.head))
        rest = [head for head in heads if head != own]
        assert row.delta == pytest.approx(loss_without([own]) - whole, abs=1e-10)
        assert row.last == pytest.approx(loss_without(heads) - loss_without(rest), abs=1e-10)
        assert row.last_ci_low <= row.last <= row.last_ci_high
        assert math.isnan(row.control) and math.isnan(row.singles)
    joint = frame.iloc[0]
    assert joint["delta"] == pytest.approx(loss_without(groups["a"]) - whole, abs=1e-10)
    assert joint["singles"] == pytest.approx(frame["delta"].iloc[1:4].sum(), abs=1e-12)
    pool = [(layer, head) for layer in range(2) for head in range(3)]
    others = [loss_without(one) - whole for one in draw_matched_sets(groups["a"], pool, 3, seed=5)]
    assert joint["n_controls"] == len(others) == 1
    assert joint["control"] == pytest.approx(np.mean(others), abs=1e-10)
    assert joint["control_in_layers"] == pytest.approx(1.0)
    assert joint[["last", "last_ci_low", "last_ci_high", "value"]].isna().all()


def test_groups_are_the_labels():
    model, batch = planted(COPY, COPY, DEAD, PlantedHead(kind="uniform"))
    labels = label_heads(model, batch)
    assert label_groups(labels) == {
        "first": ((0, 2),),
        "sources": ((0, 0), (0, 1)),
        "uniform": ((0, 3),),
    }
    frame = head_redundancy(model, batch, plan=RedundancyPlan(controls=2, metric="margin"))
    assert frame["group"].unique().tolist() == ["first", "sources", "uniform"]


@pytest.mark.parametrize(
    ("change", "better", "hurts"),
    [
        ((0.02, 0.01, 0.03), "lower", True),
        ((0.02, 0.01, 0.03), "higher", False),
        ((-0.02, -0.03, -0.01), "higher", True),
        ((-0.02, -0.03, -0.01), "lower", False),
        ((-0.02, -0.03, -0.01), None, True),  # nobody said what is better
        ((0.005, 0.004, 0.006), "lower", False),  # sure, but small
        ((0.02, -0.01, 0.05), "lower", False),  # large, but not sure
        ((0.02, math.nan, math.nan), "lower", True),  # one sequence: no interval
        ((math.nan, math.nan, math.nan), "lower", False),
    ],
)
def test_what_hurts(change, better, hurts):
    delta, low, high = change
    assert Change(delta=delta, ci_low=low, ci_high=high).hurts(better, 0.01) is hurts


def test_wrong_groups_are_refused(small_model, repeating_batch):
    with pytest.raises(ValueError, match="groups must be at least one set of heads, got none"):
        head_redundancy(small_model, repeating_batch, {})
    with pytest.raises(ValueError, match="a group must have at least one head, got none in 'a'"):
        head_redundancy(small_model, repeating_batch, {"a": []})
    with pytest.raises(ValueError, match=r"unknown head 'L0H9'"):
        head_redundancy(small_model, repeating_batch, {"a": [(0, 9)]})
    with pytest.raises(ValueError, match="tolerance must be a number of at least 0, got -1"):
        head_redundancy(
            small_model, repeating_batch, {"a": [(0, 1)]}, plan=RedundancyPlan(tolerance=-1.0)
        )
