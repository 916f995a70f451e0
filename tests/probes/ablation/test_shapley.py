"""Shapley values against the mean over all orders, written out, and against what they must obey."""

import itertools
import math

import numpy as np
import pytest
import torch

from lab.evaluation import evaluate
from lab.gates import HeadGates
from probes.ablation.shapley import exact_weights, shapley_plan, shapley_values
from probes.ablation.sweep import Ablation
from probes.schemas.cause import SHAPLEY

HEADS = [(0, 0), (0, 2), (1, 0), (1, 1)]


def naive_values(model, batch, heads, metric):
    """The mean over every order of what each head's ablation adds."""
    effect = {}
    for size in range(len(heads) + 1):
        for some in itertools.combinations(heads, size):
            gates = HeadGates.ablate(some, like=model)
            effect[frozenset(some)] = getattr(evaluate(model, batch, gates=gates), metric)
    sums = dict.fromkeys(heads, 0.0)
    for order in itertools.permutations(heads):
        for i, head in enumerate(order):
            sums[head] += effect[frozenset(order[: i + 1])] - effect[frozenset(order[:i])]
    return [sums[head] / math.factorial(len(heads)) for head in heads], effect


def test_mean_over_all_orders(small_model, repeating_batch):
    frame = shapley_values(small_model, repeating_batch, HEADS, metrics=["loss", "token_accuracy"])
    assert frame.columns.tolist() == SHAPLEY.names
    for metric in ("loss", "token_accuracy"):
        rows = frame[frame["metric"] == metric]
        expected, effect = naive_values(small_model, repeating_batch, HEADS, metric)
        np.testing.assert_allclose(rows["value"], expected, atol=1e-10)
        whole, everything = effect[frozenset()], frozenset(HEADS)
        joint = effect[everything] - whole
        np.testing.assert_allclose(rows["joint"], joint, atol=1e-10)
        assert rows["value"].sum() == pytest.approx(joint, abs=1e-10)
        for row, head in zip(rows.itertuples(), HEADS, strict=True):
            assert (row.layer, row.head) == head
            assert row.alone == pytest.approx(effect[frozenset([head])] - whole, abs=1e-10)
            last = effect[everything] - effect[everything - {head}]
            assert row.last == pytest.approx(last, abs=1e-10)
            assert row.ci_low <= row.value <= row.ci_high
    assert (frame["std_error"] == 0.0).all() and (frame["n_runs"] == 16).all()


def test_interval_resamples_each_sequence_s_own_values(small_model, repeating_batch):
    """All sequences have equally many answers: the mean of their own values is the value."""
    frame = shapley_values(small_model, repeating_batch, HEADS)
    own = [
        shapley_values(small_model, repeating_batch[i : i + 1], HEADS)["value"] for i in range(5)
    ]
    np.testing.assert_allclose(np.mean(own, axis=0), frame["value"], atol=1e-10)
    assert (frame["ci_high"] <= np.max(own, axis=0) + 1e-12).all()
    assert (frame["ci_low"] >= np.min(own, axis=0) - 1e-12).all()
    alone = shapley_values(small_model, repeating_batch[:1], HEADS)
    assert alone["ci_low"].isna().all()


def test_twins_share_and_dead_heads_get_nothing(build_model, repeating_batch):
    model = build_model()
    attn = model.blocks[0].attn
    with torch.no_grad():
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            getattr(attn, name)[1] = getattr(attn, name)[0]
        model.blocks[1].attn.W_O[2] = 0.0
    frame = shapley_values(model, repeating_batch, [(0, 0), (0, 1), (1, 2), (1, 0)])
    values = frame["value"].tolist()
    assert values[0] == pytest.approx(values[1], abs=1e-12)
    assert abs(values[0]) > 1e-3
    assert values[3] == pytest.approx(0.0, abs=1e-12)  # sorted: L1H2 comes last
    assert frame["heads"].unique().tolist() == ["L0H0,L0H1,L1H0,L1H2"]


@pytest.mark.parametrize("n", range(1, 6))
def test_weights_of_every_set(n):
    weights = exact_weights(n)
    plan = shapley_plan(n, None, 0)
    assert weights.shape == (n, 2**n)
    np.testing.assert_allclose(weights.sum(axis=1), 0.0, atol=1e-15)
    joint = np.zeros(2**n)
    joint[0], joint[-1] = -1.0, 1.0
    np.testing.assert_allclose(weights.sum(axis=0), joint, atol=1e-15)
    # Of a game whose worth is the size of a set squared, every player has the mean share.
    np.testing.assert_allclose(weights @ plan.chosen.sum(axis=1) ** 2.0, n, atol=1e-12)


def test_random_orders_come_near_and_say_how_near(small_model, repeating_batch):
    exact = shapley_values(small_model, repeating_batch, HEADS)
    drawn = shapley_values(small_model, repeating_batch, HEADS, orders=60, seed=4)
    assert drawn["value"].sum() == pytest.approx(exact["joint"][0], abs=1e-10)
    assert (drawn["std_error"] > 0.0).all()
    assert ((drawn["value"] - exact["value"]).abs() < 4.0 * drawn["std_error"]).all()
    for name in ("alone", "last", "joint"):
        np.testing.assert_allclose(drawn[name], exact[name], atol=1e-12)
    assert drawn.attrs["orders"] == 60
    fewer = shapley_values(small_model, repeating_batch, HEADS, orders=15, seed=4)
    assert fewer["std_error"].sum() > drawn["std_error"].sum()


def test_a_gate_of_one_is_worth_nothing(small_model, repeating_batch):
    frame = shapley_values(small_model, repeating_batch, HEADS[:2], ablation=Ablation(value=1.0))
    np.testing.assert_allclose(frame["value"], 0.0, atol=1e-12)


def test_too_many_heads_are_refused_in_a_line(build_model, repeating_batch):
    model = build_model(n_layers=4)
    heads = [(layer, head) for layer in range(4) for head in range(3)][:10]
    with pytest.raises(ValueError, match=r"at most 9 for exact .* got 10; pass orders=100"):
        shapley_values(model, repeating_batch, heads)
    frame = shapley_values(model, repeating_batch[:2], heads, orders=2)
    assert len(frame) == 10
    assert frame["value"].sum() == pytest.approx(frame["joint"][0], abs=1e-10)
    with pytest.raises(ValueError, match="orders must be a whole number of at least 2, got 1"):
        shapley_values(model, repeating_batch, heads, orders=1)
    with pytest.raises(ValueError, match="heads must be at least one, got none"):
        shapley_values(model, repeating_batch, [])
    with pytest.raises(ValueError, match="unknown head 'L4H0'"):
        shapley_values(model, repeating_batch, [(4, 0)])


def test_where_nothing_is_scored_no_number_is_known(small_model, repeating_batch):
    frame = shapley_values(small_model, repeating_batch.tokens[:, :1], [(0, 1), (1, 2)])
    numbers = frame[["value", "ci_low", "ci_high", "std_error", "alone", "last", "joint"]]
    assert numbers.isna().all(axis=None)
    assert set(frame["n_sequences"]) == {0}
