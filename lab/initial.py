"""Initial weights: drawn from a generator of their own or, for torch's sake, the global one."""

import torch
from torch import nn


def draw_parameters(module: nn.Module, std: float, generator: torch.Generator | None) -> None:
    """Draw a module's own parameters anew, as HookedTransformer's gpt2 mode does.

    Matrices (W_...) come from N(0, std^2); norms start at w = 1; biases are 0.

    Args:
        module: Whose own parameters; its submodules have theirs.
        std: Standard deviation of the matrices.
        generator: Where the draws come from; None: PyTorch's global generator.
    """
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.is_meta:  # built to be given weights: there is nothing to draw into
            continue
        if name.startswith("W_"):
            nn.init.normal_(parameter, std=std, generator=generator)
        elif name == "w":
            nn.init.ones_(parameter)
        else:
            nn.init.zeros_(parameter)
