"""The place of every copy of a value, cell by cell."""

import torch

from lab.tasks.sorting import Sorting


def test_the_sequence_is_laid_out_as_documented():
    batch = Sorting(length=4).sequences(torch.tensor([[5, 2, 9, 2]]))
    assert batch.tokens.tolist() == [[0, 5, 2, 9, 2, 1, 2, 2, 5, 9]]
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == [5, 6, 7, 8]
    sources = [sorted({*row} - {-1}) for row in batch.sources[0].tolist()]
    # Both copies of the symbol that stands twice hold it, for either of its answers.
    assert sources == [[], [], [], [], [], [2, 4], [2, 4], [1], [3], []]


def test_any_two_batches_have_the_same_shape():
    """Parts of a batch are put together, whatever stands twice in them."""
    task = Sorting(length=6, n_symbols=3)
    whole = task.sample(8, seed=0).sources
    halves = [task.sample(4, seed=0, first=first).sources for first in (0, 4)]
    assert torch.equal(torch.cat(halves), whole)
