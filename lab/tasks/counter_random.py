"""Counter-based random numbers: a pure function of seed, step and sample, without state.

Philox4x64 (Salmon et al., SC 2011) turns a key and a counter into four random words. Here the key
is (seed, step) and the counter is (split, sample, block of draws): every number can be computed
alone, in any order, on any machine, and no two uses share one. NumPy keeps the bits of its Philox
unchanged between versions (NEP 19). Tasks turn these words into symbols.
"""

from typing import Literal

import numpy as np
from jaxtyping import Int64, UInt64

Split = Literal["train", "test", "reference"]
SPLITS: dict[Split, int] = {"train": 0, "test": 1, "reference": 2}
"""The number of each split; once published, a number never changes."""

Words = UInt64[np.ndarray, "sample draw"]

_BLOCK = 4  # words that Philox makes from one counter


def random_words(
    n: int, draws: int, *, seed: int, split: Split = "train", step: int = 0, first: int = 0
) -> Words:
    """Return draws random 64-bit words for each of the samples first .. first + n - 1.

    Row i depends only on (seed, split, step, first + i), so that processes and micro-batches can
    each draw their own rows of one global batch.

    Raises:
        ValueError: a number is negative or needs more than 64 bits.
    """
    for name, value in (("seed", seed), ("step", step), ("first", first), ("n", n)):
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} must be from 0 to 2**64 - 1, got {value}")
    blocks = -(-draws // _BLOCK)  # whole blocks, so that every row starts at a counter of its own
    philox = np.random.Philox(
        key=seed | step << 64, counter=(first * blocks) | SPLITS[split] << 192
    )
    return philox.random_raw(n * blocks * _BLOCK).reshape(n, blocks * _BLOCK)[:, :draws]


def uniform_below(words: Words, bound: int) -> Int64[np.ndarray, "sample draw"]:
    """Turn words into whole numbers from 0 to bound - 1, by the high bits of word * bound.

    A number's probability differs from 1 / bound by less than 2**-32 (bound below 2**32).
    """
    return ((words >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32)).astype(np.int64)


def distinct_below(words: Words, count: int) -> Int64[np.ndarray, "sample {count}"]:
    """Turn each row of words into count different whole numbers below the row's length.

    The words are sort keys: the order of random keys is a uniform permutation, and its first
    entries are a draw without replacement.
    """
    return np.argsort(words, axis=1)[:, :count]
