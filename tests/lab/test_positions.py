"""What each kind of positions promises, alone and inside a model."""

import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache
from lab.positions import rotary_turns, sinusoidal_positions, turned

KINDS = ("standard", "sinusoidal", "rotary", "none")


def model_with(kind: str, **changes: object) -> HookedGPT:
    """Build a model in float64 whose positions matter."""
    config = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_vocab": 11, "n_ctx": 20}
    config |= {"positional_embedding_type": kind, "initializer_range": 0.4, **changes}
    return HookedGPT(ModelConfig(**config)).double()


def rotated(x: Tensor, start: int, base: float, width: int, adjacent: bool) -> Tensor:
    positions = torch.arange(start, start + x.shape[1])
    return turned(x, rotary_turns(positions, base, width, x.dtype), adjacent)


@pytest.mark.parametrize("adjacent", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("width", [8, 4])
def test_rotary_scores_depend_on_the_offset_only(width: int, adjacent: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 5, 2, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    scores = [
        torch.einsum(
            "bqhd,bkhd->bhqk",
            rotated(q, start, 1e4, width, adjacent),
            rotated(k, start, 1e4, width, adjacent),
        )
        for start in (0, 1000)
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-9, rtol=0)
    unturned = torch.einsum("bqhd,bkhd->bhqk", q, k)
    assert (scores[0] - unturned).abs().max() > 0.1


def test_rotary_scores_of_a_model_depend_on_the_offset_only() -> None:
    """One layer of a model with the same token everywhere: its scores form stripes."""
    model = model_with("rotary", n_layers=1)
    same = torch.full((1, 20), 3)
    scores = model.run_with_cache(same)[1]["attn_scores", 0][0]
    for offset in range(20):
        stripe = scores.diagonal(-offset, dim1=1, dim2=2)
        torch.testing.assert_close(stripe, stripe[:, :1].expand_as(stripe), atol=1e-12, rtol=0)
    assert scores[:, -1].std() > 0.01


def test_rotary_cells_match_a_complex_rotation() -> None:
    x = torch.randn(1, 4, 1, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    as_complex = torch.complex(x[..., :3], x[..., 3:])
    angle = torch.arange(4.0).double()[:, None, None] * 100.0 ** -(torch.arange(3.0).double() / 3)
    expected = as_complex * torch.polar(torch.ones_like(angle), angle)
    got = rotated(x, 0, 100.0, 6, adjacent=False)
    torch.testing.assert_close(torch.complex(got[..., :3], got[..., 3:]), expected)


@pytest.mark.parametrize("shift", [1, 5, 40])
def test_a_sinusoidal_shift_is_one_linear_map(shift: int) -> None:
    waves = sinusoidal_positions(64, 20)
    model = model_with("sinusoidal", d_model=20, n_ctx=64)
    assert torch.equal(model.W_pos, waves)
    angles = shift * 10_000.0 ** -(torch.arange(0, 20, 2, dtype=torch.float64) / 20)
    turns = [
        torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]], dtype=torch.float64) for a in angles
    ]
    shifted = torch.block_diag(*turns)  # one turn for each (sin, cos) pair, wherever it starts
    torch.testing.assert_close(waves[:-shift] @ shifted, waves[shift:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_position_past_n_ctx(kind: str) -> None:
    model, tokens = model_with(kind, n_ctx=8), torch.ones(1, 9, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^a sequence must have 1 to n_ctx = 8 tokens, got 9$"):
        model(tokens)
    cache = KeyValueCache(2)
    model(tokens[:, :6], kv_cache=cache)
    model(tokens[:, :2], kv_cache=cache)
    said = r"^a sequence must have 1 to n_ctx = 8 tokens, got 9 \(8 of them in kv_cache\)$"
    with pytest.raises(ValueError, match=said):
        model(tokens[:, :1], kv_cache=cache)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_left_padding_shifts_nothing(kind: str, kv_heads: int) -> None:
    model = model_with(kind, n_key_value_heads=kv_heads)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 11, (1, 9), generator=generator)
    alone = model(tokens)[0]
    pads = (0, 1, 3, 8)
    padded = torch.randint(0, 11, (4, 17), generator=generator)
    real = torch.zeros(4, 17, dtype=torch.bool)
    for row, pad in enumerate(pads):
        padded[row, pad : pad + 9], real[row, pad : pad + 9] = tokens[0], True
    for path in ("fused", "explicit"):
        got = model(padded, attention_mask=real, attention=path)
        for row, pad in enumerate(pads):
            assert (got[row, pad : pad + 9] - alone).abs().max() < 1e-12
    cache = KeyValueCache(2)
    parts = [
        model(padded[:, part], attention_mask=real[:, part], kv_cache=cache)
        for part in (slice(0, 10), *(slice(p, p + 1) for p in range(10, 17)))
    ]
    got = torch.cat(parts, dim=1)
    for row, pad in enumerate(pads):
        assert (got[row, pad : pad + 9] - alone).abs().max() < 1e-12
