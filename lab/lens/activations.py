"""ActivationCache, and the hook that fills one with copies."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities.slice import Slice

from lab.checks import require
from lab.lens.hook_table import present_name
from lab.naming import quoted, unknown_name


class Activations(ActivationCache):
    """An ActivationCache that also accepts the old names of per-head inputs."""

    def __getitem__(self, key: Any) -> Tensor:
        """Return an activation by its name, a shorthand or (name, layer, type).

        Raises:
            KeyError: It is not in the cache.
        """
        try:
            return super().__getitem__(key)
        except KeyError as error:
            name = str(error.args[0])
        present = present_name(name)
        if present not in self.cache_dict:
            raise KeyError(unknown_name("activation", name, self.cache_dict))
        return self.cache_dict[present]


def named(names_filter: str | Sequence[str]) -> list[str]:
    """Return the names of a filter that is not a predicate."""
    names = [names_filter] if isinstance(names_filter, str) else list(names_filter)
    if not names:
        raise KeyError("names_filter must name a hook, got none")
    for name in names:
        require(isinstance(name, str), "names_filter", "names of hooks", name)
    return names


def keep_copy(
    tensor: Tensor,
    *,
    hook: HookPoint,
    cache: dict[str, Tensor],
    key: str,
    axis: int,
    positions: Slice,
    device: Any,
    remove_batch_dim: bool,
) -> None:
    """Put some positions of an activation into a cache; used as a hook with functools.partial."""
    kept = tensor.detach()
    if remove_batch_dim and kept.shape[0] == 1:
        kept = kept[0]
    kept = positions.apply(kept, dim=axis)
    # A copy, so that in-place edits do not change the cache, on any device.
    cache[key] = kept.to(kept.device if device is None else device, copy=True)


def describe(out: Any) -> str:
    """Return the shape of a tensor, or the type of another output."""
    return f"shape {list(out.shape)}" if isinstance(out, torch.Tensor) else quoted(type(out))
