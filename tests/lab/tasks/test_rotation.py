"""Two constant offsets, cell by cell."""

import pytest
import torch

from lab.tasks.rotation import Rotation


def test_the_sequence_is_laid_out_as_documented():
    batch = Rotation(length=5).sequences(torch.tensor([[2, 3, 4, 5, 6]]))
    assert batch.tokens.tolist() == [[0, 2, 3, 4, 5, 6, 1, 5, 6, 2, 3, 4]]
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == [6, 7, 8, 9, 10]
    assert batch.sources[0, :, 0].tolist() == [-1] * 6 + [4, 5, 1, 2, 3, -1]


@pytest.mark.parametrize(("n", "shift"), [(10, 3), (7, 5), (4, 4), (3, 7)])
def test_every_row_follows_the_formula(n, shift):
    batch = Rotation(length=n, shift=shift).sample(4, seed=0)
    for t in range(1, n + 1):
        source = (t - 1 + shift) % n + 1
        assert (batch.sources[:, n + t, 0] == source).all()
        assert (batch.tokens[:, n + t + 1] == batch.tokens[torch.arange(4), source]).all()


def test_a_shift_below_one_is_refused():
    with pytest.raises(ValueError, match=r"^shift must be a whole number of at least 1, got 0"):
        Rotation(shift=0)
