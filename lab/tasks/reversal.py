"""Reversal: the answer is the given symbols, last one first."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Int
from torch import Tensor

from lab.tasks.base import Answers, Symbols, Task


@dataclass(frozen=True, kw_only=True)
class Reversal(Task):
    """`BOS x1..xn SEP xn..x1`.

    The logits at p = n + t predict y_t, whose source is at n - t + 1: p plus its source is 2n + 1
    on every row, the anti-diagonal.
    """

    name: ClassVar[str] = "reversal"

    def answer(self, x: Symbols) -> Answers:
        """Return the symbols, last one first."""
        return x.flip(1)

    def answer_sources(self, x: Symbols) -> Int[Tensor, "batch answer 1"]:
        """Return n, n - 1 .. 1, the positions of the symbols."""
        return self.fixed_sources(x, range(x.shape[1], 0, -1))
