"""The constant offset, cell by cell."""

import torch

from lab.tasks.copying import Copying


def test_the_sequence_is_laid_out_as_documented():
    batch = Copying(length=3).sequences(torch.tensor([[2, 3, 4]]))
    assert batch.tokens.tolist() == [[0, 2, 3, 4, 1, 2, 3, 4]]
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == [4, 5, 6]
    assert batch.sources[0, :, 0].tolist() == [-1, -1, -1, -1, 1, 2, 3, -1]


def test_the_source_is_always_the_length_behind_its_row():
    n = 10
    batch = Copying(length=n).sample(20, seed=0)
    for t in range(1, n + 1):
        assert (batch.sources[:, n + t, 0] == t).all()
