"""Converts the input of `generate` (texts, ids) to tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lab.checks import is_whole
from lab.model import GPT
from lab.naming import quoted
from lab.shapes import Tokens

Prompts = Int[Tensor, "*axes"] | Sequence[Any] | str
"""Token ids [batch, pos] or [pos], lists of them, or texts with the same number of tokens."""
StopIds = Int[Tensor, "..."] | Sequence[Any] | int | str
"""Token ids or texts of one token: one, or several."""


def prompt_tokens(model: GPT, prompts: Prompts) -> Tokens:
    """Return prompts as a batch; one prompt becomes a batch of one.

    Raises:
        ValueError: They are not token ids, texts without a tokenizer, or not equally long.
    """
    if isinstance(prompts, str) or (
        isinstance(prompts, list | tuple) and prompts and isinstance(prompts[0], str)
    ):
        return model.to_tokens(prompts)
    ids = whole_numbers("prompts", prompts)
    ids = ids.unsqueeze(0) if ids.ndim == 1 else ids
    if ids.ndim != 2:
        raise ValueError(
            f"prompts must be of shape [batch, pos] or [pos], got shape {list(ids.shape)}"
        )
    return ids


def prompt_mask(mask: Any) -> Tensor | None:
    """Return an attention_mask as a tensor [batch, pos].

    Raises:
        ValueError: It is neither a tensor nor lists of numbers.
    """
    if mask is None:
        return None
    try:
        found = torch.as_tensor(mask)
    except (ValueError, TypeError, RuntimeError):
        raise ValueError(
            f"attention_mask must be 0 at padding and 1 at tokens, got {quoted(mask)}"
        ) from None
    return found.unsqueeze(0) if found.ndim == 1 else found


def stop_tokens(model: GPT, stop_ids: StopIds) -> tuple[int, ...]:
    """Return the ids that end a sequence.

    Raises:
        ValueError: One is neither a token id nor the text of one token.
    """
    if isinstance(stop_ids, Tensor):
        return tuple(whole_numbers("stop_ids", stop_ids).reshape(-1).tolist())
    asked: list[Any] = list(stop_ids) if isinstance(stop_ids, list | tuple) else [stop_ids]
    for one in asked:
        if not (isinstance(one, str) or is_whole(one)):
            raise ValueError(f"stop_ids must be token ids or texts of one, got {quoted(one)}")
    return tuple(model.to_single_token(one) for one in asked)


def whole_numbers(what: str, given: Any) -> Tensor:
    """Return numbers as an integer tensor; bool and float are rejected.

    Raises:
        ValueError: They are something else, or lists of different lengths.
    """
    try:
        found = torch.as_tensor(given)
    except (ValueError, TypeError, RuntimeError):
        raise ValueError(
            f"{what} must be token ids, in lists of one length, got {quoted(given)}; join prompts "
            "of different lengths with lab.generation.left_padded"
        ) from None
    if not (found.numel() or isinstance(given, Tensor)):  # an empty list has no type
        found = found.long()
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise ValueError(f"{what} must be whole numbers, got {found.dtype}")
    return found
