"""Hard-concrete gates: the published figures, draws against their probabilities, heads that go."""

import math

import pytest
import torch

from lab.gates import HeadGates, Reference
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from probes.pruning.hard_concrete import (
    drawn_gate,
    fixed_gate,
    learn_gates,
    open_probability,
)
from probes.pruning.removing import prune_heads
from probes.reading.observed_model import as_batch


def test_published_figures() -> None:
    """Voita et al. 2019, by hand: P(g > 0) and the fixed gate at log a = 0, 1, -1."""
    log_a = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    for got, expected in (
        (open_probability(log_a), [0.688112, 0.857087, 0.448015]),
        (fixed_gate(log_a), [0.5, 0.777270, 0.222730]),
    ):
        assert got.tolist() == pytest.approx(expected, abs=1e-6)
    edge = math.log(11.0)
    ends = torch.tensor([-edge - 1e-9, -edge + 1e-6, edge - 1e-6, edge + 1e-9]).double()
    assert (fixed_gate(ends) == torch.tensor([0.0, 9, 9, 1.0])).tolist() == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("log_a", [-2.0, 0.0, 1.3])
def test_draws_have_these_probabilities(log_a: float) -> None:
    n = 200_000
    uniform = torch.rand(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = torch.tensor([log_a], dtype=torch.float64)
    drawn = drawn_gate(value, uniform)
    error = 4 * 0.5 / n**0.5
    assert (drawn > 0).double().mean().item() == pytest.approx(
        open_probability(value).item(), abs=error
    )
    assert (drawn == 1).double().mean().item() == pytest.approx(
        1 / (1 + math.exp(0.33 * math.log(11) - log_a)), abs=error
    )
    # Monotone in u: the median draw is the stretched sigmoid without noise, at temperature T.
    middle = drawn_gate(value, torch.full((1, 1), 0.5, dtype=torch.float64)).item()
    assert middle == pytest.approx(min(1, max(0, 1.2 / (1 + math.exp(-log_a / 0.33)) - 0.1)))


def test_the_ends_of_the_draw_are_finite() -> None:
    log_a = torch.zeros(2, requires_grad=True)
    gates = drawn_gate(log_a, torch.tensor([[0.0, 1.0]]))
    assert gates.tolist() == [[0.0, 1.0]]
    (grad,) = torch.autograd.grad(gates.sum(), [log_a])
    assert grad.isfinite().all()


@pytest.fixture(scope="module")
def one_useful_head() -> tuple[HookedGPT, Batch]:
    """A model in which L0H1 alone lowers the loss, L1H0 raises it, and the others do nothing."""
    from lab.config import ModelConfig

    config = ModelConfig(
        n_layers=2, n_heads=2, d_model=6, d_head=3, d_vocab=6, n_ctx=8,
        attn_only=True, normalization_type=None, positional_embedding_type="none",
    )  # fmt: skip
    model = HookedGPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E.copy_(torch.eye(6))
        for (layer, head), size in (((0, 1), 4.0), ((1, 0), -2.0)):
            # Through b_V alone: what it writes is a constant, up or down the logit of token 5.
            model.blocks[layer].attn.b_V[head, 0] = 1.0
            model.blocks[layer].attn.W_O[head, 0, 5] = size
        model.unembed.W_U.copy_(torch.eye(6))
    tokens = torch.full((12, 8), 5)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, -1] = False
    mask[3] = False  # a sequence that nothing can be learned from
    return model, Batch(tokens, mask, torch.full((12, 8, 1), -1))


def test_the_way_of_the_gates_is_public() -> None:
    import probes

    assert probes.learn_gates is learn_gates


def test_only_the_head_that_pays_stays(one_useful_head: tuple[HookedGPT, Batch]) -> None:
    model, batch = one_useful_head
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learned = learn_gates(model, batch, penalty=0.05, steps=80)
    assert learned.heads == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert learned.closed == ((0, 0), (1, 0), (1, 1))
    assert learned.log_a[1] > 2.4
    assert learned.trajectory.shape == (81, 4) and len(learned.losses) == 80
    assert learned.losses[-1] < learned.losses[0]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    # At their ends gates are switches: the pruned model is the one that was learned.
    pruned = prune_heads(model, learned.closed)
    gated = model(batch.tokens, gates=HeadGates.ablate(learned.closed, like=model))
    torch.testing.assert_close(pruned(batch.tokens), gated, atol=1e-6, rtol=0)
    table = learned.table(every=30)
    assert table["step"].unique().tolist() == [0, 30, 60, 80] and len(table) == 16
    row = table[(table["step"] == 60) & (table["layer"] == 1) & (table["head"] == 0)].iloc[0]
    assert row["log_a"] == learned.trajectory[60, 2] and row["loss"] == learned.losses[60]
    assert row["open_probability"] == open_probability(learned.trajectory[60, 2:3]).item()
    assert table["gate"].tolist()[-4:] == [0, 1, 0, 0] and table["loss"].isna().sum() == 4
    with torch.inference_mode():  # as callers of probes may well stand in
        again = learn_gates(model, batch, penalty=0.05, steps=10)
    assert torch.equal(again.trajectory, learned.trajectory[:11])
    with torch.no_grad():
        again = learn_gates(model, batch, penalty=0.05, steps=10)
    assert torch.equal(again.trajectory, learned.trajectory[:11])


def test_a_mean_that_does_the_work_lets_its_head_go(
    one_useful_head: tuple[HookedGPT, Batch],
) -> None:
    model, batch = one_useful_head
    _, cache = model.run_with_cache(batch.tokens)
    z = torch.stack([cache["z", layer].mean((0, 1)) for layer in range(2)]).unsqueeze(1)
    mean = Reference(name="all", sha256="0" * 64, z=z)
    learned = learn_gates(model, batch, penalty=0.05, steps=80, reference=mean)
    assert set(learned.closed) == set(learned.heads)
    gates = HeadGates.ablate(learned.closed, like=model, fill=mean).tensors(model, [mean])
    torch.testing.assert_close(model(batch.tokens, gates=gates), model(batch.tokens))


def test_plain_tokens_are_a_batch_of_every_next_token(
    one_useful_head: tuple[HookedGPT, Batch],
) -> None:
    model, batch = one_useful_head
    plain, scored = (
        learn_gates(model, each, steps=2) for each in (batch.tokens, as_batch(batch.tokens))
    )
    assert torch.equal(plain.trajectory, scored.trajectory)


def test_what_cannot_be_learned(one_useful_head: tuple[HookedGPT, Batch]) -> None:
    model, batch = one_useful_head
    with pytest.raises(ValueError, match="penalty must be a number of at least 0, got -1"):
        learn_gates(model, batch, penalty=-1.0)
    with pytest.raises(ValueError, match="sequences with scored rows must be at least 1, got 0"):
        learn_gates(model, batch[3:4])
