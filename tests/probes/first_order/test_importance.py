"""Importance against z . dM/dz by hooks, finite differences, and what it must not depend on."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lab.gates import GateTensors
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from probes.first_order.agreement import first_order_study
from probes.first_order.attribution_patching import estimated_ablations
from probes.first_order.importance import (
    NORMALISATIONS,
    REDUCTIONS,
    head_importance,
    head_parameters,
)
from probes.first_order.self_repair import repair_split
from probes.pruning.removing import count_parameters, prune_heads
from probes.schemas.first_order import IMPORTANCE


def by_hooks(model: HookedGPT, batch: Batch) -> torch.Tensor:
    """Return z . dL/dz, [layer, batch, pos, head]: the paper's other form of dL/dg."""
    kept = {}

    def keep(z, hook):
        if z.requires_grad:  # in a layer without heads it does not
            kept[hook.layer()] = z

    hooks = [(f"blocks.{layer}.attn.hook_z", keep) for layer in range(model.config.n_layers)]
    with model.hooks(fwd_hooks=hooks):
        logits = model(batch.tokens)
    targets = batch.tokens.roll(-1, 1)[batch.loss_mask]
    loss = F.cross_entropy(logits[batch.loss_mask], targets, reduction="sum")
    gradients = torch.autograd.grad(loss, list(kept.values()))
    found = torch.zeros(len(hooks), *batch.tokens.shape, model.config.n_heads).double()
    for (layer, z), gradient in zip(kept.items(), gradients, strict=True):
        found[layer, :, :, list(model.config.heads_of(layer))] = (z * gradient).sum(-1)
    return found.detach() / batch.loss_mask.sum()


def importances(model: HookedGPT, batch: Batch, **options: str) -> np.ndarray:
    frame = head_importance(model, batch, **options)
    return frame["importance"].to_numpy().reshape(model.config.n_layers, -1)


def test_equal_to_z_times_its_gradient_by_hooks(any_model, repeating_batch):
    exact = by_hooks(any_model, repeating_batch)
    wanted = {
        "token": exact.abs().sum((1, 2)),
        "example": exact.sum(2).abs().sum(1),
        "batch": exact.sum((1, 2)).abs(),
    }
    found = {reduce: importances(any_model, repeating_batch, reduce=reduce) for reduce in wanted}
    for reduce in REDUCTIONS:
        np.testing.assert_allclose(found[reduce], wanted[reduce], atol=1e-13)
    assert (found["token"] > found["example"]).all()
    assert (found["example"] >= found["batch"]).all()
    assert (found["example"] > found["batch"] + 1e-6).any()
    frame = head_importance(any_model, repeating_batch)
    assert frame.columns.tolist() == IMPORTANCE.names
    signed = exact.sum((1, 2)).flatten()
    np.testing.assert_allclose(frame["gradient"], signed, atol=1e-13)


def test_gradient_is_the_slope_of_the_margin(any_model, repeating_batch):
    """Central differences in float64 of the gate of one head at a time."""
    batch = repeating_batch[:2]
    frame = head_importance(any_model, batch, metric="margin")
    config, step = any_model.config, 1e-5
    targets = batch.tokens.roll(-1, 1)[batch.loss_mask]

    def margin(gate: float, layer: int, head: int) -> float:
        g = torch.ones(config.n_layers, 1, 1, config.n_heads, dtype=torch.float64)
        g[layer, :, :, head] = gate
        rows = any_model(batch.tokens, gates=GateTensors(g=g))[batch.loss_mask]
        one_hot = F.one_hot(targets, rows.shape[1]).bool()
        rivals = rows.masked_fill(one_hot, -torch.inf).max(1).values
        return (rows[one_hot] - rivals).mean().item()

    for row in frame.itertuples():
        ends = [margin(1.0 + sign * step, row.layer, row.head) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert row.gradient == pytest.approx(slope, rel=1e-6, abs=1e-8)
    assert (frame["gradient_ci_low"] <= frame["gradient"]).all()
    assert (frame["gradient"] <= frame["gradient_ci_high"]).all()


def test_pruned_model_speaks_original_ids(any_model, repeating_batch):
    """Gaps, and a layer without heads."""
    pruned = prune_heads(any_model, [(0, 0), (1, 0), (1, 1), (1, 2)])
    frame = head_importance(pruned, repeating_batch)
    assert frame[["layer", "head"]].to_numpy().tolist() == [[0, 1], [0, 2]]
    exact = by_hooks(pruned, repeating_batch).sum(2).abs().sum(1)
    np.testing.assert_allclose(frame["importance"], exact[0, 1:], atol=1e-13)
    nothing = prune_heads(any_model, [(layer, head) for layer in (0, 1) for head in range(3)])
    assert len(head_importance(nothing, repeating_batch)) == 0


def test_intervals(small_model, repeating_batch):
    """Each reduction's interval holds its number; one sequence alone has none."""
    for reduce in REDUCTIONS:
        frame = head_importance(small_model, repeating_batch, reduce)
        assert (frame["ci_low"] <= frame["importance"] + 1e-15).all()
        assert (frame["importance"] <= frame["ci_high"] + 1e-15).all()
        assert (frame["ci_low"] >= 0).all()
        one = head_importance(small_model, repeating_batch[:1], reduce)
        assert one[["ci_low", "ci_high"]].isna().to_numpy().all()
        assert one["importance"].notna().all()
    straddling = head_importance(small_model, repeating_batch, "batch")
    crosses = straddling["gradient_ci_low"] * straddling["gradient_ci_high"] < 0
    assert crosses.any()
    assert (straddling["ci_low"][crosses] == 0).all()


def test_normalisations(build_model, repeating_batch):
    model = prune_heads(build_model(n_heads=4, n_key_value_heads=2), [(0, 3)])
    raw = head_importance(model, repeating_batch)
    frames = {way: head_importance(model, repeating_batch, normalise=way) for way in NORMALISATIONS}
    of_layer = frames["layer"].groupby("layer")["importance"].apply(lambda own: (own**2).sum())
    np.testing.assert_allclose(of_layer, 1.0)
    sizes = [
        head_parameters(model.config, *pair) for pair in raw[["layer", "head"]].to_numpy().tolist()
    ]
    assert sizes[:3] == [2 * 36 + 3 + 36 + 3, 2 * 36 + 3 + 36 + 3, 2 * 36 + 3 + 2 * (36 + 3)]
    np.testing.assert_allclose(frames["param"]["importance"] * sizes, raw["importance"] * 1e6)
    without = prune_heads(model, [(layer, head) for layer in (0, 1) for head in range(4)][:3])
    gone = count_parameters(model) - count_parameters(without)
    assert sum(sizes[:3]) == gone
    idle = build_model()
    with torch.no_grad():
        idle.blocks[1].attn.W_O.zero_()
    frame = head_importance(idle, repeating_batch, normalise="layer")
    assert frame["importance"].isna().tolist() == [False] * 3 + [True] * 3


def test_pieces_padding_and_plain_tokens(small_model, repeating_batch):
    whole = head_importance(small_model, repeating_batch)
    pieces = head_importance(small_model, repeating_batch, memory=1)
    np.testing.assert_allclose(pieces["importance"], whole["importance"], atol=1e-14)
    left = Batch(
        F.pad(repeating_batch.tokens, (2, 0)),
        F.pad(repeating_batch.loss_mask, (2, 0)),
        F.pad(repeating_batch.sources, (0, 0, 2, 0)),
    )
    real = F.pad(torch.ones_like(repeating_batch.loss_mask), (2, 0))
    padded = head_importance(small_model, left, attention_mask=real)
    np.testing.assert_allclose(padded["importance"], whole["importance"], atol=1e-12)
    every = dataclasses.replace(
        repeating_batch, loss_mask=torch.ones_like(repeating_batch.loss_mask)
    )
    every.loss_mask[:, -1] = False
    plain = head_importance(small_model, repeating_batch.tokens)
    by_mask = head_importance(small_model, every)
    np.testing.assert_array_equal(plain["importance"], by_mask["importance"])


def test_the_model_is_left_as_it_was(build_model, repeating_batch):
    """Frozen parameters, a gradient of the user's, training mode and no_grad around it."""
    model = build_model().train()
    expected = head_importance(model, repeating_batch)
    weight = model.blocks[0].attn.W_Q
    weight.grad = torch.full_like(weight, 7.0)
    for parameter in list(model.parameters())[::2]:
        parameter.requires_grad_(False)
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    with torch.no_grad():
        found = head_importance(model, repeating_batch)
    np.testing.assert_array_equal(found["importance"], expected["importance"])
    assert [parameter.requires_grad for parameter in model.parameters()] == frozen
    assert (weight.grad == 7.0).all()
    assert model.blocks[1].attn.W_Q.grad is None
    assert model.training


def test_metrics_of_the_users_own(small_model, repeating_batch):
    def log_probability(logits, targets, baseline):
        return -F.cross_entropy(logits, targets, reduction="none")

    own = head_importance(small_model, repeating_batch, metric=log_probability)
    loss = head_importance(small_model, repeating_batch)
    np.testing.assert_allclose(own["gradient"], -loss["gradient"])
    assert own["metric"].unique().tolist() == ["log_probability"]


def test_sequences_without_a_scored_row_count_for_nothing(small_model, repeating_batch):
    mask = repeating_batch.loss_mask.clone()
    mask[1:3] = False
    some = dataclasses.replace(repeating_batch, loss_mask=mask)
    kept = [0, 3, 4]
    rest = Batch(repeating_batch.tokens[kept], mask[kept], repeating_batch.sources[kept])
    expected = head_importance(small_model, rest)["importance"]
    found = head_importance(small_model, some, memory=1)["importance"]
    np.testing.assert_allclose(found, expected, atol=1e-14)
    none = dataclasses.replace(repeating_batch, loss_mask=torch.zeros_like(mask))
    assert head_importance(small_model, none)["importance"].isna().all()


def hard_accuracy(logits, targets, baseline):
    return (logits.argmax(1) == targets).double()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"reduce": "tokens"}, "unknown reduce 'tokens'.*did you mean 'token'"),
        ({"normalise": "l2"}, "unknown normalise 'l2'; choose from layer, none, param"),
        ({"metric": "kl"}, "metric must have a first-order change, got kl, which is least at"),
        ({"metric": "exact_match"}, "got exact_match, which counts right answers; take 'loss'"),
        ({"metric": hard_accuracy}, "metric must have a gradient, got hard_accuracy; take"),
    ],
)
def test_wrong_requests_are_refused(small_model, repeating_batch, request_, message):
    with pytest.raises(ValueError, match=message):
        head_importance(small_model, repeating_batch, **request_)
    with pytest.raises(ValueError, match="got 0 sequences"):
        head_importance(small_model, repeating_batch[:0])


def test_inference_mode_around_it_changes_nothing(build_model, repeating_batch):
    """Not even where the tokens, or a mask, were made in it."""
    model = build_model()
    real = torch.ones_like(repeating_batch.loss_mask)
    expected = head_importance(model, repeating_batch, attention_mask=real)
    with torch.inference_mode():
        batch = Batch(*(x.clone() for x in (repeating_batch.tokens, repeating_batch.loss_mask,
                                            repeating_batch.sources)))  # fmt: skip
        model(batch.tokens)
        found = head_importance(model, batch, attention_mask=real.clone())
        theirs = build_model()
    np.testing.assert_array_equal(found["importance"], expected["importance"])
    with pytest.raises(ValueError, match=r"weights must be made outside of torch.inference_mode"):
        head_importance(theirs, repeating_batch)


def test_interval_of_a_part_of_the_layer_is_one(small_model, repeating_batch):
    """What it is divided by is resampled too: no end is above 1 or below 0, and no 0 is minus."""
    for reduce in REDUCTIONS:
        raw = head_importance(small_model, repeating_batch, reduce)
        frame = head_importance(small_model, repeating_batch, reduce, "layer")
        assert frame["unit"].unique().tolist() == ["parts of the layer's L2 norm"]
        assert (frame["ci_high"] <= 1.0 + 1e-12).all()
        assert (frame["ci_low"] < frame["ci_high"]).all()
        assert not np.signbit(raw["ci_low"]).any()
        assert not np.signbit(frame["ci_low"]).any()
    one = head_importance(small_model, repeating_batch[:1], "batch", "layer")
    assert one[["ci_low", "ci_high"]].isna().to_numpy().all()


def test_sequences_without_a_scored_row_are_not_counted(small_model, repeating_batch):
    """The column means the same in every table: sequences that a number is of."""
    rows = repeating_batch.loss_mask.clone()
    rows[3:] = False
    batch = dataclasses.replace(repeating_batch, loss_mask=rows)
    study = first_order_study(small_model, batch)
    tables = (
        head_importance(small_model, batch),
        estimated_ablations(small_model, batch),
        repair_split(small_model, batch, [[(0, 1)]]),
        study.heads,
        study.agreement,
    )
    for frame in tables:
        assert set(frame["n_sequences"]) == {3}
