"""Physical pruning: the gated model's logits, the right parameters, original ids throughout."""

import itertools
import json

import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.gates import HeadGates, Reference
from lab.hooked_gpt import HookedGPT
from probes.pruning.removing import certify, count_parameters, latencies_ms, prune_heads

D_MODEL, D_HEAD, N_LAYERS, N_HEADS = 20, 5, 3, 4
ALL = list(itertools.product(range(N_LAYERS), range(N_HEADS)))
CHOICES = {
    "one": [(1, 2)],
    "first and last": [(0, 0), (2, 3)],
    "all of a layer": [(1, h) for h in range(N_HEADS)],
    "uneven": [(0, 1), (0, 2), (0, 3), (2, 0)],
    "all but one": ALL[:-1],
    "every head": ALL,
}


def make_model(**changes: object) -> HookedGPT:
    """A model with an odd d_head, heads * d_head == d_model, and biases far from zero."""
    sizes = {"n_layers": N_LAYERS, "n_heads": N_HEADS, "d_model": D_MODEL, "d_head": D_HEAD}
    config = ModelConfig(
        **{**sizes, "d_vocab": 11, "n_ctx": 14, "initializer_range": 0.2, **changes}
    )
    model = HookedGPT(config).eval()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".b_" in name:
                parameter.normal_(mean=1.0, generator=generator)
    return model


def some_tokens() -> Tensor:
    return torch.randint(0, 11, (5, 9), generator=torch.Generator().manual_seed(2))


def global_mean(model: HookedGPT) -> Reference:
    """The mean z of every head over sequences and positions."""
    _, cache = model.run_with_cache(some_tokens())
    z = torch.stack([cache["z", layer].mean((0, 1)) for layer in range(N_LAYERS)])
    return Reference(name="test", sha256="0" * 64, z=z.unsqueeze(1))


@pytest.mark.parametrize("mode", ["zero", "mean"])
@pytest.mark.parametrize("heads", CHOICES.values(), ids=CHOICES)
class TestParity:
    """The pruned model is the gated model."""

    def test_logits_and_parameters(self, heads: list[tuple[int, int]], mode: str) -> None:
        for dtype, limit, positions, width in (
            (torch.float32, 1e-5, "standard", 5),
            (torch.float64, 1e-12, "rotary", 6),
        ):
            model = make_model(positional_embedding_type=positions, d_head=width).to(dtype)
            reference = global_mean(model) if mode == "mean" else None
            gates = HeadGates.ablate(heads, like=model, fill=reference)
            gated = model(
                some_tokens(), gates=gates.tensors(model, [reference] if reference else [])
            )
            pruned = prune_heads(model, heads, mode=mode, reference=reference)
            for path in ("fused", "explicit"):
                got = pruned(some_tokens(), attention=path)
                torch.testing.assert_close(got, gated, atol=limit, rtol=0)
            dropped = len(heads) * (4 * D_MODEL * width + 3 * width)
            assert count_parameters(model) - count_parameters(pruned) == dropped


@pytest.mark.parametrize("mode", ["zero", "mean"])
@pytest.mark.parametrize("choice", ["uneven", "all of a layer", "every head"])
def test_generation_token_for_token(choice: str, mode: str) -> None:
    model = make_model()
    reference = global_mean(model) if mode == "mean" else None
    gates = HeadGates.ablate(CHOICES[choice], like=model, fill=reference)
    tensors = gates.tensors(model, [reference] if reference else [])
    pruned = prune_heads(model, CHOICES[choice], mode=mode, reference=reference)
    prompt = some_tokens()[:, :4]
    for temperature in (0.0, 1.0):
        kwargs = {"max_new_tokens": 8, "temperature": temperature, "seed": 3}
        expected = model.generate(prompt, gates=tensors, **kwargs)
        assert torch.equal(pruned.generate(prompt, **kwargs), expected)


class TestAgain:
    """Pruned models are pruned again, by the ids of the original."""

    def test_in_two_steps_equals_in_one(self) -> None:
        model = make_model().double()
        first = prune_heads(model, [(0, 0), (1, 1)])
        second = prune_heads(first, [(0, 3), (1, 0), (1, 2), (1, 3)])
        once = prune_heads(model, [(0, 0), (1, 1), (0, 3), (1, 0), (1, 2), (1, 3)])
        assert second.config == once.config
        assert second.config.kept_heads == ((1, 2), (), (0, 1, 2, 3))
        assert torch.equal(second(some_tokens()), once(some_tokens()))

    def test_gates_on_a_pruned_model_speak_original_ids(self) -> None:
        model = make_model().double()
        pruned = prune_heads(model, [(0, 0), (2, 1)])
        got = pruned(some_tokens(), gates=HeadGates.ablate([(0, 2), (2, 3)], like=pruned))
        heads = [(0, 0), (0, 2), (2, 1), (2, 3)]
        expected = model(some_tokens(), gates=HeadGates.ablate(heads, like=model))
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)

    def test_pruning_nothing_is_the_identity(self) -> None:
        model = make_model()
        pruned = prune_heads(model, [])
        assert pruned.config == model.config
        assert torch.equal(pruned(some_tokens()), model(some_tokens()))

    def test_the_original_is_left_alone(self) -> None:
        model = make_model()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        prune_heads(model, [(0, 0)], mode="mean", reference=global_mean(model))
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])

    def test_what_may_learn_stays_so(self) -> None:
        """And the mode: a model that is being trained is pruned to one that is."""
        model = make_model().train()
        model.blocks[1].attn.W_Q.requires_grad_(False)
        pruned = prune_heads(model, [(1, 0)])
        frozen = [name for name, weight in pruned.named_parameters() if not weight.requires_grad]
        assert frozen == ["blocks.1.attn.W_Q"]
        assert pruned.training and not prune_heads(model.eval(), [(1, 0)]).training

    def test_config_survives_json(self) -> None:
        config = prune_heads(make_model(), CHOICES["uneven"]).config
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config

    def test_tied_embeddings_stay_tied(self) -> None:
        model = make_model(tie_word_embeddings=True)
        pruned = prune_heads(model, [(0, 0)])
        gated = model(some_tokens(), gates=HeadGates.ablate([(0, 0)], like=model))
        torch.testing.assert_close(pruned(some_tokens()), gated, atol=1e-5, rtol=0)
        assert torch.equal(pruned.W_U, pruned.W_E.T)


class TestCertificate:
    """The proof that stands beside a pruned run."""

    def test_figures(self) -> None:
        model = make_model()
        heads = [(1, 0), (1, 3)]
        pruned = prune_heads(model, heads)
        gates = HeadGates.ablate(heads, like=model)
        proof = certify(model, pruned, gates, some_tokens(), mode="zero")
        assert proof.holds
        assert 0 <= proof.max_logit_difference <= 1e-5
        assert proof.heads == "L1H0,L1H3"
        assert proof.parameters_before - proof.parameters_after == 2 * (4 * 20 * 5 + 3 * 5)
        assert proof.cache_bytes_before == 2 * 12 * 5 * 4
        assert proof.cache_bytes_after == 2 * 10 * 5 * 4
        assert proof.latency_ms_before > 0
        assert json.loads(json.dumps(proof.to_dict()))["holds"] is True

    def test_a_wrong_model_is_not_certified(self) -> None:
        model = make_model()
        pruned = prune_heads(model, [(1, 0)])
        gates = HeadGates.ablate([(1, 1)], like=model)
        assert not certify(model, pruned, gates, some_tokens(), mode="zero", repeats=1).holds
        with pytest.raises(ValueError, match=r"at least one sequence of one token, got \[0, \d+\]"):
            certify(model, pruned, gates, some_tokens()[:0], mode="zero")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_of_half_precision(self, dtype: torch.dtype) -> None:
        model = make_model().to(dtype)
        for removed, holds in (((1, 0), True), ((1, 1), False)):
            gates = HeadGates.ablate([removed], like=model)
            pruned = prune_heads(model, [(1, 0)])
            proof = certify(model, pruned, gates, some_tokens(), mode="zero", repeats=1)
            assert proof.holds is holds and proof.repeats == 1

    def test_an_accelerator_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[int] = []
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waits.append(1))
        latencies_ms([make_model()], some_tokens(), repeats=2)
        assert len(waits) == 3


class TestRefusals:
    """What cannot be pruned says why."""

    def test_heads_that_do_not_exist(self) -> None:
        model = make_model()
        with pytest.raises(ValueError, match=r"unknown head 'L3H0'; choose from L0H0"):
            prune_heads(model, [(3, 0)])
        with pytest.raises(ValueError, match="head L0H1 was pruned from this model"):
            prune_heads(prune_heads(model, [(0, 1)]), [(0, 1)])

    def test_modes_and_references(self) -> None:
        model = make_model()
        with pytest.raises(ValueError, match=r"unknown pruning mode 'men'.*did you mean 'mean'"):
            prune_heads(model, [(0, 0)], mode="men")
        with pytest.raises(ValueError, match=r"one mean over all positions .* got None"):
            prune_heads(model, [(0, 0)], mode="mean")
        wide = Reference(name="x", sha256="0", z=torch.zeros(N_LAYERS, 9, N_HEADS, D_HEAD))
        with pytest.raises(ValueError, match="got one mean for each of 9 positions"):
            prune_heads(model, [(0, 0)], mode="mean", reference=wide)
        own = global_mean(model)
        with pytest.raises(ValueError, match="reference must be left out in mode 'zero', got "):
            prune_heads(model, [(0, 0)], reference=own)
        for foreign in (own.z[:1], own.z[:, :, :1], own.z[..., :2]):
            other = Reference(name="x", sha256="0", z=foreign)
            with pytest.raises(
                ValueError, match=r"reference must be of this model \(3 layers, 4 he"
            ):
                prune_heads(model, [(0, 0)], mode="mean", reference=other)


class TestRaggedHeads:
    """TransformerLens's tools refuse a pruned model rather than mislabel its heads."""

    def test_stacks_and_counts_refuse(self) -> None:
        pruned = prune_heads(make_model(), [(0, 1)])
        with pytest.raises(ValueError, match="W_Q must have the same heads in every layer"):
            _ = pruned.W_Q
        _, cache = pruned.run_with_cache(some_tokens())
        with pytest.raises(ValueError, match="n_heads must be the same heads in every layer"):
            cache.stack_head_results()

    def test_even_pruning_refuses_too(self) -> None:
        """Three heads in each layer, but not the first three: indices are not ids."""
        pruned = prune_heads(make_model(), [(layer, 0) for layer in range(N_LAYERS)])
        with pytest.raises(ValueError, match="n_heads must be"):
            _ = pruned.cfg.n_heads

    def test_labels_are_the_original_ids(self) -> None:
        pruned = prune_heads(make_model(), [*CHOICES["all of a layer"], (0, 0)])
        assert pruned.all_head_labels() == [
            "L0H1", "L0H2", "L0H3", "L2H0", "L2H1", "L2H2", "L2H3",
        ]  # fmt: skip

    def test_hooks_fire_in_a_layer_without_heads(self) -> None:
        pruned = prune_heads(make_model(), CHOICES["all of a layer"])
        _, cache = pruned.run_with_cache(some_tokens())
        assert cache["z", 1].shape == (5, 9, 0, D_HEAD)
        assert cache["pattern", 1].shape == (5, 0, 9, 9)
        expected = pruned.blocks[1].attn.b_O.expand(5, 9, D_MODEL)
        torch.testing.assert_close(cache["attn_out", 1], expected)
