"""Estimates beside exact ablations: the tables agree with their parts, and ranks with scipy."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from lab.tasks.registry import get_task
from probes.ablation.sweep import Ablation
from probes.ablation.table import ablation_sweep, mean_reference
from probes.first_order.agreement import FirstOrderPlan, first_order_study
from probes.first_order.attribution_patching import estimated_ablations
from probes.first_order.importance import head_importance
from probes.schemas.first_order import AGREEMENT, FIRST_ORDER

TASK = get_task("reversal", length=6, n_symbols=4)


@pytest.fixture(scope="module")
def study(small_model, repeating_batch):
    return first_order_study(
        small_model, repeating_batch, plan=FirstOrderPlan(grad_drop=True, top=2)
    )


def test_heads_are_the_tables_that_each_measure_gives(small_model, repeating_batch, study):
    frame = study.heads
    assert frame.columns.tolist() == FIRST_ORDER.names
    exact = ablation_sweep(small_model, repeating_batch, metrics=["loss"])
    exact = exact[exact["head"].notna()]
    for name in ("baseline", "ablated", "delta", "ci_low", "ci_high"):
        np.testing.assert_allclose(frame[name], exact[name], atol=1e-12)
    estimates = estimated_ablations(small_model, repeating_batch, grad_drop=True)
    for name in ("estimate", "grad_drop"):
        np.testing.assert_allclose(frame[name], estimates[name], atol=1e-13)
    for name, reduce in (("", "example"), ("_token", "token"), ("_batch", "batch")):
        importance = head_importance(small_model, repeating_batch, reduce)["importance"]
        np.testing.assert_allclose(frame[f"importance{name}"], importance, atol=1e-13)


def test_agreement_is_spearmans_and_counts_the_same_heads(small_model, repeating_batch, study):
    frame, heads = study.agreement.set_index("estimator"), study.heads
    assert study.agreement.columns.tolist() == AGREEMENT.names
    size = heads["delta"].abs()
    by_layer = head_importance(small_model, repeating_batch, normalise="layer")["importance"]
    pairs = {
        "attribution patching": (heads["estimate"], heads["delta"]),
        "importance by example": (heads["importance"], size),
        "importance by example / layer": (by_layer, size),
        "importance by token": (heads["importance_token"], size),
        "importance by batch": (heads["importance_batch"], size),
        "GradDrop": (heads["grad_drop"], size),
    }
    assert frame.index.tolist() == list(pairs)
    for name, (estimate, change) in pairs.items():
        row = frame.loc[name]
        exact = spearmanr(estimate.to_numpy(), change.to_numpy()).statistic
        assert row["spearman"] == pytest.approx(exact)
        best = [set(values.abs().nlargest(2).index) for values in (estimate, change)]
        assert row["shared"] == len(best[0] & best[1])
        assert row["shared_chance"] == pytest.approx(4 / 6)
        assert -1 <= row["ci_low"] <= row["ci_high"] <= 1
    assert frame["ci_low"].lt(frame["ci_high"]).any()


def test_resampling_takes_the_same_sequences_of_both(build_model, repeating_batch):
    """To first order an ablation of next to nothing is its estimate, in every resample."""
    nearly = Ablation(value=1.0 - 1e-6)
    frame = first_order_study(build_model(), repeating_batch, nearly, "margin").agreement
    row = frame.iloc[0]
    assert (row["spearman"], row["ci_low"], row["ci_high"]) == (1.0, 1.0, 1.0)
    assert row["shared"] == row["top"] == 3


def test_mean_ablation_and_one_sequence(small_model, repeating_batch):
    reference = mean_reference(small_model, TASK.sample(7, seed=0, split="reference"))
    ablation = Ablation(mode="mean", reference=reference)
    study = first_order_study(small_model, repeating_batch[:1], ablation)
    exact = ablation_sweep(small_model, repeating_batch[:1], ablation, metrics=["loss"])
    exact = exact[exact["head"].notna()]
    np.testing.assert_allclose(study.heads["delta"], exact["delta"], atol=1e-12)
    estimates = estimated_ablations(small_model, repeating_batch[:1], ablation)
    np.testing.assert_allclose(study.heads["estimate"], estimates["estimate"], atol=1e-13)
    importance = head_importance(small_model, repeating_batch[:1])["importance"]
    np.testing.assert_allclose(study.heads["importance"], importance, atol=1e-13)
    assert study.agreement["ci_low"].isna().all()
    assert study.agreement["spearman"].notna().all()


def test_grad_drop_needs_another_layer(build_model, repeating_batch):
    frame = first_order_study(
        build_model(n_layers=1), repeating_batch, plan=FirstOrderPlan(grad_drop=True)
    )
    assert frame.heads["grad_drop"].isna().all()
    assert np.isnan(frame.agreement["spearman"].iloc[-1])


@pytest.mark.usefixtures("as_a_user")
def test_wrong_requests_are_refused(small_model, repeating_batch):
    with pytest.raises(ValueError, match="top must be a whole number of at least 1, got 0"):
        first_order_study(small_model, repeating_batch, plan=FirstOrderPlan(top=0))
    with pytest.raises(ValueError, match="unknown normalise 'layers'"):
        first_order_study(small_model, repeating_batch, plan=FirstOrderPlan(normalise="layers"))
    with pytest.raises(ValueError, match="metric must have a first-order change, got kl"):
        first_order_study(small_model, repeating_batch, metric="kl")
    with pytest.raises(ValueError, match="got 0 sequences"):
        first_order_study(small_model, torch.zeros(0, 4, dtype=torch.long))


@pytest.mark.parametrize(("reduce", "normalise"), [("batch", "layer"), ("token", "param")])
def test_the_importance_that_was_asked_for_is_compared(
    small_model, repeating_batch, reduce, normalise
):
    study = first_order_study(
        small_model, repeating_batch, plan=FirstOrderPlan(reduce=reduce, normalise=normalise)
    )
    own = head_importance(small_model, repeating_batch, reduce, normalise)["importance"]
    rows = study.agreement.set_index("estimator")["spearman"]
    exact = spearmanr(own.to_numpy(), study.heads["delta"].abs().to_numpy()).statistic
    assert rows[f"importance by {reduce} / {normalise}"] == pytest.approx(exact)
    plain = first_order_study(
        small_model, repeating_batch, plan=FirstOrderPlan(reduce=reduce, normalise="none")
    )
    assert not any("/" in name for name in plain.agreement["estimator"])
