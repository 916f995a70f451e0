"""The follower of the earlier copy, cell by cell, and blocks without repeats."""

import pytest
import torch
from scipy import stats

from lab.tasks.induction import Induction


def test_the_sequence_is_laid_out_as_documented():
    batch = Induction(length=3).sequences(torch.tensor([[2, 3, 4]]))
    assert batch.tokens.tolist() == [[0, 2, 3, 4, 2, 3, 4]]
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == [4, 5]
    assert batch.sources[0, :, 0].tolist() == [-1, -1, -1, -1, 2, 3, -1]


def test_rows_and_sources_follow_the_formula():
    S = 10
    batch = Induction(length=S).sample(20, seed=0)
    assert batch.tokens.shape == (20, 2 * S + 1)
    rows = range(S + 1, 2 * S)
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == list(rows)
    for q in rows:
        assert (batch.sources[:, q, 0] == q - S + 1).all()


@pytest.mark.parametrize("length", [3, 5])
def test_a_block_has_no_symbol_twice_and_uses_all_symbols_equally(length):
    blocks = Induction(length=length, n_symbols=5).sample(5_000, seed=0).tokens[:, 1 : length + 1]
    assert all(len(set(block)) == length for block in blocks.tolist())
    for place in range(length):
        counts = torch.bincount(blocks[:, place], minlength=7)[2:]
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_a_prompt_ends_with_the_first_symbol_again():
    assert Induction(length=3).prompt("cab").tolist() == [[0, 4, 2, 3, 4]]


def test_blocks_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"^length of induction must be a whole number of at"):
        Induction(length=1)
    with pytest.raises(
        ValueError,
        match=r"^length of induction must be at most n_symbols, got 6 and 5; the symbols of a",
    ):
        Induction(length=6, n_symbols=5)
