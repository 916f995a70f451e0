"""What a forward pass is handed besides good tokens: each works, or is refused in one line."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.gates import GateTensors, HeadGates
from lab.kv_cache import KeyValueCache
from lab.model import HookedGPT


def small(**changes: object) -> HookedGPT:
    """A model of two layers whose weights matter."""
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_vocab": 11, "n_ctx": 12}
    config = ModelConfig(**{**sizes, "initializer_range": 0.25, "seed": 3, **changes})
    return HookedGPT(config).eval()


def ids(batch: int = 3, n: int = 8) -> Tensor:
    """Draw ids without touching the global generator."""
    return torch.randint(0, 11, (batch, n), generator=torch.Generator().manual_seed(5))


def swapped(model: HookedGPT) -> HookedGPT:
    """Exchange the two blocks."""
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]
    return model


def copied(model: HookedGPT) -> HookedGPT:
    """Put a copy of the first block in the place of the second."""
    model.blocks[1] = copy.deepcopy(model.blocks[0])
    return model


def same_weights(model: HookedGPT) -> HookedGPT:
    """A model that was built with the blocks where they now stand."""
    fresh = small()
    fresh.load_state_dict(model.state_dict())
    return fresh


@pytest.mark.parametrize("move", [swapped, copied])
@torch.no_grad()
def test_a_block_works_in_whatever_layer_it_stands(move: object) -> None:
    model = move(small())
    fresh = same_weights(model)
    gates = HeadGates.ablate([(1, 2)], like=model)
    whole = model(ids(), gates=gates)
    assert torch.equal(whole, fresh(ids(), gates=gates))
    assert not torch.equal(whole, model(ids()))

    def zero(z: Tensor, hook: object) -> Tensor:
        z[:, :, 2] = 0
        return z

    hooks = [("blocks.1.attn.hook_z", zero)]
    torch.testing.assert_close(model.run_with_hooks(ids(), fwd_hooks=hooks), whole)
    seen: list[int] = []
    model(ids(), return_type=None, observe=lambda layer, _: seen.append(layer))
    assert seen == [0, 1]
    cache = KeyValueCache(2)
    parts = [model(part, kv_cache=cache) for part in ids().split([5, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), fresh(ids()))
    assert torch.equal(model.generate(ids(), 4), fresh.generate(ids(), 4))
