"""Evaluation on the answers: loss, per-token accuracy and exact match.

The loss of the answers, which training minimises, is defined here too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lab.checks import require_whole
from lab.gates import GateTensors, HeadGates
from lab.shapes import Logits
from lab.tasks.base import Batch

_UNSCORED = -100  # the target that cross_entropy leaves out


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of a model on some sequences; each answer token is predicted from the true prefix."""

    loss: float
    """Mean of -ln p(answer token), in nats."""
    token_accuracy: float
    """Share of answer tokens with the largest logit."""
    exact_match: float
    """Share of these sequences whose answer tokens are all right."""
    n_sequences: int
    """Sequences with an answer token."""


def answer_loss(
    logits: Logits, batch: Batch, *, reduce: Literal["mean", "sequence"] = "mean"
) -> Float[Tensor, ""] | Float[Tensor, " batch"]:
    """Return the mean of -ln p(tokens[p + 1]) over the rows p that count, in nats.

    The given symbols are random: their loss cannot be learned and would hide that of the answers.

    Args:
        logits: The model's output for batch.tokens; half precision is read in float32.
        batch: The sequences.
        reduce: "mean", one number over all rows of the batch; "sequence", one for each sequence
            (NaN where a sequence has no row that counts).
    """
    if reduce == "mean":
        return _cross_entropy(logits, _targets(batch), "mean")
    return _row_losses(logits, batch).sum(dim=1) / batch.loss_mask.sum(dim=1)


def evaluate(
    model: nn.Module,
    batch: Batch,
    *,
    gates: HeadGates | GateTensors | None = None,
    chunk: int = 500,
) -> Evaluation:
    """Measure a model on a batch, without gradients and in eval mode; the mode is restored.

    Args:
        model: Gives logits [batch, pos, d_vocab] for `model(tokens, gates=gates)`: a HookedGPT.
        batch: The sequences, on any device.
        gates: Interventions on heads, for every forward pass.
        chunk: Sequences in one forward pass; changes memory and speed, not the result.

    Raises:
        ValueError: No row of the batch counts.
    """
    require_whole("chunk", chunk, 1)
    answered = batch.loss_mask.any(dim=1)
    if not bool(answered.any()):
        raise ValueError(
            "a batch to evaluate must have at least 1 row that counts, got none in "
            f"{len(batch)} sequences; give sequences with an answer, marked in loss_mask"
        )
    device = next(model.parameters(), batch.tokens).device
    loss, right_tokens, right_sequences, n_rows = 0.0, 0, 0, 0
    with torch.no_grad(), eval_mode(model):
        for start in range(0, len(batch), chunk):
            rows = slice(start, start + chunk)
            part = batch[rows].to(device)
            logits = model(part.tokens, gates=_gates_of(gates, rows))
            loss += _row_losses(logits, part).sum(dtype=torch.float64).item()
            right = (logits.argmax(dim=-1) == _targets(part)) & part.loss_mask
            right_tokens += int(right.sum())
            whole = (right == part.loss_mask).all(dim=1) & part.loss_mask.any(dim=1)
            right_sequences += int(whole.sum())
            n_rows += int(part.loss_mask.sum())
    n_sequences = int(answered.sum())
    return Evaluation(
        loss=loss / n_rows,
        token_accuracy=right_tokens / n_rows,
        exact_match=right_sequences / n_sequences,
        n_sequences=n_sequences,
    )


def _targets(batch: Batch) -> Int[Tensor, "batch pos"]:
    """Return the token that each scored row predicts."""
    return batch.tokens.roll(-1, dims=1).masked_fill(~batch.loss_mask, _UNSCORED)


def _cross_entropy(logits: Logits, targets: Int[Tensor, "batch pos"], reduction: str) -> Tensor:
    full = logits.to(torch.promote_types(logits.dtype, torch.float32))
    try:
        return F.cross_entropy(
            full.flatten(0, 1), targets.flatten(), reduction=reduction, ignore_index=_UNSCORED
        )
    except IndexError:  # raised on the CPU; a GPU does not check the answers
        raise ValueError(
            f"d_vocab_out must be above every answer, got {logits.shape[-1]} for answers up to "
            f"{targets.max().item()}; give sequences with answers in the model's vocabulary"
        ) from None


def _row_losses(logits: Logits, batch: Batch) -> Float[Tensor, "batch pos"]:
    """Return the loss of every row, 0 where it does not count."""
    return _cross_entropy(logits, _targets(batch), "none").view_as(batch.tokens)


def _gates_of(gates: HeadGates | GateTensors | None, rows: slice) -> HeadGates | GateTensors | None:
    """Return the gates of some of the sequences."""
    if not isinstance(gates, GateTensors):
        return gates
    fill = None if gates.fill is None else _batch_rows(gates.fill, rows)
    return GateTensors(g=_batch_rows(gates.g, rows), fill=fill)


def _batch_rows(values: Tensor, rows: slice) -> Tensor:
    """Take rows of axis 1, unless it is broadcast."""
    return values if values.shape[1] == 1 else values[:, rows]


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode and give every module its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
