"""Attributions sum to the logit, and each is what the part writes through the frozen norm."""

import copy

import numpy as np
import pytest
import torch

from probes.borrowed import attribution
from probes.borrowed.answers import Answers
from probes.borrowed.attribution import logit_attribution
from probes.pruning.removing import prune_heads

TOKENS = torch.tensor([[0, 2, 3, 4], [0, 4, 5, 3]])
ASKED = Answers.after(TOKENS, torch.tensor([1, 2]), torch.tensor([4, 5]))


def of(frame, part: str, layer: int | None = None, head: int | None = None) -> float:
    """Return one attribution of a table."""
    rows = frame[frame["part"] == part]
    rows = rows if layer is None else rows[rows["layer"] == layer]
    rows = rows if head is None else rows[rows["head"] == head]
    return rows["attribution"].item()


@torch.no_grad()
def test_parts_sum_to_the_logit_with_the_bias_row(any_model, repeating_batch):
    before = {name: weight.clone() for name, weight in any_model.state_dict().items()}
    for batch, asked in ((repeating_batch, None), (TOKENS, ASKED)):
        frame = logit_attribution(any_model, batch, answers=asked)
        asked = Answers.of(batch) if asked is None else asked
        logits = any_model(TOKENS if asked is ASKED else batch.tokens)
        wanted = asked.gaps(logits)[asked.rows].mean().item()
        assert frame["attribution"].sum() == pytest.approx(wanted, abs=1e-10)
        assert frame.attrs["logit"] == pytest.approx(wanted, abs=1e-10)
        assert abs(of(frame, "b_U")) > 1e-3
        assert abs(of(frame, "b_O", 0)) > 1e-4
    assert all(torch.equal(w, before[name]) for name, w in any_model.state_dict().items())


@torch.no_grad()
def test_float32_sums_to_1e_5(build_model, repeating_batch):
    model = build_model(initializer_range=0.2).float()
    frame = logit_attribution(model, repeating_batch)
    wanted = Answers.of(repeating_batch)
    rows = wanted.gaps(model(repeating_batch.tokens))[wanted.rows]
    assert frame["attribution"].sum() == pytest.approx(rows.mean().item(), abs=1e-5)


@torch.no_grad()
def test_each_part_is_its_write_through_the_frozen_norm(any_model):
    """By hand with the norm's own weights: (c - mean c) / sigma * w . W_U[:, answer]."""
    frame = logit_attribution(any_model, TOKENS, answers=ASKED)
    _, cache = any_model.run_with_cache(TOKENS)
    config, attn = any_model.config, any_model.blocks[0].attn
    columns = any_model.W_U[:, [1, 2]].T - any_model.W_U[:, [4, 5]].T
    bias = any_model.b_U[[1, 2]] - any_model.b_U[[4, 5]]
    norm = any_model.ln_final

    def attribute(part: torch.Tensor) -> float:
        if config.normalization_type == "LN":
            part = part - part.mean(-1, keepdim=True)
        if config.normalization_type is not None:
            part = part / cache["ln_final.hook_scale"][:, -1] * norm.w
        return (part * columns).sum(-1).mean().item()

    constant = bias.mean().item()
    if config.normalization_type == "LN":
        constant += (norm.b * columns).sum(-1).mean().item()
    assert of(frame, "b_U") == pytest.approx(constant)
    assert of(frame, "embed") == pytest.approx(attribute(cache["hook_embed"][:, -1]))
    for head in range(3):
        written = cache["z", 0][:, -1, head] @ attn.W_O[head]
        assert of(frame, "head", 0, head) == pytest.approx(attribute(written))
    assert of(frame, "b_O", 0) == pytest.approx(attribute(attn.b_O.expand(2, -1)))
    if not config.attn_only:
        assert of(frame, "mlp", 1) == pytest.approx(attribute(cache["mlp_out", 1][:, -1]))


def test_a_few_sequences_at_a_time_give_the_same(small_model, repeating_batch, monkeypatch):
    whole = logit_attribution(small_model, repeating_batch)
    monkeypatch.setattr(attribution, "NUMBERS_AT_ONCE", 1)
    pieces = logit_attribution(small_model, repeating_batch)
    for name in ("attribution", "ci_low", "ci_high"):
        np.testing.assert_allclose(whole[name], pieces[name], atol=1e-12)


def test_bridge_must_be_in_its_compatibility_mode(build_model):
    ours = build_model().float().eval()
    with pytest.raises(ValueError, match=r"requires compatibility mode .*enable_compatibility_mo"):
        logit_attribution(ours.to_boot_native(), TOKENS, answers=ASKED)


@torch.no_grad()
def test_a_bridge_has_the_same_table_unless_its_weights_are_in_another_form(build_model):
    """By default TransformerLens centres W_U, and moves b_V W_O from the heads to b_O."""
    ours, asked = build_model().float().eval(), Answers.after(TOKENS, torch.tensor([1, 2]))
    for block in ours.blocks:
        block.attn.b_V += 0.3
    keys, form = ["part", "layer", "head"], ["unembed_centred", "value_biases_in_heads"]
    wanted = logit_attribution(ours, TOKENS, answers=asked)
    assert [wanted.attrs[name] for name in form] == [False, True]
    for options, found, same in (
        ({"center_unembed": False, "fold_value_biases": False}, [False, True], True),
        ({}, [True, False], False),
    ):
        bridge = ours.to_boot_native()
        bridge.enable_compatibility_mode(disable_warnings=True, **options)
        got = logit_attribution(bridge, TOKENS, answers=asked)
        assert [got.attrs[name] for name in form] == found
        off = got.set_index(keys)["attribution"] - wanted.set_index(keys)["attribution"]
        assert off.abs().max() < 1e-5 if same else off.abs().max() > 1e-2


def test_what_does_not_sum_is_refused(build_model, monkeypatch):
    model = build_model().eval()
    original = attribution.direct_logit_attribution

    def missed(*args, **kwargs):
        found = original(*args, **kwargs)
        found.attribution *= 1.01
        return found

    monkeypatch.setattr(attribution, "direct_logit_attribution", missed)
    with pytest.raises(ValueError, match=r"must sum to the logits, got sums that are off by up to"):
        logit_attribution(model, TOKENS, answers=ASKED)


def test_pruned_model_would_be_mislabelled(build_model):
    pruned = prune_heads(build_model().eval(), [(0, 1)])
    with pytest.raises(ValueError, match=r"must have all its heads for logit_attribution, got one"):
        logit_attribution(pruned, TOKENS, answers=ASKED)


def test_half_precision_and_autocast_are_no_missed_part(build_model, repeating_batch):
    model = build_model(initializer_range=0.2).float()
    expected = logit_attribution(model, repeating_batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = logit_attribution(model, repeating_batch)
    np.testing.assert_allclose(cast["attribution"], expected["attribution"], atol=1e-6)
    half = logit_attribution(copy.deepcopy(model).bfloat16(), repeating_batch)
    assert half.attrs["logit"] == pytest.approx(half["attribution"].sum(), abs=1e-5)
    np.testing.assert_allclose(half["attribution"], expected["attribution"], atol=0.05)


def test_bridge_of_half_precision_is_read_in_float32_and_left_as_it_is(build_model):
    model = build_model(initializer_range=0.2).float().eval()
    expected = logit_attribution(model, TOKENS, answers=ASKED)
    bridge = model.to_boot_native()
    bridge.enable_compatibility_mode()
    half = logit_attribution(bridge.to(torch.bfloat16), TOKENS, answers=ASKED)
    assert half.attrs["logit"] == pytest.approx(half["attribution"].sum(), abs=1e-5)
    np.testing.assert_allclose(half["attribution"], expected["attribution"], atol=0.05)
    assert half.attrs["dtype"] == "bfloat16"
    assert {weight.dtype for weight in bridge.parameters()} == {torch.bfloat16}
