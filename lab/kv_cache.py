"""A cache of the keys and values of earlier positions, which makes the next token cheap."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lab.attention import SharedKeys
from lab.config import ModelConfig
from lab.shapes import HeadVectors

HeadsFirst = Float[Tensor, "batch kv_head room d_head"]
Smaller = Float[Tensor, "batch kv_head old_room d_head"]
Step = Float[Tensor, "batch kv_head new_pos d_head"]


class KeyValueCache:
    """The keys and values of the positions that were already computed, layer by layer.

    Pass the same object to each call of forward, with the new tokens only. Memory is allocated
    ahead and doubled when it is full, so that a step copies only its own keys. Do not edit the
    weights while a cache is in use: its content was computed from them.
    """

    def __init__(self, n_layers: int, room: int = 0) -> None:
        """Start with no positions.

        Args:
            n_layers: Layers of the model.
            room: Positions to make room for at once, when the whole length is known.
        """
        self.length = 0
        """Positions that every layer has processed; an interrupted step does not count."""
        self.room = room
        self.layers: list[tuple[HeadsFirst, HeadsFirst] | None] = [None] * n_layers
        self.real: Bool[Tensor, "batch key_pos"] | None = None
        """True at unpadded tokens of the positions so far; None: no padding."""

    def check(self, config: ModelConfig, batch: int) -> None:
        """Raise ValueError unless the cache fits the model and the batch."""
        n_layers = config.n_layers
        if config.attention_dir != "causal":
            raise ValueError(
                "kv_cache must be used with a causal model, got attention_dir = "
                f"{config.attention_dir!r}: its earlier positions change with later ones"
            )
        if len(self.layers) != n_layers:
            raise ValueError(
                f"kv_cache must have as many layers as the model, {n_layers}, "
                f"got {len(self.layers)}; start a new one: KeyValueCache({n_layers})"
            )
        if self.length:
            check_batch(self.layers[0], batch)

    def extend_mask(
        self, mask: Bool[Tensor, "batch pos"] | None, batch: int, n_pos: int
    ) -> Bool[Tensor, "batch key_pos"] | None:
        """Append the mask of the new tokens (None: no padding), and return the whole mask."""
        known = mask if self.real is None else self.real
        if known is None:
            return None
        past = known.new_ones(batch, self.length) if self.real is None else known[:, : self.length]
        new = known.new_ones(batch, n_pos) if mask is None else mask
        self.real = torch.cat([past, new], dim=1)
        return self.real

    def extend(self, layer: int, k: HeadVectors, v: HeadVectors) -> tuple[SharedKeys, SharedKeys]:
        """Append new keys and values of a layer after its first `length`, and return all.

        Raises:
            ValueError: Their batch size differs from the earlier positions'.
        """
        start, stop = self.length, self.length + k.shape[1]
        past = self.layers[layer]
        check_batch(past, k.shape[0])
        new = (k.transpose(1, 2), v.transpose(1, 2))  # [batch, kv_head, pos, d_head]
        if k.requires_grad or v.requires_grad:
            # Autograd needs every earlier state, so no buffer is overwritten.
            old = new if past is None else past
            keys, values = (
                torch.cat([o[:, :, :start], n], dim=2) for o, n in zip(old, new, strict=True)
            )
        else:
            keys, values = self._with_room(past, new, start, stop)
            for buffer, n in zip((keys, values), new, strict=True):
                buffer.narrow(2, start, stop - start).copy_(n)
        self.layers[layer] = keys, values
        return keys.narrow(2, 0, stop).transpose(1, 2), values.narrow(2, 0, stop).transpose(1, 2)

    def _with_room(
        self,
        past: tuple[Smaller, Smaller] | None,
        new: tuple[Step, Step],
        start: int,
        stop: int,
    ) -> tuple[HeadsFirst, HeadsFirst]:
        """Return buffers that hold the first `start` positions and have room up to `stop`."""
        # A buffer that autograd tracks (it grew while gradients were on) is not overwritten.
        if past is not None and past[0].shape[2] >= stop and not past[0].requires_grad:
            return past
        room = max(self.room, stop if past is None else 2 * stop)
        old = new if past is None else past
        keys, values = (n.new_empty(*n.shape[:2], room, n.shape[3]) for n in new)
        keys[:, :, :start], values[:, :, :start] = (o[:, :, :start].detach() for o in old)
        return keys, values


def check_batch(past: tuple[HeadsFirst, HeadsFirst] | None, batch: int) -> None:
    """Raise ValueError if a layer's keys and values have another batch size."""
    if past is not None and past[0].shape[0] != batch:
        raise ValueError(
            f"a kv_cache must be used with one batch, got {batch} sequences after "
            f"{past[0].shape[0]}; start a new one for other sequences"
        )
