"""Entropy against loops over explicit rows, closed forms, and heads that rest on the first key."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lab.attention_reads import AttentionReads
from probes.attention.entropy import entropy_profile
from probes.planted import PlantedHead, plant
from probes.schemas.heads import ENTROPY
from probes.tables import json_rows


class FixedRows:
    """A stand-in whose one head has given probabilities, written as log-probability scores."""

    def __init__(self, pattern):
        self.pattern = torch.tensor(pattern, dtype=torch.float64)

    def forward(self, input, return_type=None, *, observe=None):
        n_pos = self.pattern.shape[-1]
        q = self.pattern.clamp(min=1e-30).log().unsqueeze(2)
        k = torch.eye(n_pos, dtype=torch.float64).unsqueeze(1).expand(len(q), -1, -1, -1)
        if observe is not None:
            observe(0, AttentionReads(q, k, k, scale=1.0))


def entropy_of(row):
    return -sum(p * math.log(p) for p in row if p > 0)


def test_equal_to_loops_over_the_explicit_rows(small_model, repeating_batch):
    _, cache = small_model.run_with_cache(repeating_batch.tokens)
    table = json_rows(entropy_profile(small_model, repeating_batch))
    rows_by_place = {(row["layer"], row["head"], row["query_pos"]): row for row in table}
    n, n_pos = repeating_batch.tokens.shape
    for layer in range(2):
        pattern = cache["pattern", layer]
        for head in range(3):
            for q in range(n_pos):
                rows = [pattern[b, head, q, : q + 1].tolist() for b in range(n)]
                got = rows_by_place[layer, head, q]
                whole = sum(map(entropy_of, rows)) / n
                assert got["entropy"] == pytest.approx(whole, abs=1e-10)
                assert got["sink_mass"] == pytest.approx(sum(r[0] for r in rows) / n, abs=1e-10)
                rest = [[p / (1 - r[0]) for p in r[1:]] for r in rows if 1 - r[0] >= 1e-3]
                if q == 0:
                    assert got["sink_free"] is got["silent"] is got["normalised"] is None
                    continue
                assert got["normalised"] == pytest.approx(whole / math.log(q + 1), abs=1e-10)
                assert got["silent"] == pytest.approx(1 - len(rest) / n)
                if rest:
                    free = sum(map(entropy_of, rest)) / len(rest)
                    assert got["sink_free"] == pytest.approx(free, abs=1e-9)


def test_even_head_reaches_every_ceiling():
    tokens = torch.tensor([[0, 2, 3, 4, 5, 2]])
    frame = entropy_profile(plant([[PlantedHead(kind="uniform")]]).model, tokens)
    rows = np.arange(6)
    np.testing.assert_allclose(frame["entropy"], np.log(rows + 1.0), atol=1e-12)
    np.testing.assert_allclose(frame["effective_keys"], rows + 1.0)
    np.testing.assert_allclose(frame["normalised"][1:], 1.0)
    np.testing.assert_allclose(frame["sink_free_normalised"][2:], 1.0)
    assert frame["normalised"].isna().tolist() == [True] + [False] * 5
    assert frame["sink_free_normalised"].isna().tolist() == [True] * 2 + [False] * 4
    assert frame.columns.tolist() == ENTROPY.names


def test_sink_hides_whether_the_rest_is_sharp_or_blind():
    n = 64
    blind = np.tril(np.ones((n, n)))
    blind[-1] = [0.9] + [0.1 / (n - 1)] * (n - 1)
    sharp = np.tril(np.ones((n, n)))
    sharp[-1] = [0.9] + [0.0] * (n - 2) + [0.1]
    for pattern, normalised, sink_free in ((blind, 0.1778, 1.0), (sharp, 0.0782, 0.0)):
        pattern = pattern / pattern.sum(axis=1, keepdims=True)
        last = entropy_profile(FixedRows(pattern[None]), torch.zeros(1, n, dtype=torch.long))
        last = last.iloc[-1]
        assert last["normalised"] == pytest.approx(normalised, abs=5e-5)
        assert last["sink_free_normalised"] == pytest.approx(sink_free, abs=1e-9)


def test_silent_rows_are_left_out_and_their_share_is_told():
    rows = np.array([[[1, 0, 0], [0.5, 0.5, 0], [1 - 1e-4, 5e-5, 5e-5]], np.tril(np.ones((3, 3)))])
    rows = rows / rows.sum(axis=2, keepdims=True)
    frame = entropy_profile(FixedRows(rows), torch.zeros(2, 3, dtype=torch.long))
    assert frame["silent"].tolist()[1:] == [0.0, 0.5]
    assert frame["sink_free"].iloc[2] == pytest.approx(math.log(2), abs=1e-9)
    only_silent = entropy_profile(FixedRows(rows[:1]), torch.zeros(1, 3, dtype=torch.long))
    assert only_silent["silent"].iloc[2] == 1.0
    assert math.isnan(only_silent["sink_free"].iloc[2])


def test_sharp_head_in_float32_stays_above_zero(build_model, repeating_batch):
    model = build_model(initializer_range=8.0).float()
    frame = entropy_profile(model, repeating_batch)
    assert (frame["entropy"] >= 0).all()
    assert (frame["sink_free"].dropna() >= 0).all()


def test_batch_is_the_mean_of_its_sequences(small_model, repeating_batch):
    whole = entropy_profile(small_model, repeating_batch)["entropy"]
    alone = [entropy_profile(small_model, repeating_batch[i : i + 1])["entropy"] for i in range(5)]
    np.testing.assert_allclose(whole, np.mean(alone, axis=0), atol=1e-12)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_even_head_reaches_the_ceiling_whatever_it_sees(build_model, direction):
    model = build_model(attention_dir=direction, n_layers=1, n_heads=1)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.zero_()
        model.blocks[0].attn.b_Q.zero_()
    tokens = torch.tensor([[2, 3, 4, 5, 2, 3], [3, 3, 2, 4, 5, 5]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    for attention_mask in (None, mask):
        frame = entropy_profile(model, tokens, attention_mask=attention_mask)
        fewest = 1 if direction == "causal" else 0
        np.testing.assert_allclose(frame["normalised"][fewest:], 1.0)
        np.testing.assert_allclose(frame["sink_free_normalised"][2 * fewest :], 1.0)
        assert frame["silent"].isna().sum() == fewest
    sharp = 6 if direction == "bidirectional" else 4
    keys = [sharp, 4 if direction == "bidirectional" else 2]
    assert frame["entropy"][3] == pytest.approx(np.mean(np.log(keys)))


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_padding_only_moves_the_rows(build_model, repeating_batch, direction):
    model = build_model(attention_dir=direction)
    alone = entropy_profile(model, repeating_batch)
    padded = F.pad(repeating_batch.tokens, (2, 0), value=3)
    mask = F.pad(torch.ones_like(repeating_batch.tokens), (2, 0))
    frame = entropy_profile(model, padded, attention_mask=mask)
    assert frame[frame["query_pos"] < 2]["entropy"].isna().all()
    moved = frame[frame["query_pos"] >= 2]
    for name in ("entropy", "normalised", "sink_mass", "sink_free", "sink_free_normalised"):
        np.testing.assert_allclose(moved[name], alone[name], atol=1e-10)


def test_empty_batch_is_refused(small_model):
    with pytest.raises(ValueError, match="got 0 sequences of 4"):
        entropy_profile(small_model, torch.zeros(0, 4, dtype=torch.long))
