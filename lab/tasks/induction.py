"""Induction: a block of different symbols, repeated; the answer continues the second copy."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from lab.checks import require_whole
from lab.shapes import Tokens
from lab.tasks.base import Answers, Symbols, Task
from lab.tasks.counter_random import Split, distinct_below, random_words
from lab.vocab import BOS_ID, SPECIAL_SYMBOLS


@dataclass(frozen=True, kw_only=True)
class Induction(Task):
    """`BOS a1..aS a1..aS`, with no separator; the symbols of a block are all different.

    The prompt ends with the second a1, and the answer is a2..aS. A row q = S + 1 .. 2S - 1 predicts
    the token that followed its own token the first time, at q - S + 1.
    """

    name: ClassVar[str] = "induction"

    def __post_init__(self) -> None:
        """Check the sizes: a block needs a symbol to continue with, and different symbols."""
        super().__post_init__()
        require_whole("length of induction", self.length, 2)
        if self.length > self.n_symbols:
            raise ValueError(
                f"length of induction must be at most n_symbols, got {self.length} and "
                f"{self.n_symbols}; the symbols of a block are all different"
            )

    @property
    def n_answers(self) -> int:
        """The block without its first symbol, which is part of the prompt."""
        return self.length - 1

    def draw(self, n: int, *, seed: int, split: Split, step: int, first: int) -> Symbols:
        """Draw the blocks of n samples, without replacement."""
        words = random_words(n, self.n_symbols, seed=seed, split=split, step=step, first=first)
        return torch.from_numpy(distinct_below(words, self.length) + len(SPECIAL_SYMBOLS))

    def prompts(self, x: Symbols) -> Tokens:
        """Return BOS, the block, and its first symbol again."""
        return torch.cat([x.new_full((len(x), 1), BOS_ID), x, x[:, :1]], dim=1)

    def answer(self, x: Symbols) -> Answers:
        """Return the rest of the block."""
        return x[:, 1:]

    def answer_sources(self, x: Symbols) -> Int[Tensor, "batch answer 1"]:
        """Return 2 .. S, the positions of the rest of the first block."""
        return self.fixed_sources(x, range(2, x.shape[1] + 1))
