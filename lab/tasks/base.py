"""Task: sequences with known answers and known source positions of the answers.

A subclass defines the answer and its source positions; `Task` builds sequences, masks and sources
from them. Random numbers come from `lab.tasks.counter_random`, losses from `lab.evaluation`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from lab.checks import require_whole
from lab.shapes import PositionMask, Tokens
from lab.tasks.counter_random import Split, random_words, uniform_below
from lab.tasks.registry import TASKS
from lab.vocab import BOS_ID, SEP_ID, SPECIAL_SYMBOLS, Vocab, letter_vocab

Symbols = Int[Tensor, "batch length"]
"""Token ids of letters only, without `<bos>` and `<sep>`."""
Answers = Int[Tensor, "batch answer"]
Sources = Int[Tensor, "batch pos n_sources"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of a task, with the scored positions and the source positions of the answers."""

    tokens: Tokens
    """Token ids."""
    loss_mask: PositionMask
    """True at positions p whose logits, which predict tokens[p + 1], are scored."""
    sources: Sources
    """For each query position, the key positions of its answer, padded with -1."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.tokens)

    def __getitem__(self, rows: slice) -> "Batch":
        """Return some of the sequences: batch[:64]."""
        return Batch(self.tokens[rows], self.loss_mask[rows], self.sources[rows])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch on another device."""
        parts = (self.tokens, self.loss_mask, self.sources)
        return Batch(*(part.to(device, non_blocking=non_blocking) for part in parts))


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A rule from x1..xn to its answer y, laid out as `BOS x1..xn SEP y1..ym`.

    A subclass defines `name`, `answer` and `answer_sources`, and overrides more if its layout
    differs.

    >>> from lab.tasks.registry import get_task
    >>> task = get_task("reversal", length=3)
    >>> batch = task.sequences(task.read("abc"))
    >>> "".join(task.vocab.decode(batch.tokens[0].tolist()))
    '<bos>abc<sep>cba'
    >>> batch.loss_mask.nonzero()[:, 1].tolist(), batch.sources[0, 4:7, 0].tolist()
    ([4, 5, 6], [3, 2, 1])
    """

    name: ClassVar[str]
    """The name in the registry."""

    length: int = 10
    """Symbols x1..xn that are given."""
    n_symbols: int = 26
    """Number of different symbols."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        require_whole("length", self.length, 1)
        letter_vocab(self.n_symbols)

    @property
    def summary(self) -> str:
        """One line that describes the task, from the registry."""
        return next(entry.summary for entry in TASKS if entry.name == self.name)

    @property
    def vocab(self) -> Vocab:
        """`<bos>`, `<sep>` and the letters."""
        return letter_vocab(self.n_symbols)

    @property
    def d_vocab(self) -> int:
        """Number of token ids."""
        return self.n_symbols + len(SPECIAL_SYMBOLS)

    @property
    def n_given(self) -> int:
        """Number of symbols in a whole prompt."""
        return self.length

    @property
    def n_answers(self) -> int:
        """Number of tokens in the answer to a whole prompt."""
        return self.length

    @property
    def n_tokens(self) -> int:
        """Tokens of a whole sequence: BOS, the symbols, SEP and the answer."""
        return self.n_given + 2 + self.n_answers

    @abstractmethod
    def answer(self, x: Symbols) -> Answers:
        """Return the tokens that have to be predicted after the prompt of x."""

    @abstractmethod
    def answer_sources(self, x: Symbols) -> Int[Tensor, "batch answer n_sources"]:
        """Return the positions in the whole sequence that hold each answer token; -1 for none."""

    def fixed_sources(self, x: Symbols, places: range) -> Int[Tensor, "batch answer 1"]:
        """Return the same source positions for every sequence, one for each answer token."""
        return torch.tensor(places, device=x.device).view(1, -1, 1).expand(len(x), -1, -1)

    def prompts(self, x: Symbols) -> Tokens:
        """Return the sequence before the answer: BOS, x, SEP."""
        tokens = F.pad(x, (1, 1), value=SEP_ID)
        tokens[:, 0] = BOS_ID
        return tokens

    def draw(self, n: int, *, seed: int, split: Split, step: int, first: int) -> Symbols:
        """Draw the symbols of n samples, each uniformly from all letters."""
        words = random_words(n, self.length, seed=seed, split=split, step=step, first=first)
        return torch.from_numpy(uniform_below(words, self.n_symbols) + len(SPECIAL_SYMBOLS))

    def sample(
        self, n: int, *, seed: int, split: Split = "train", step: int = 0, first: int = 0
    ) -> Batch:
        """Return n sequences on the CPU, numbers first .. first + n - 1 of a step.

        Sequence i of a step is a pure function of (seed, split, step, i). Splits are independent
        streams: if a task has few different sequences, two splits share some of them.
        """
        return self.sequences(self.draw(n, seed=seed, split=split, step=step, first=first))

    def sequences(self, x: Symbols) -> Batch:
        """Return the sequences of given symbols (see `read`).

        Raises:
            ValueError: x has no symbols or more than `n_given`, or ids that are not letters.
        """
        self.check_count(x.shape[1], "x")
        low, high = len(SPECIAL_SYMBOLS), self.d_vocab - 1
        least, most = (int(end) for end in x.aminmax()) if len(x) else (low, high)
        if least < low or most > high:
            raise ValueError(
                f"symbols must be letter ids from {low} to {high}, got {least} to {most}"
            )
        prompts, answer = self.prompts(x), self.answer(x)
        # The logits at a position predict the next token: the first scored position is the last
        # token of the prompt, and the last token of the answer is not scored.
        before, after = prompts.shape[1] - 1, 1
        return Batch(
            tokens=torch.cat([prompts, answer], dim=1),
            loss_mask=F.pad(torch.ones_like(answer, dtype=torch.bool), (before, after)),
            sources=F.pad(self.answer_sources(x), (0, 0, before, after), value=-1),
        )

    def read(self, text: str) -> Int[Tensor, "1 length"]:
        """Return the ids of a person's symbols, letters without spaces.

        Raises:
            ValueError: The text is empty, has more than `n_given` symbols, or one that is unknown.
        """
        letters = Vocab(self.vocab.symbols[len(SPECIAL_SYMBOLS) :])
        ids = [len(SPECIAL_SYMBOLS) + i for i in letters.encode(text)]
        self.check_count(len(ids), "prompt")
        return torch.tensor([ids])

    def prompt(self, text: str) -> Int[Tensor, "1 pos"]:
        """Return the prompt for a person's symbols (see `read`)."""
        return self.prompts(self.read(text))

    def check_count(self, count: int, what: str) -> None:
        """Raise ValueError unless a number of given symbols fits the task."""
        least = 1 + self.length - self.n_answers  # with fewer symbols the answer is empty
        if not least <= count <= self.length:
            got = "none" if count == 0 else f"{count}"
            raise ValueError(
                f"{what} must be {least} to {self.length} symbols for {self.name} of length "
                f"{self.length}, got {got}"
            )
