"""Distances between heads: ends of the scale, a closed form, chosen heads, cutting into pieces."""

import math

import numpy as np
import pytest
import torch

from probes.attention import distances as distances_module
from probes.attention.distances import head_distances

TOKENS = torch.arange(7).unsqueeze(0)


def even(n):
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1).unsqueeze(1)


def shifted(n, back):
    pattern = torch.zeros(n, n, dtype=torch.float64)
    for q in range(n):
        pattern[q, max(0, q - back)] = 1.0
    return pattern


def test_ends_of_the_scale(fixed_patterns):
    """Equal heads are 0 apart, heads without a common key ln 2; the first row does not count."""
    model = fixed_patterns([shifted(7, 0), shifted(7, 1), shifted(7, 0)])
    frame = head_distances(model, TOKENS)
    pairs = frame[["layer", "head", "other_layer", "other_head"]].to_numpy().tolist()
    assert pairs == [[0, 0, 0, 1], [0, 0, 0, 2], [0, 1, 0, 2]]
    np.testing.assert_allclose(frame["distance"], [math.log(2), 0.0, math.log(2)], atol=1e-12)
    assert set(frame["n_rows"]) == {6}


def test_closed_form(fixed_patterns):
    frame = head_distances(fixed_patterns([even(7), shifted(7, 0)]), TOKENS)

    def row(keys):
        mixed = [(1 + 1 / keys) / 2, *[1 / (2 * keys)] * (keys - 1)]
        return -sum(p * math.log(p) for p in mixed) - math.log(keys) / 2

    exact = sum(row(keys) for keys in range(2, 8)) / 6
    assert frame["distance"].item() == pytest.approx(exact, abs=1e-12)


def test_chosen_heads_only(small_model, repeating_batch):
    whole = head_distances(small_model, repeating_batch)
    some = head_distances(small_model, repeating_batch, [(1, 2), (0, 1), (1, 0)])
    assert some[["layer", "head", "other_layer", "other_head"]].to_numpy().tolist() == [
        [0, 1, 1, 0],
        [0, 1, 1, 2],
        [1, 0, 1, 2],
    ]
    keys = ["layer", "head", "other_layer", "other_head"]
    both = some.merge(whole, on=keys)
    assert len(both) == 3
    np.testing.assert_allclose(both["distance_x"], both["distance_y"], atol=1e-13)
    with pytest.raises(ValueError, match="unknown head 'L2H0'; choose from L0H0"):
        head_distances(small_model, repeating_batch, [(2, 0), (0, 1)])


def test_pieces_join(small_model, repeating_batch, monkeypatch):
    whole = head_distances(small_model, repeating_batch)
    monkeypatch.setattr(distances_module, "SCORES_AT_ONCE", 100)
    monkeypatch.setattr(distances_module, "TOKENS_AT_ONCE", 1)
    pieces = head_distances(small_model, repeating_batch)
    np.testing.assert_allclose(pieces["distance"], whole["distance"], atol=1e-13)
    assert pieces.drop(columns="distance").equals(whole.drop(columns="distance"))
    assert whole["distance"].between(0, math.log(2)).all()


def test_one_head_or_one_token_has_no_distance(fixed_patterns):
    assert head_distances(fixed_patterns([even(7)]), TOKENS).empty
    frame = head_distances(fixed_patterns([even(1), even(1)]), torch.tensor([[3]]))
    assert frame["distance"].isna().all()


def test_pruned_model_speaks_of_its_original_heads(small_model, repeating_batch):
    from probes.pruning.removing import prune_heads

    pruned = prune_heads(small_model, [(0, 0), (0, 1), (0, 2), (1, 1)])
    frame = head_distances(pruned, repeating_batch)
    assert frame[["layer", "head", "other_layer", "other_head"]].to_numpy().tolist() == [
        [1, 0, 1, 2]
    ]
