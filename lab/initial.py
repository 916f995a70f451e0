"""Initial weights, from a given generator or from PyTorch's global one."""

import torch
from torch import nn


def draw_parameters(module: nn.Module, std: float, generator: torch.Generator | None) -> None:
    """Initialise a module's own parameters, as HookedTransformer's gpt2 mode does.

    Matrices (W_...) come from N(0, std^2); norms start at w = 1; biases are 0.

    Args:
        module: The module; its submodules are not changed.
        std: Standard deviation of the matrices.
        generator: Source of the random numbers; None: PyTorch's global generator.
    """
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.is_meta:  # built to load weights: there is no memory yet
            continue
        if name.startswith("W_"):
            nn.init.normal_(parameter, std=std, generator=generator)
        elif name == "w":
            nn.init.ones_(parameter)
        else:
            nn.init.zeros_(parameter)
