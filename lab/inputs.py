"""Checks of the input of a forward pass.

PyTorch kernels misread, broadcast or clip many invalid inputs without an error. The checks read
only types and shapes, except that an integer mask must have only the values 0 and 1.
"""

from typing import Any

import torch
from torch import Tensor

from lab.checks import is_whole
from lab.config import ModelConfig
from lab.naming import quoted
from lab.shapes import PositionMask, Resid, Tokens


def shape_of(value: object) -> str:
    """Describe a foreign value briefly, for a message."""
    if not isinstance(value, Tensor):
        return quoted(value)
    return f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"


def checked_ids(tokens: Any, what: str = "token ids") -> Tokens:
    """Return token ids [batch, pos] in int64.

    Raises:
        ValueError: Their type is not int64 or int32, or they have another shape.
    """
    if isinstance(tokens, Tensor) and tokens.ndim == 2:
        if tokens.dtype == torch.int64:
            return tokens
        if tokens.dtype == torch.int32:
            return tokens.long()
    raise ValueError(f"{what} must be int64 or int32 of shape [batch, pos], got {shape_of(tokens)}")


def checked_residual(residual: Any, config: ModelConfig) -> Resid:
    """Return a residual stream that a layer can start from.

    Raises:
        ValueError: It is not a residual stream, or has more positions than n_ctx.
    """
    if not (
        isinstance(residual, Tensor)
        and residual.ndim == 3
        and residual.is_floating_point()
        and residual.shape[2] == config.d_model
        and 1 <= residual.shape[1] <= config.n_ctx
    ):
        raise ValueError(
            "input with start_at_layer must be a residual stream [batch, pos, d_model] with "
            f"d_model = {config.d_model} and 1 to n_ctx = {config.n_ctx} positions, "
            f"got {shape_of(residual)}"
        )
    return residual


def check_layer(name: str, layer: Any, n_layers: int) -> None:
    """Raise ValueError unless a layer to start or stop at is None or from -n_layers to n_layers."""
    if layer is not None and not (is_whole(layer) and -n_layers <= layer <= n_layers):
        raise ValueError(
            f"{name} must be a whole number from {-n_layers} to n_layers = {n_layers} or None, "
            f"got {shape_of(layer)}"
        )


def checked_mask(
    mask: Any, batch: int, n_pos: int, device: torch.device | None = None
) -> PositionMask:
    """Return an attention_mask as booleans [batch, pos], True at unpadded tokens.

    Args:
        mask: Booleans or whole numbers 0 and 1, a row for each sequence or one row for all.
        batch: Sequences of this call.
        n_pos: Tokens of this call.
        device: Device of the result; None: that of the mask.

    Raises:
        ValueError: It has other values, for example 0 and -inf to be added to scores.
    """
    if not isinstance(mask, Tensor) or mask.is_floating_point() or mask.is_complex():
        raise ValueError(
            "attention_mask must be a tensor of booleans or of 0 and 1 in whole numbers, "
            f"got {shape_of(mask)}"
        )
    shape = tuple(mask.shape)
    # Number by number: torch.compile cannot compare tuples of sizes that it keeps open.
    fits = len(shape) == 2 and (shape[0] == batch or shape[0] == 1) and shape[1] == n_pos
    if not fits:
        raise ValueError(
            f"attention_mask must be of shape {(batch, n_pos)}, got {shape}; give the tokens of "
            "this call a row for each sequence, or one row for all"
        )
    if mask.dtype != torch.bool:
        if not torch.compiler.is_compiling() and bool(((mask != 0) & (mask != 1)).any()):
            raise ValueError(
                "attention_mask must be 1 at real tokens and 0 at padding, "
                f"got {mask.min().item()} to {mask.max().item()}"
            )
        mask = mask.bool()
    return mask.to(device).expand(batch, n_pos)
