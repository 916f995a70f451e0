"""Metrics against closed forms, and what a function has to be to count as one."""

import math

import numpy as np
import pytest
import torch

from lab.evaluation import evaluate
from probes.ablation.metrics import DEFAULT_METRICS, METRICS, get_metrics
from probes.ablation.sweep import sweep_sets
from probes.first_order.head_gradients import gate_gradients

LOGITS = torch.tensor([[0.0, math.log(3.0), math.log(4.0)], [5.0, 5.0, 1.0]], dtype=torch.float64)
TARGETS = torch.tensor([1, 0])
WHOLE = torch.zeros(2, 3, dtype=torch.float64)


def of_rows(name):
    return get_metrics([name])[0].of_rows(LOGITS, TARGETS, WHOLE).tolist()


def test_closed_forms():
    """Probabilities 1/8, 3/8, 1/2 in the first row; a tie in the second."""
    second = 2.0 + math.exp(-4.0)
    assert of_rows("loss") == pytest.approx([math.log(8 / 3), math.log(second)])
    assert of_rows("token_accuracy") == [0.0, 1.0]
    assert of_rows("margin") == pytest.approx([math.log(3 / 4), 0.0])
    divergence = -math.log(3) - sum(map(math.log, (1 / 8, 3 / 8, 1 / 2))) / 3
    assert of_rows("kl")[0] == pytest.approx(divergence)


def test_registry_says_unit_and_direction():
    assert [metric.name for metric in METRICS[:3]] == [*DEFAULT_METRICS]
    for metric in METRICS:
        assert metric.unit
        assert metric.better in ("lower", "higher")
    assert {metric.per for metric in METRICS} == {"token", "sequence"}


def test_default_metrics_are_those_of_an_evaluation(small_model, repeating_batch):
    found = sweep_sets(small_model, repeating_batch, []).means()[0]
    whole = evaluate(small_model, repeating_batch)
    assert found == pytest.approx([getattr(whole, name) for name in DEFAULT_METRICS], abs=1e-12)


def test_function_of_ones_own_is_a_mean_over_scored_rows(small_model, repeating_batch):
    seen = []

    def brier(logits, targets, baseline):
        seen.append((len(logits), logits.requires_grad, torch.is_grad_enabled()))
        right = torch.nn.functional.one_hot(targets, logits.shape[1])
        return (logits.softmax(1) - right).square().sum(1) + 0 * baseline.sum(1)

    swept = sweep_sets(small_model, repeating_batch, [((0, 1),)], metrics=[brier, "loss"])
    assert [(metric.name, metric.unit, metric.better) for metric in swept.metrics] == [
        ("brier", "", None),
        ("loss", "nats", "lower"),
    ]
    rows = repeating_batch.loss_mask
    p = small_model(repeating_batch.tokens).detach().softmax(-1)[rows].numpy()
    right = np.eye(6)[repeating_batch.tokens.roll(-1, 1)[rows].numpy()]
    assert swept.means()[0, 0] == pytest.approx(np.square(p - right).sum(1).mean())
    assert swept.means()[1, 0] != swept.means()[0, 0]
    assert not any(of_grad or enabled for _, of_grad, enabled in seen)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["los"], r"unknown metric 'los'; choose from .* \(did you mean 'loss'\?\)"),
        ([], "metrics must be at least one name or function, got none"),
        (["loss", "loss"], "metrics must be of different names, got 'loss' twice"),
        ([3], r"a metric must be a name or a function of \(logits, targets, .*, got 3"),
    ],
)
def test_wrong_metrics_are_refused(as_a_user, wanted, message):
    with pytest.raises(ValueError, match=message):
        get_metrics(wanted)


def test_a_name_alone_is_one_metric():
    assert get_metrics("loss") == get_metrics(["loss"])


def test_function_without_a_number_a_row_is_refused(as_a_user, small_model, repeating_batch):
    def mean(logits, targets, baseline):
        return logits.mean()

    message = r"metric 'mean' must return a tensor of one number a row \[\d+\], got \[\]"
    with pytest.raises(ValueError, match=message):
        sweep_sets(small_model, repeating_batch, [], metrics=[mean])
    with pytest.raises(ValueError, match=message):
        gate_gradients(small_model, repeating_batch, mean)
