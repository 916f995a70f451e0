"""The cache of keys and values: what is appended comes back, whatever happened in between."""

import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fill(cache: KeyValueCache, k: Tensor, v: Tensor, steps: list[int]) -> tuple[Tensor, Tensor]:
    keys = values = k[:, :0]
    for part_k, part_v in zip(k.split(steps, dim=1), v.split(steps, dim=1), strict=True):
        for layer in range(len(cache.layers)):
            keys, values = cache.extend(layer, part_k, part_v)
        cache.length += part_k.shape[1]
    return keys, values


@pytest.mark.parametrize("room", [0, 3, 40])
@pytest.mark.parametrize("steps", [[1] * 17, [5, 1, 9, 2]])
def test_appends_along_positions(room: int, steps: list[int]) -> None:
    k, v = numbers(2, 17, 3, 4), numbers(2, 17, 3, 4, seed=1)
    keys, values = fill(KeyValueCache(2, room=room), k, v, steps)
    assert torch.equal(keys, k)
    assert torch.equal(values, v)


def test_a_step_copies_its_own_keys_only() -> None:
    cache = KeyValueCache(1)
    buffers = set()
    for _ in range(200):
        cache.extend(0, numbers(1, 1, 2, 4), numbers(1, 1, 2, 4))
        cache.length += 1
        buffers.add(cache.layers[0][0].data_ptr())
    assert len(buffers) <= 9  # doubled, not grown by one


def test_known_room_is_taken_once() -> None:
    cache = KeyValueCache(1, room=30)
    keys, _ = cache.extend(0, numbers(1, 4, 2, 4), numbers(1, 4, 2, 4))
    before, cache.length = keys.clone(), 4
    fill(cache, numbers(1, 26, 2, 4), numbers(1, 26, 2, 4), [1] * 26)
    assert cache.layers[0][0].shape[2] == 30
    assert torch.equal(keys, before)  # what was handed out earlier is not written into


def tiny() -> HookedGPT:
    config = ModelConfig(n_layers=2, n_heads=2, d_model=8, d_vocab=7, n_ctx=12)
    return HookedGPT(config).double()


def test_a_step_that_was_broken_off_can_be_repeated() -> None:
    model, cache = tiny(), KeyValueCache(2)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    real = torch.ones(1, 5, dtype=torch.bool)
    real[0, 0] = False
    model(tokens[:, :3], attention_mask=real[:, :3], kv_cache=cache)

    def fails(z: Tensor, hook: object) -> None:
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        model.run_with_hooks(
            tokens[:, 3:], kv_cache=cache, fwd_hooks=[("blocks.1.attn.hook_z", fails)]
        )
    got = model(tokens[:, 3:], kv_cache=cache)
    expected = model(tokens, attention_mask=real)[:, 3:]
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("first_without", [True, False])
def test_gradients_flow_through_cached_positions(first_without: bool) -> None:
    model, tokens = tiny(), torch.tensor([[1, 2, 3, 4, 5, 6]])
    model(tokens)[:, 4:].sum().backward()
    expected = model.blocks[1].attn.W_K.grad.clone()
    model.zero_grad()
    cache = KeyValueCache(2)
    with torch.set_grad_enabled(not first_without):
        model(tokens[:, :4], kv_cache=cache)
    out = [model(tokens[:, p : p + 1], kv_cache=cache) for p in (4, 5)]
    torch.cat(out, dim=1).sum().backward()
    got = model.blocks[1].attn.W_K.grad
    if first_without:  # the first four positions count as given
        assert got.isfinite().all()
        assert not torch.allclose(got, expected)
    else:
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    with torch.no_grad():  # and plain decoding goes on after that
        model(tokens[:, :1], kv_cache=cache)
    assert cache.length == 7


def test_another_batch_is_refused() -> None:
    cache = KeyValueCache(1)
    cache.extend(0, numbers(2, 1, 2, 4), numbers(2, 1, 2, 4))
    with pytest.raises(
        ValueError, match=r"^a kv_cache must be used with one batch, got 3 sequences after 2; "
    ):
        cache.extend(0, numbers(3, 1, 2, 4), numbers(3, 1, 2, 4))
