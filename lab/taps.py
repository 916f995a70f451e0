"""Passing an activation through a hook point, at no cost when nobody listens."""

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint


def listened(*hooks: HookPoint) -> bool:
    """Tell whether anybody listens on one of these hook points, forward or backward.

    TransformerLens's own lists come first: testing them makes torch.compile guard on them, so that
    a hook added to a compiled model is not ignored. The others hold plain torch hooks.
    """
    for hook in hooks:  # a loop, because any() over a generator takes three times as long
        if (
            hook.fwd_hooks
            or hook.bwd_hooks
            or hook._forward_hooks
            or hook._forward_pre_hooks
            or hook._backward_hooks
            or hook._backward_pre_hooks
        ):
            return True
    return False


def hooked_here(module: nn.Module) -> bool:
    """Tell whether a hook of any sort stands on this module itself."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def hooked(module: nn.Module) -> bool:
    """Tell whether a hook of any sort stands on a module or on one inside it."""
    return any(hooked_here(each) for each in module.modules())


def tap(hook: HookPoint, x: Tensor) -> Tensor:
    """Return what the listeners of a hook point make of x."""
    return hook(x) if listened(hook) else x
