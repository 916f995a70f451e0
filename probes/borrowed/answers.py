"""Which answers are measured, in which rows, and against which other answers.

The one number that patching, edges and attributions are about: the logit of the right answer, less
that of another where there is one. Losses and accuracies are `lab.evaluation`'s.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lab.shapes import Logits, PositionMask, Tokens
from lab.tasks.base import Batch
from probes.reading.observed_model import ReadableModel, as_batch, model_device, require_finite

PerSequence = Int[Tensor, " batch"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """Answers by row; called with logits, it returns one number for each sequence.

    answers(logits) = mean of logit(right) - logit(wrong) over the rows that count; without wrong
    ones the mean of logit(right). 0 for a sequence in which no row counts.
    """

    right: Tokens
    """The id that the logits of a row should favour."""
    wrong: Tokens | None
    """The id whose logit is subtracted; None: nothing is subtracted."""
    rows: PositionMask
    """The rows that count."""

    @classmethod
    def of(cls, batch_or_tokens: Batch | Tokens) -> "Answers":
        """Return the next tokens of a batch in its scored rows, of plain tokens in every row."""
        batch = as_batch(batch_or_tokens)
        return cls(right=next_tokens(batch), wrong=None, rows=batch.loss_mask)

    @classmethod
    def between(cls, clean: Batch | Tokens, corrupt: Batch | Tokens) -> "Answers":
        """Return the clean answers against the corrupt ones, in the rows where they differ.

        Raises:
            ValueError: The shapes differ, or no answer does.
        """
        one, other = as_batch(clean), as_batch(corrupt)
        require_pairs(one.tokens, other.tokens)
        right, wrong = next_tokens(one), next_tokens(other)
        rows = one.loss_mask & other.loss_mask & (right != wrong)
        if not bool(rows.any()):
            raise ValueError(
                "clean and corrupt sequences must have different answers in some row, got the "
                "same ones; pass answers=Answers.after(prompts, right, wrong)"
            )
        return cls(right=right, wrong=wrong, rows=rows)

    @classmethod
    def after(
        cls, prompts: Tokens, right: PerSequence, wrong: PerSequence | None = None
    ) -> "Answers":
        """Return one answer for each prompt, measured in its last row.

        Args:
            prompts: The prompts, [batch, pos].
            right: The id that should come next, of each prompt.
            wrong: The id to compare with, of each prompt; None: none.

        Raises:
            ValueError: There is not one id for each prompt.
        """
        for name, ids in (("right", right), ("wrong", wrong)):
            if ids is not None and ids.shape != prompts.shape[:1]:
                raise ValueError(
                    f"{name} must be one id for each of the {len(prompts)} prompts, got the shape "
                    f"{list(ids.shape)}"
                )
        rows = torch.zeros_like(prompts, dtype=torch.bool)
        rows[:, -1] = True
        wrong_ids = None if wrong is None else rows * wrong.unsqueeze(1)
        return cls(right=rows * right.unsqueeze(1), wrong=wrong_ids, rows=rows)

    def __call__(self, logits: Logits) -> Float[Tensor, " batch"]:
        """Return the difference of logits of each sequence: its mean over the rows that count."""
        return (self.gaps(logits) * self.rows).sum(dim=1) / self.rows.sum(dim=1).clamp(min=1)

    def gaps(self, logits: Logits) -> Float[Tensor, "batch pos"]:
        """Return the difference of logits of every row, whether it counts or not.

        Raises:
            ValueError: The model has no logit for an answer.
        """
        right = logits_of(logits, self.right)
        return right if self.wrong is None else right - logits_of(logits, self.wrong)

    def __getitem__(self, some: slice | Bool[Tensor, " batch"]) -> "Answers":
        """Return the answers of some sequences."""
        wrong = None if self.wrong is None else self.wrong[some]
        return Answers(right=self.right[some], wrong=wrong, rows=self.rows[some])

    def to(self, device: torch.device) -> "Answers":
        """Return the answers on another device."""
        wrong = None if self.wrong is None else self.wrong.to(device)
        return Answers(right=self.right.to(device), wrong=wrong, rows=self.rows.to(device))


def logits_of(logits: Logits, ids: Tokens) -> Float[Tensor, "batch pos"]:
    """Return the logit of one id in each row.

    Raises:
        ValueError: The model has no logit for an id.
    """
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= logits.shape[2]:
        raise ValueError(
            f"answers must be ids from 0 to {logits.shape[2] - 1}, which the model has logits "
            f"for, got {low} to {high}"
        )
    return logits.gather(2, ids.unsqueeze(2)).squeeze(2)


def next_tokens(batch: Batch) -> Tokens:
    """Return the token that each scored row predicts, and 0, which every model knows, elsewhere."""
    return batch.tokens.roll(-1, dims=1) * batch.loss_mask


def asked_pairs(
    model: ReadableModel,
    clean: Batch | Tokens,
    corrupt: Batch | Tokens,
    answers: Answers | None,
) -> tuple[Tokens, Tokens, Answers]:
    """Return the pairs in which some row counts, clean and corrupt, on the model's device.

    Raises:
        ValueError: The sequences do not pair up, no row is scored, or a weight is not a
            number.
    """
    require_finite(model)
    good, bad = (tokens_of(each).to(model_device(model)) for each in (clean, corrupt))
    require_pairs(good, bad)
    asked = (Answers.between(clean, corrupt) if answers is None else answers).to(good.device)
    require_asked(asked, good)
    counted = asked.rows.any(dim=1)
    return good[counted], bad[counted], asked[counted]


def require_asked(answers: Answers, tokens: Tokens) -> None:
    """Reject answers that belong to other sequences, or that have no scored row.

    Raises:
        ValueError: The shapes differ, or no row counts.
    """
    if answers.rows.shape != tokens.shape:
        raise ValueError(
            f"answers must have the shape {list(tokens.shape)} of the tokens, got "
            f"{list(answers.rows.shape)}"
        )
    if not bool(answers.rows.any()):
        raise ValueError(
            "answers must have at least one scored row, got none; pass "
            "answers=Answers.after(prompts, right)"
        )


def require_pairs(clean: Tokens, corrupt: Tokens) -> None:
    """Reject sequences that cannot be compared position by position.

    Raises:
        ValueError: The shapes differ, or there is no sequence.
    """
    if clean.shape != corrupt.shape or clean.numel() == 0:
        raise ValueError(
            "clean and corrupt tokens must be as many sequences of one length, got "
            f"{list(clean.shape)} and {list(corrupt.shape)}"
        )


def tokens_of(batch_or_tokens: Batch | Tokens) -> Tokens:
    """Return the token ids of a batch, or plain ones as they are."""
    return as_batch(batch_or_tokens).tokens
