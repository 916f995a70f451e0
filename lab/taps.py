"""Passes an activation through its hook point; this costs nothing without a hook."""

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint


def listened(*hooks: HookPoint) -> bool:
    """Return whether one of these hook points has a forward or backward hook.

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
    """Return whether this module itself has a hook of any kind."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def hooked(module: nn.Module) -> bool:
    """Return whether a module or one of its submodules has a hook of any kind."""
    return any(hooked_here(each) for each in module.modules())


def tap(hook: HookPoint, x: Tensor) -> Tensor:
    """Pass x through a hook point and return the result."""
    return hook(x) if listened(hook) else x
