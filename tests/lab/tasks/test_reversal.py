"""The anti-diagonal, cell by cell."""

import torch

from lab.tasks.reversal import Reversal


def test_the_sequence_is_laid_out_as_documented():
    batch = Reversal(length=3).sequences(torch.tensor([[2, 3, 4]]))
    assert batch.tokens.tolist() == [[0, 2, 3, 4, 1, 4, 3, 2]]
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == [4, 5, 6]
    assert batch.sources[0, :, 0].tolist() == [-1, -1, -1, -1, 3, 2, 1, -1]


def test_row_and_source_always_sum_to_twice_the_length_plus_one():
    n = 10
    batch = Reversal(length=n).sample(20, seed=0)
    assert batch.tokens.shape == (20, 2 * n + 2)
    for t in range(1, n + 1):
        assert (batch.sources[:, n + t, 0] == n - t + 1).all()
    assert batch.loss_mask.sum(dim=1).eq(n).all()


def test_sources_stay_positional_where_symbols_repeat():
    # In a palindrome every answer also stands elsewhere; the source is still the mirrored place.
    batch = Reversal(length=3).sequences(torch.tensor([[2, 3, 2], [2, 2, 2]]))
    assert batch.sources[:, 4:7, 0].tolist() == [[3, 2, 1]] * 2


def test_fewer_symbols_than_the_length_keep_the_geometry():
    batch = Reversal(length=10).sequences(torch.tensor([[2, 3]]))
    assert batch.tokens.tolist() == [[0, 2, 3, 1, 3, 2]]
    assert batch.sources[0, :, 0].tolist() == [-1, -1, -1, 2, 1, -1]
