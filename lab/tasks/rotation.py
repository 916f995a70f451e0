"""Rotation: the answer begins in the middle of the given symbols and wraps around."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from lab.checks import require_whole
from lab.tasks.base import Answers, Symbols, Task


@dataclass(frozen=True, kw_only=True)
class Rotation(Task):
    """`BOS x1..xn SEP x(r+1)..xn x1..xr`, r being `shift` modulo n.

    The logits at p = n + t predict y_t, whose source is at ((t - 1 + r) mod n) + 1: two diagonals,
    n - r positions back while t <= n - r, and 2n - r back from there on. Within each, an induction
    head attends to the same cells from the second row on.
    """

    name: ClassVar[str] = "rotation"

    shift: int = 3
    """Number of symbols that move from the front to the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("shift", self.shift, 1)

    def answer(self, x: Symbols) -> Answers:
        """Return the symbols, the first `shift` of them last."""
        return x.roll(-self.shift, dims=1)

    def answer_sources(self, x: Symbols) -> Int[Tensor, "batch answer 1"]:
        """Return r + 1 .. n, 1 .. r, the positions of the symbols."""
        count = x.shape[1]
        places = torch.arange(1, count + 1, device=x.device).roll(-self.shift)
        return places.view(1, count, 1).expand(len(x), -1, -1)
