"""What two heads cost together, against sweeps of one set at a time."""

import itertools

import numpy as np
import pytest
import torch

import probes
from probes.ablation.pairs import pair_effects
from probes.ablation.sweep import sweep_sets

TOKENS = torch.randint(6, (5, 9), generator=torch.Generator().manual_seed(1))


def test_every_pair_equals_sweeps_of_one_set_the_largest_interaction_first(small_model):
    frame = pair_effects(small_model, TOKENS, seed=2)

    def change(*heads):
        swept = sweep_sets(small_model, TOKENS, [heads], metrics=["loss"])
        return swept.deltas().delta[0, 0]

    heads = [(layer, head) for layer in range(2) for head in range(3)]
    assert len(frame) == 15
    found = {
        ((row.layer, row.head), (row.other_layer, row.other_head)): row
        for row in frame.itertuples()
    }
    for one, other in itertools.combinations(heads, 2):
        row = found[one, other]
        assert row.first == pytest.approx(change(one))
        assert row.second == pytest.approx(change(other))
        assert row.joint == pytest.approx(change(one, other))
        assert row.interaction == pytest.approx(row.joint - row.first - row.second)
        assert row.ci_low <= row.interaction <= row.ci_high
    sizes = frame["interaction"].abs().to_numpy()
    assert (np.diff(sizes) <= 0).all()
    # Whoever sorts by the signed number fails: one of the negative ones is not at the end.
    assert (np.diff(frame["interaction"]) > 0).any()
    assert probes.pair_effects is pair_effects


def test_where_nothing_is_scored_there_is_no_number(small_model):
    frame = pair_effects(small_model, TOKENS[:, :1], heads=[(0, 1), (1, 2)])
    numbers = frame[["first", "second", "joint", "interaction", "ci_low", "ci_high"]]
    assert numbers.isna().all(axis=None)
    assert frame["n_sequences"].tolist() == [0]


@pytest.mark.parametrize("heads", [[(0, 1)], []])
def test_a_pair_takes_two_heads(small_model, heads):
    with pytest.raises(ValueError, match=r"heads to pair must be 2 to 64, got \d heads?; name"):
        pair_effects(small_model, TOKENS, heads=heads)
