"""Numbers that depend on nothing but where they are used, and that behave like random ones."""

import itertools

import numpy as np
import pytest
from scipy import stats

from lab.tasks.counter_random import SPLITS, distinct_below, random_words, uniform_below

N = 26 * 26 * 40  # every cell of a 26 x 26 table is expected 40 times


def philox(counter: int, key: int) -> list[int]:
    """Philox4x64-10 as the paper prints it, in Python's whole numbers."""
    mask = 2**64 - 1
    c = [counter >> 64 * i & mask for i in range(4)]
    k = [key >> 64 * i & mask for i in range(2)]
    for _ in range(10):
        a, b = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
        c = [b >> 64 ^ c[1] ^ k[0], b & mask, a >> 64 ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
    return c


def test_oracle_gives_the_published_answer():
    # Random123's known-answer file, philox4x64 10, counter and key all zeros.
    assert philox(0, 0)[:2] == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC]


@pytest.mark.parametrize("split", SPLITS)
def test_words_are_philox_of_seed_step_split_and_sample(split):
    words = random_words(3, 6, seed=2**64 - 1, split=split, step=5, first=7)
    for row, i in enumerate(range(7, 10)):
        for block, start in ((0, 0), (1, 4)):
            # NumPy adds one to the counter before it uses it.
            counter = (2 * i + block + 1) | SPLITS[split] << 192
            want = philox(counter, (2**64 - 1) | 5 << 64)
            assert words[row, start : start + 4].tolist() == want[: 6 - start]


def test_split_numbers_are_as_published():
    assert SPLITS == {"train": 0, "test": 1, "reference": 2}


@pytest.mark.parametrize("draws", [1, 4, 5, 10])
def test_rows_do_not_depend_on_who_else_is_drawn(draws):
    whole = random_words(8, draws, seed=3, step=2)
    parts = [random_words(4, draws, seed=3, step=2, first=first) for first in (0, 4)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_no_two_uses_share_a_word():
    uses = itertools.product(range(3), SPLITS, range(3))
    words = [random_words(50, 10, seed=s, split=p, step=t) for s, p, t in uses]
    assert len(np.unique(np.stack(words))) == 27 * 50 * 10


def test_every_value_is_equally_frequent_at_every_draw():
    values = uniform_below(random_words(N, 5, seed=0), 26)
    for draw in range(5):
        counts = np.bincount(values[:, draw], minlength=26)
        assert len(counts) == 26
        assert stats.chisquare(counts).pvalue > 1e-3


def independent(a: np.ndarray, b: np.ndarray) -> bool:
    """Chi-square test of the table of pairs against the product of uniform margins."""
    counts = np.bincount(26 * a + b, minlength=26 * 26)
    return stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    "neighbour",
    [{"seed": 1}, {"seed": 2**32}, {"step": 1}, {"split": "test"}, {"split": "reference"}],
    ids=str,
)
def test_neighbouring_streams_are_independent(neighbour):
    here = uniform_below(random_words(N, 1, seed=0), 26)[:, 0]
    there = uniform_below(random_words(N, 1, **({"seed": 0} | neighbour)), 26)[:, 0]
    assert independent(here, there)


def test_neighbouring_samples_draws_and_equal_sums_are_independent():
    values = uniform_below(random_words(N + 1, 5, seed=0), 26)
    assert independent(values[:-1, 0], values[1:, 0])
    for draw in range(4):
        assert independent(values[:-1, draw], values[:-1, draw + 1])
    # A hash of seed + step would give the same stream to (1, 0) and (0, 1).
    a, b = (uniform_below(random_words(N, 1, seed=s, step=1 - s), 26)[:, 0] for s in (0, 1))
    assert independent(a, b)


def test_draws_without_replacement_are_distinct_and_every_order_is_equally_frequent():
    picked = distinct_below(random_words(24_000, 5, seed=0), 3)
    assert picked.shape == (24_000, 3)
    assert all(len(set(row)) == 3 for row in picked[:200].tolist())
    orders = np.unique(picked, axis=0, return_counts=True)[1]
    assert len(orders) == 5 * 4 * 3
    assert stats.chisquare(orders).pvalue > 1e-3


def test_uniform_below_reaches_both_ends_and_no_further():
    ends = np.array([[0, 2**64 - 1, 2**63]], dtype=np.uint64)
    assert uniform_below(ends, 26).tolist() == [[0, 25, 13]]


@pytest.mark.parametrize(
    "bad", [{"seed": -1}, {"seed": 2**64}, {"seed": 0, "step": -1}, {"seed": 0, "first": -1}]
)
def test_numbers_that_do_not_fit_are_refused(bad):
    with pytest.raises(ValueError, match=r"^(seed|step|first) must be from 0 to 2\*\*64 - 1, got"):
        random_words(2, 3, **bad)
