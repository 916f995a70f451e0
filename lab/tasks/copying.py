"""Copying: the answer repeats the given symbols."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Int
from torch import Tensor

from lab.tasks.base import Answers, Symbols, Task


@dataclass(frozen=True, kw_only=True)
class Copying(Task):
    """`BOS x1..xn SEP x1..xn`.

    The logits at p = n + t predict y_t, whose source is at t: n positions back on every row. From
    t = 2 on, an induction head attends to the same cells; at t = 1 it has no earlier match.
    """

    name: ClassVar[str] = "copy"

    def answer(self, x: Symbols) -> Answers:
        """Return the symbols, unchanged."""
        return x

    def answer_sources(self, x: Symbols) -> Int[Tensor, "batch answer 1"]:
        """Return 1 .. n, the positions of the symbols."""
        return self.fixed_sources(x, range(1, x.shape[1] + 1))
