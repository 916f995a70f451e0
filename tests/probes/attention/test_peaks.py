"""Favourite keys: ties, several targets, unreliable heads, and the largest probability."""

import numpy as np
import pytest
import torch

from probes.attention.peaks import head_peaks, row_peaks
from probes.reading.observed_model import observe_layers, probe_input
from probes.registry import get_probe, load_function

WORDS = torch.tensor([[9, 2, 3, 4, 5, 6]])


def even(n):
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1).unsqueeze(1)


def split(n, share):
    """Rows that put a share on the previous key, and the rest on key 0."""
    pattern = torch.zeros(n, n, dtype=torch.float64)
    pattern[0, 0] = 1.0
    for q in range(1, n):
        pattern[q, q - 1] += share
        pattern[q, 0] += 1 - share
    return pattern


def peaks_of(model, tokens, probe, **kwargs):
    frame = head_peaks(model, tokens, [probe], **kwargs)
    return frame.set_index("head")


def test_share_is_all_or_nothing_where_mass_is_not(fixed_patterns):
    model = fixed_patterns([split(6, 0.6), split(6, 0.4)])
    frame = peaks_of(model, WORDS, "previous", special_ids=(9,))
    assert frame["argmax_share"].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(frame["p10"], [0.6, 0.4])
    np.testing.assert_allclose(frame["largest"], 0.6)
    assert frame["n_rows"].tolist() == [4, 4]


def test_even_rows_have_no_favourite(fixed_patterns):
    """Taken as the first largest key, an even head would be a perfect first-token head."""
    frame = head_peaks(fixed_patterns([even(6)]), WORDS, ["first", "current"])
    exact = sum(1 / (q + 1) for q in range(1, 6)) / 5
    np.testing.assert_allclose(frame["argmax_share"], exact, atol=1e-12)


def test_ties_in_float32_are_ties(build_model):
    model = build_model(n_layers=1, initializer_range=0.3).float()
    with torch.no_grad():
        model.blocks[0].attn.W_K.zero_()
        model.blocks[0].attn.b_K.zero_()
    frame = head_peaks(model, WORDS % 6, ["first"])
    exact = sum(1 / (q + 1) for q in range(1, 6)) / 5
    np.testing.assert_allclose(frame["argmax_share"], exact, atol=1e-6)


def test_either_copy_may_be_the_favourite(fixed_patterns):
    tokens = torch.tensor([[2, 3, 2, 4, 2]])
    pattern = torch.eye(5, dtype=torch.float64)
    pattern[2] = torch.tensor([1, 0, 0, 0, 0])
    pattern[4] = torch.tensor([0.1, 0, 0.6, 0, 0.3])
    frame = peaks_of(fixed_patterns([pattern]), tokens, "duplicate")
    assert frame["argmax_share"].item() == 1.0
    assert frame["n_rows"].item() == 2


def test_unreliable_head_is_told_from_a_divided_one(fixed_patterns):
    """Both put 0.6 on the previous token on average; one of them misses two rows in five."""
    sure = split(6, 0.6)
    unsure = split(6, 1.0)
    unsure[2] = unsure[4] = torch.tensor([1.0, 0, 0, 0, 0, 0])
    frame = peaks_of(fixed_patterns([sure, unsure]), WORDS, "previous")
    np.testing.assert_allclose(frame["argmax_share"], [1.0, 0.6])
    assert frame["p10"].iloc[0] == pytest.approx(0.6 + 0.4 * 0)
    assert frame["p10"].iloc[1] == 0.0


def test_rows_of_the_matrix(small_model, repeating_batch):
    x = probe_input(small_model, repeating_batch)

    def observe(layer, reads):
        peaks, pattern = row_peaks(reads), reads.pattern()
        assert torch.equal(peaks.probability, pattern.amax(dim=-1))
        taken = pattern.gather(3, peaks.key.unsqueeze(-1)).squeeze(-1)
        assert torch.equal(taken, peaks.probability)
        assert (peaks.n_tied >= 1).all()

    observe_layers(small_model, x.tokens, observe)


def test_every_probe_that_the_input_allows(small_model, repeating_batch):
    frame = head_peaks(small_model, repeating_batch)
    assert "sources" in set(frame["probe"])
    places = frame[["layer", "head"]].drop_duplicates().to_numpy().tolist()
    assert places == [[layer, head] for layer in range(2) for head in range(3)]
    assert frame["argmax_share"].between(0, 1).all()
    assert (frame["ci_low"] <= frame["argmax_share"] + 1e-12).all()
    assert load_function(get_probe("sources"))


def test_nothing_to_score_is_missing(fixed_patterns):
    frame = head_peaks(fixed_patterns([even(2)]), torch.tensor([[0, 1]]), ["duplicate"])
    assert frame[["argmax_share", "p10", "largest", "ci_low"]].isna().all(axis=None)
    assert frame[["n_rows", "n_sequences"]].to_numpy().tolist() == [[0, 0]]
