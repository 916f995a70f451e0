"""The lens of the last layer is the model, and every layer's is its stream through the end."""

import numpy as np
import pytest
import torch

from lab.evaluation import evaluate
from probes.borrowed import lens
from probes.borrowed.answers import Answers
from probes.borrowed.lens import logit_lens
from probes.pruning.removing import prune_heads


@torch.no_grad()
def test_every_row_is_the_end_of_the_model_on_that_stream(any_model, repeating_batch):
    frame = logit_lens(any_model, repeating_batch, by_position=True)
    _, cache = any_model.run_with_cache(repeating_batch.tokens)
    streams = [cache["resid_pre", 0], cache["resid_pre", 1], cache["resid_post", 1]]
    targets = repeating_batch.tokens.roll(-1, dims=1)
    for layer, stream in enumerate(streams):
        logits = any_model.unembed(any_model.ln_final(stream))
        log_probs = logits.log_softmax(-1)
        own = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)
        ranks = (logits > logits.gather(2, targets.unsqueeze(2))).sum(-1).double()
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        rows = frame[frame["layer"] == layer]
        assert rows["pos"].tolist() == [7, 8, 9, 10, 11, 12]
        for name, values in (("log_prob", own), ("rank", ranks), ("entropy", entropy)):
            expected = values.mean(dim=0)[7:13]
            np.testing.assert_allclose(rows[name], expected, atol=1e-5)
        top1 = (ranks == 0).double().mean(dim=0)[7:13]
        np.testing.assert_allclose(rows["top1"], top1)


def test_last_layer_is_the_models_own_loss_and_accuracy(any_model, repeating_batch):
    last = logit_lens(any_model, repeating_batch).iloc[-1]
    found = evaluate(any_model, repeating_batch)
    assert last["layer"] == 2
    assert last["log_prob"] == pytest.approx(-found.loss, abs=1e-5)
    assert last["top1"] == pytest.approx(found.token_accuracy)
    assert last["ci_low"] <= last["log_prob"] <= last["ci_high"]
    assert (last["n_sequences"], last["n_rows"]) == (5, 30)


def test_rows_that_do_not_count_do_not(build_model):
    model = build_model().eval()
    tokens = torch.tensor([[0, 2, 3, 4, 5], [0, 5, 5, 3, 2]])
    asked = Answers.after(tokens, torch.tensor([1, 3]))
    frame = logit_lens(model, tokens, answers=asked)
    with torch.no_grad():
        log_probs = model(tokens)[:, -1].log_softmax(-1)
    expected = (log_probs[0, 1] + log_probs[1, 3]) / 2
    assert frame["log_prob"].iloc[-1] == pytest.approx(expected.item(), abs=1e-5)
    assert frame["n_rows"].tolist() == [2, 2, 2]
    asked.rows[1] = False
    alone = logit_lens(model, tokens, answers=asked)
    assert (alone["n_rows"].tolist(), alone["n_sequences"].tolist()) == ([1, 1, 1], [1, 1, 1])


def test_bridge_pruned_model_and_small_portions_are_the_same(
    build_model, repeating_batch, monkeypatch
):
    ours = build_model().float().eval()
    frame = logit_lens(ours, repeating_batch)
    numbers = ["log_prob", "top1", "rank", "entropy", "ci_low", "ci_high"]
    theirs = logit_lens(ours.to_boot_native(), repeating_batch)
    np.testing.assert_allclose(frame[numbers], theirs[numbers], atol=1e-5)
    monkeypatch.setattr(lens, "TOKENS_AT_ONCE", 1)
    np.testing.assert_allclose(frame[numbers], logit_lens(ours, repeating_batch)[numbers], 1e-5)
    pruned = prune_heads(ours, [(0, 1), (1, 0), (1, 1), (1, 2)])
    own = logit_lens(pruned, repeating_batch)
    assert own["log_prob"].iloc[0] == frame["log_prob"].iloc[0]
    assert own["log_prob"].iloc[-1] != frame["log_prob"].iloc[-1]
