"""The value behind the key, cell by cell, and pairs in which no symbol stands twice."""

import pytest
import torch
from scipy import stats

from lab.tasks.recall import Recall


def test_the_sequence_is_laid_out_as_documented():
    batch = Recall(length=3).sequences(torch.tensor([[2, 3, 4, 5, 6, 7, 4]]))
    assert batch.tokens.tolist() == [[0, 2, 3, 4, 5, 6, 7, 1, 4, 5]]
    assert batch.loss_mask[0].nonzero()[:, 0].tolist() == [8]
    assert batch.sources[0, :, 0].tolist() == [-1] * 8 + [4, -1]


def test_the_source_stands_behind_the_only_earlier_copy_of_the_query():
    batch = Recall(length=5, n_symbols=12).sample(200, seed=0)
    assert batch.tokens.shape == (200, 14)
    for tokens, source in zip(batch.tokens.tolist(), batch.sources[:, 12, 0].tolist(), strict=True):
        *pairs, query = tokens[1:11] + tokens[12:13]
        assert len(set(pairs)) == 10
        assert source == pairs.index(query) + 2
        assert pairs.index(query) % 2 == 0


def test_every_pair_is_asked_for_equally_often_and_every_symbol_used():
    x = Recall(length=4, n_symbols=9).sample(4_000, seed=0)
    asked = torch.bincount(x.sources[:, 10, 0], minlength=9)
    assert asked.nonzero()[:, 0].tolist() == [2, 4, 6, 8]
    assert stats.chisquare(asked[2::2].numpy()).pvalue > 1e-3
    for place in (1, 8):
        counts = torch.bincount(x.tokens[:, place], minlength=11)[2:]
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_the_question_does_not_depend_on_the_pairs():
    """One random word each: with a shared one, early symbols would be asked for more often."""
    x = Recall(length=4, n_symbols=9).sample(9_000, seed=1)
    table = torch.zeros(4, 9)
    for place, first in zip(x.sources[:, 10, 0].tolist(), x.tokens[:, 1].tolist(), strict=True):
        table[place // 2 - 1, first - 2] += 1
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-3


def test_what_is_asked_for_must_be_a_key():
    task = Recall(length=3, n_symbols=8)
    assert task.prompt("abcda").tolist() == [[0, 2, 3, 4, 5, 1, 2]]
    for text in ("abcdb", "abcde", "abada"):
        with pytest.raises(ValueError, match=r"^the last symbol of recall must be exactly one of"):
            task.prompt(text)
    for text in ("", "ab", "abcd", "abcdefgha"):
        with pytest.raises(ValueError, match=r"^prompt must be 3 to 7 symbols for recall of len"):
            task.prompt(text)


def test_more_pairs_than_symbols_are_refused():
    with pytest.raises(
        ValueError, match=r"^length of recall must be at most half of n_symbols, got 5 and 9; the"
    ):
        Recall(length=5, n_symbols=9)
