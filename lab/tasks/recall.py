"""Associative recall: pairs of a key and a value, then one of the keys again."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from lab.shapes import Tokens
from lab.tasks.base import Answers, Symbols, Task
from lab.tasks.counter_random import Split, distinct_below, random_words, uniform_below
from lab.vocab import BOS_ID, SEP_ID, SPECIAL_SYMBOLS


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """`BOS k1 v1..kn vn SEP k`, and the answer is the value after the earlier k.

    `length` counts the pairs; the symbols that are given are the pairs and the key to look up. All
    keys and values differ, so that the query has one earlier copy, at a random position: the source
    must be found by content, as an induction head does.
    """

    name: ClassVar[str] = "recall"

    def __post_init__(self) -> None:
        """Check the sizes: every pair needs two symbols of its own."""
        super().__post_init__()
        if 2 * self.length > self.n_symbols:
            raise ValueError(
                f"length of recall must be at most half of n_symbols, got {self.length} and "
                f"{self.n_symbols}; the symbols of all pairs are different"
            )

    @property
    def n_given(self) -> int:
        """The pairs, and the key to look up."""
        return 2 * self.length + 1

    @property
    def n_answers(self) -> int:
        """One value."""
        return 1

    def draw(self, n: int, *, seed: int, split: Split, step: int, first: int) -> Symbols:
        """Draw the pairs of n samples without replacement, and the key to look up."""
        words = random_words(n, self.n_symbols + 1, seed=seed, split=split, step=step, first=first)
        pairs = torch.from_numpy(distinct_below(words[:, 1:], 2 * self.length))
        which = torch.from_numpy(uniform_below(words[:, :1], self.length))
        return torch.cat([pairs, pairs.gather(1, 2 * which)], dim=1) + len(SPECIAL_SYMBOLS)

    def read(self, text: str) -> Int[Tensor, "1 given"]:
        """Return the ids of a person's pairs and the key to look up (see `Task.read`).

        Raises:
            ValueError: Also if the last symbol is not one of the keys.
        """
        x = super().read(text)
        self.places(x)
        return x

    def prompts(self, x: Symbols) -> Tokens:
        """Return BOS, the pairs, SEP and the key to look up."""
        bos, sep = x.new_full((len(x), 1), BOS_ID), x.new_full((len(x), 1), SEP_ID)
        return torch.cat([bos, x[:, :-1], sep, x[:, -1:]], dim=1)

    def answer(self, x: Symbols) -> Answers:
        """Return the value of the key to look up."""
        return x.gather(1, self.places(x))

    def answer_sources(self, x: Symbols) -> Int[Tensor, "batch 1 1"]:
        """Return the position of that value."""
        return self.places(x)[:, :, None] + 1  # after BOS

    def places(self, x: Symbols) -> Int[Tensor, "batch 1"]:
        """Return the index, in x, of the value after the key to look up.

        Raises:
            ValueError: The last symbol of x is not exactly one of its keys.
        """
        found = x[:, :-1:2] == x[:, -1:]
        if not bool((found.sum(dim=1) == 1).all()):
            raise ValueError(
                "the last symbol of recall must be exactly one of the keys, got another one; "
                "keys are every second symbol from the first on: abcdc asks for d"
            )
        return 2 * found.int().argmax(dim=1, keepdim=True) + 1

    def check_count(self, count: int, what: str) -> None:
        """Raise ValueError unless the symbols are pairs and a key."""
        if count % 2 == 0 or not 3 <= count <= self.n_given:
            got = "none" if count == 0 else f"{count}"
            raise ValueError(
                f"{what} must be 3 to {self.n_given} symbols for recall of length {self.length}, "
                f"an odd number, got {got}; pairs of a key and a value, then a key: abcdc asks for "
                "d"
            )
