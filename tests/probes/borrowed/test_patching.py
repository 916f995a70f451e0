"""What comes back with a patch: identities, and cells against patches by PyTorch's own hooks."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lab.hooked_gpt import HookedGPT
from lab.naming import head_label
from probes.borrowed.answers import Answers
from probes.borrowed.patching import ACTIVATIONS, STREAMS, patch_activations
from probes.pruning.removing import prune_heads

CLEAN = torch.tensor([[0, 2, 3, 4], [0, 4, 5, 3], [0, 5, 2, 2]])
CORRUPT = torch.tensor([[0, 2, 5, 4], [0, 3, 2, 5], [0, 4, 4, 2]])
ASKED = Answers.after(CLEAN, torch.tensor([1, 2, 3]), torch.tensor([4, 5, 0]))

pytestmark = pytest.mark.usefixtures("as_a_user")  # hundreds of runs of checked shapes


def put(x: torch.Tensor, *, clean: torch.Tensor, where: tuple) -> torch.Tensor:
    """Return an activation with some cells of the clean run's."""
    x = x.clone()
    x[where] = clean[where]
    return x


def hooked(model: HookedGPT, name: str, edit) -> torch.Tensor:
    """Return the answers' logits of the corrupt run with one activation edited by hand."""
    handle = model.get_submodule(name).register_forward_hook(lambda module, args, out: edit(out))
    try:
        return ASKED(model(CORRUPT))
    finally:
        handle.remove()


@torch.no_grad()
@pytest.mark.parametrize(
    ("activation", "by_position"),
    [("attn_out", True), ("z", True), ("k", False), ("pattern", True)],
)
def test_shares_are_those_of_patches_by_hand(any_model, activation, by_position):
    frame = patch_activations(
        any_model, CLEAN, CORRUPT, activation=activation, by_position=by_position, answers=ASKED
    )
    _, cache = any_model.run_with_cache(CLEAN)
    good, bad = ASKED(any_model(CLEAN)), ASKED(any_model(CORRUPT))
    assert frame["share"].abs().max() > 1e-3
    config = any_model.config
    n_heads = config.kv_heads if activation == "k" else config.n_heads
    heads = 1 if activation in STREAMS else n_heads
    assert len(frame) == 2 * heads * (4 if by_position else 1)
    for row in frame[::4].itertuples():
        at = "attn.hook_" if activation not in STREAMS else "hook_"
        name = f"blocks.{row.layer}.{at}{activation}"
        pos = slice(None) if not by_position else int(row.pos)
        where = (slice(None), pos)
        if activation == "pattern":
            where = (slice(None), int(row.head), pos)
        elif activation not in STREAMS:
            where = (slice(None), pos, int(row.head))

        patched = hooked(any_model, name, partial(put, clean=cache[name], where=where))
        expected = (patched - bad).sum() / (good - bad).sum()
        assert row.share == pytest.approx(expected.item(), abs=1e-12)
        assert row.patched == pytest.approx(patched.mean().item(), abs=1e-12)


def test_whole_stream_brings_everything_back_and_equal_runs_nothing(any_model):
    streams = [name for name in STREAMS if any_model.hook_dict.get(f"blocks.0.hook_{name}")]
    everything = patch_activations(any_model, CLEAN, CORRUPT, activation="resid_pre", answers=ASKED)
    np.testing.assert_allclose(everything["share"], 1.0, atol=1e-12)
    np.testing.assert_allclose(everything[["ci_low", "ci_high"]], 1.0, atol=1e-12)
    for activation in (*streams, "z", "q", "v", "pattern"):
        nothing = patch_activations(any_model, CLEAN, CLEAN, activation=activation, answers=ASKED)
        assert (nothing["patched"] == nothing["corrupt"]).all()
        assert nothing[["share", "ci_low", "ci_high"]].isna().all(axis=None)


def test_interval_is_that_of_the_ratio_over_sequences(build_model):
    model = build_model().eval()
    generator = torch.Generator().manual_seed(1)
    clean, corrupt = (torch.randint(0, 6, (20, 5), generator=generator) for _ in range(2))
    with torch.no_grad():
        # The ids that tell the two runs apart: a ratio needs a denominator away from 0.
        gap = (model(clean) - model(corrupt))[:, -1]
    asked = Answers.after(clean, gap.argmax(dim=1), gap.argmin(dim=1))
    frame = patch_activations(model, clean, corrupt, answers=asked)
    single = [
        patch_activations(model, clean[[i]], corrupt[[i]], answers=asked[i : i + 1])
        for i in range(20)
    ]
    moved = np.array([one["patched"] - one["corrupt"] for one in single])
    gap = np.array([(one["clean"] - one["corrupt"]).iloc[0] for one in single])
    rng = np.random.default_rng(7)
    draws = rng.integers(0, 20, size=(4000, 20))
    ratios = moved[draws].sum(axis=1) / gap[draws].sum(axis=1)[:, None]
    low, high = np.quantile(ratios, [0.025, 0.975], axis=0)
    width = high - low
    assert (np.abs(frame["ci_low"] - low) < 0.15 * width).all()
    assert (np.abs(frame["ci_high"] - high) < 0.15 * width).all()


def test_bridge_gives_the_same_table(build_model):
    ours = build_model(normalization_type="RMS").float().eval()
    theirs = ours.to_boot_native()
    for activation in ("resid_pre", "mlp_out", "z", "q"):
        one, other = (
            patch_activations(m, CLEAN, CORRUPT, activation=activation, answers=ASKED)
            for m in (ours, theirs)
        )
        np.testing.assert_allclose(one["share"], other["share"], atol=1e-5, rtol=1e-5)
        assert one["head"].equals(other["head"])
    # Ours, seen in 4.3: whole, it brought back the MLP's share instead of everything.
    with pytest.raises(ValueError, match=r"must be the stream itself .* got blocks.0.ln2.hook_in"):
        patch_activations(theirs, CLEAN, CORRUPT, activation="resid_mid", answers=ASKED)


def test_pruned_model_speaks_original_ids(build_model):
    model = build_model().eval()
    pruned = prune_heads(model, [(0, 1), (1, 0), (1, 1), (1, 2)])
    frame = patch_activations(pruned, CLEAN, CORRUPT, answers=ASKED)
    assert [head_label(*pair) for pair in frame[["layer", "head"]].to_numpy()] == ["L0H0", "L0H2"]
    # The unpruned model with the same heads cut off at their output answers alike.
    with torch.no_grad():
        for layer, head in ((0, 1), (1, 0), (1, 1), (1, 2)):
            model.blocks[layer].attn.W_O[head] = 0.0
    whole = patch_activations(model, CLEAN, CORRUPT, answers=ASKED)
    kept = whole[(whole["layer"] == 0) & (whole["head"] != 1)]
    np.testing.assert_allclose(frame["share"], kept["share"], atol=1e-6)


def test_model_is_left_as_it_was(build_model):
    model = build_model().eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for activation in ACTIVATIONS:
        patch_activations(model, CLEAN, CORRUPT, activation=activation, answers=ASKED)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_task_batches_ask_for_their_own_answers(small_model, repeating_batch):
    small_model.eval()
    clean, corrupt = repeating_batch[:2], repeating_batch[2:4]
    frame = patch_activations(small_model, clean, corrupt, activation="resid_pre")
    with torch.no_grad():
        logits = small_model(clean.tokens)
    asked = Answers.between(clean, corrupt)
    assert frame["clean"].iloc[0] == pytest.approx(asked(logits).mean().item(), abs=1e-5)
    assert frame["n_sequences"].tolist() == [2, 2]


def test_what_cannot_be_patched_is_told_in_one_line(build_model):
    model = build_model(attn_only=True).eval()
    with pytest.raises(ValueError, match=r"layer 0 must have mlp_out \(hook blocks.0.hook_mlp_out"):
        patch_activations(model, CLEAN, CORRUPT, activation="mlp_out", answers=ASKED)
    with pytest.raises(ValueError, match=r"unknown activation 'result'; choose from attn_out, k,"):
        patch_activations(model, CLEAN, CORRUPT, activation="result", answers=ASKED)
    with pytest.raises(ValueError, match=r"clean and corrupt tokens must be as many sequences of"):
        patch_activations(model, CLEAN, CORRUPT[:2], answers=ASKED)
    with pytest.raises(ValueError, match="model must be a HookedGPT or one of TransformerLens"):
        patch_activations(nn.Linear(2, 2), CLEAN, CORRUPT, answers=ASKED)
    bare = prune_heads(build_model(n_layers=1).eval(), [(0, 0), (0, 1), (0, 2)])
    with pytest.raises(ValueError, match="a model must have heads for z to be patched, got none"):
        patch_activations(bare, CLEAN, CORRUPT, answers=ASKED)


def test_pairs_in_which_no_row_counts_are_left_out(build_model):
    model = build_model().eval()
    rows = ASKED.rows.clone()
    rows[1] = False
    some = Answers(right=ASKED.right, wrong=ASKED.wrong, rows=rows)
    frame = patch_activations(model, CLEAN, CORRUPT, activation="resid_mid", answers=some)
    keep = torch.tensor([True, False, True])
    alone = patch_activations(
        model, CLEAN[keep], CORRUPT[keep], activation="resid_mid", answers=ASKED[keep]
    )
    assert frame["n_sequences"].tolist() == [2, 2]
    pd.testing.assert_frame_equal(frame, alone)
    assert frame.attrs["tokens_sha256"] != alone.attrs["tokens_sha256"]


def test_equal_pairs_are_no_denominator_by_rounding(build_model, monkeypatch):
    """Equal tokens in runs of other sizes differ in the last bit: still there is no share."""
    model = build_model().eval()
    original = model.run_with_cache

    def rounded(*args, **kwargs):
        logits, cache = original(*args, **kwargs)
        noise = torch.linspace(1.0, 2.0, logits.shape[-1], dtype=logits.dtype)
        return logits + 1e-6 * noise, cache

    monkeypatch.setattr(model, "run_with_cache", rounded)
    nothing = patch_activations(model, CLEAN, CLEAN, activation="resid_pre", answers=ASKED)
    assert nothing[["share", "ci_low", "ci_high"]].isna().all(axis=None)
