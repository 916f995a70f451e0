"""Head gates: the data, the tensors, and that three ways to remove a head are one."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.gates import GateTensors, HeadGates, Reference
from lab.hooked_gpt import HookedGPT


@pytest.fixture
def model() -> HookedGPT:
    """A small model whose biases are far from zero."""
    config = ModelConfig(
        n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=11, n_ctx=10, initializer_range=0.3
    )
    model = HookedGPT(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".b_" in name:
                parameter.normal_(generator=generator)
    return model


@pytest.fixture
def tokens() -> Tensor:
    """Four sequences."""
    return torch.randint(0, 11, (4, 8), generator=torch.Generator().manual_seed(2))


def zero_by_hook(model: HookedGPT, tokens: Tensor, layer: int, head: int) -> Tensor:
    """Ablate one head as research code does."""

    def zero(z: Tensor, hook: object) -> Tensor:
        z = z.clone()
        z[:, :, head] = 0
        return z

    return model.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("head", [(0, 0), (0, 2), (1, 1)])
def test_gate_equals_hook_equals_zero_weights(
    model: HookedGPT, tokens: Tensor, head: tuple[int, int], dtype: torch.dtype
) -> None:
    model = model.to(dtype)
    layer, number = head
    with torch.no_grad():
        gated = model(tokens, gates=HeadGates.ablate([head], like=model))
        assert torch.equal(gated, zero_by_hook(model, tokens, layer, number))
        before = model(tokens)
        model.blocks[layer].attn.W_O[number] = 0
        assert torch.equal(gated, model(tokens))
        assert not torch.equal(gated, before)


def test_zeroing_values_or_output_slices_is_something_else(
    model: HookedGPT, tokens: Tensor
) -> None:
    """The two wrong recipes in circulation: W_V = 0 keeps b_V, slices of attn_out mix heads."""
    gated = model(tokens, gates=HeadGates.ablate([(0, 1)], like=model))

    def slice_output(out: Tensor, hook: object) -> Tensor:
        out = out.clone()
        out[..., 5:10] = 0
        return out

    sliced = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_attn_out", slice_output)])
    with torch.no_grad():
        model.blocks[0].attn.W_V[1] = 0
    assert (model(tokens) - gated).abs().max() > 0.01
    assert (sliced - gated).abs().max() > 0.01


def test_open_gates_change_no_bit(model: HookedGPT, tokens: Tensor) -> None:
    fill = torch.randn(2, 1, 1, 3, 5)
    for gates in (
        GateTensors(g=torch.ones(2, 1, 1, 3)),
        GateTensors(g=torch.ones(2, 1, 1, 3), fill=fill),
    ):
        assert torch.equal(model(tokens, gates=gates), model(tokens))


def test_own_value_as_fill_is_a_no_op(model: HookedGPT, tokens: Tensor) -> None:
    logits, cache = model.run_with_cache(tokens)
    fill = torch.stack([cache["z", layer] for layer in range(2)])
    g = torch.zeros(2, 1, 1, 3)
    torch.testing.assert_close(
        model(tokens, gates=GateTensors(g=g, fill=fill)), logits, atol=1e-6, rtol=0
    )


def test_rows_of_one_batch_can_have_different_gates(model: HookedGPT, tokens: Tensor) -> None:
    """A sweep is one batch whose rows differ in g."""
    g = torch.ones(2, 4, 1, 3)
    g[0, 1, :, 0] = 0
    g[1, 2, :, 2] = 0
    rows = model(tokens, gates=GateTensors(g=g))
    singles = [
        model(tokens[:1]),
        model(tokens[1:2], gates=HeadGates.ablate([(0, 0)], like=model)),
        model(tokens[2:3], gates=HeadGates.ablate([(1, 2)], like=model)),
        model(tokens[3:]),
    ]
    torch.testing.assert_close(rows, torch.cat(singles), atol=1e-5, rtol=0)


def test_mean_fill_and_positions(model: HookedGPT, tokens: Tensor) -> None:
    _, cache = model.run_with_cache(tokens)
    z = torch.stack([cache["z", layer].mean(0) for layer in range(2)])
    mean = Reference(name="these four", sha256="0" * 64, z=z)
    gates = HeadGates.ablate([(0, 1)], like=model, fill=mean, positions=[3, 5])

    def fill_by_hook(value: Tensor, hook: object) -> Tensor:
        value = value.clone()
        value[:, [3, 5], 1] = z[0, [3, 5], 1]
        return value

    expected = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", fill_by_hook)])
    with pytest.raises(ValueError, match=r"gates filled from 'these four' need that reference"):
        model(tokens, gates=gates)
    # g and fill cover n_ctx and 8 positions: each is cut to what the sequence needs.
    torch.testing.assert_close(model(tokens, gates=gates.tensors(model, [mean])), expected)
    short = Reference(name="these four", sha256="0" * 64, z=z[:, :5])
    with pytest.raises(ValueError, match=r"gates must cover every position, got 5 positions"):
        model(tokens, gates=gates.tensors(model, [short]))


def test_partial_gates_are_linear_in_z(model: HookedGPT, tokens: Tensor) -> None:
    gates = HeadGates.ablate([(1, 0)], like=model, value=0.3)
    _, plain = model.run_with_cache(tokens)
    _, gated = model.run_with_cache(tokens, gates=gates)
    torch.testing.assert_close(
        gated["z", 1][:, :, 0], 0.3 * plain["z", 1][:, :, 0], atol=1e-14, rtol=0
    )
    assert torch.equal(gated["z", 1][:, :, 1:], plain["z", 1][:, :, 1:])


def test_gradient_reaches_the_gate(model: HookedGPT, tokens: Tensor) -> None:
    g = torch.ones(2, 1, 1, 3, requires_grad=True)
    model(tokens, return_type="loss", gates=GateTensors(g=g)).backward()
    assert g.grad is not None
    assert g.grad.abs().min() > 0


def test_data_round_trip_and_order(model: HookedGPT) -> None:
    gates = HeadGates.ablate([(1, 2), (0, 1), (1, 2)], like=model, positions=[4, 2])
    assert gates.label == "L0H1,L1H2"
    assert HeadGates.from_dict(json.loads(json.dumps(gates.to_dict()))) == gates
    assert hash(gates) == hash(HeadGates.ablate([(0, 1), (1, 2)], like=model, positions=[2, 4]))


@pytest.mark.usefixtures("as_a_user")
def test_pairs_come_from_tables_and_arrays_too(model: HookedGPT) -> None:
    wanted = HeadGates.ablate([(0, 1), (1, 2)], like=model, positions=[2, 4])
    pairs = np.array([[1, 2], [0, 1]])
    table = pd.DataFrame(pairs, columns=["layer", "head"])
    for heads in (pairs, torch.tensor(pairs), table.itertuples(index=False), pairs.tolist()):
        gates = HeadGates.ablate(heads, like=model, positions=np.array([4, 2]))
        assert gates == wanted
        assert json.dumps(gates.to_dict()) == json.dumps(wanted.to_dict())
    for heads in ([3], [(0, 1.5)], ["L0H1"], [(0, True)], [(0, 1, 2)]):
        with pytest.raises(ValueError, match="must be"):
            HeadGates.ablate(heads, like=model)


@pytest.mark.parametrize(
    ("heads", "kwargs", "message"),
    [
        ([(2, 0)], {}, r"unknown head 'L2H0'; choose from L0H0, L0H1"),
        ([(0, 3)], {}, r"unknown head 'L0H3'; choose from"),
        ([(-1, 0)], {}, r"a layer or head number must be a whole number of at least 0, got -1"),
        ([(0, 0)], {"value": math.nan}, r"value must be a number from 0 to 1, got nan"),
        ([(0, 0)], {"positions": [10]}, r"a position must be below n_ctx = 10, got 10"),
    ],
)
def test_refusals(model: HookedGPT, heads: list, kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadGates.ablate(heads, like=model, **kwargs)
