"""Sorting: the answer is the given symbols in the order of the alphabet."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from lab.tasks.base import Answers, Symbols, Task


@dataclass(frozen=True, kw_only=True)
class Sorting(Task):
    """`BOS x1..xn SEP y1..yn`, y the symbols of x from the lowest id to the highest.

    An answer has no fixed source position: its sources are all positions with its symbol, so that a
    row has up to n sources.
    """

    name: ClassVar[str] = "sorting"

    def answer(self, x: Symbols) -> Answers:
        """Return the symbols, lowest id first."""
        return x.sort(dim=1).values

    def answer_sources(self, x: Symbols) -> Int[Tensor, "batch answer given"]:
        """Return, for each answer, the positions of all equal symbols; -1 elsewhere."""
        equal = self.answer(x)[:, :, None] == x[:, None, :]
        places = torch.arange(1, x.shape[1] + 1, device=x.device)
        return torch.where(equal, places, -1)
