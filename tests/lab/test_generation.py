"""Cached decoding against whole passes: draws, gates, hooks, padding, stop ids, refusals."""

import threading

import pytest
import torch
from scipy import stats

from lab.config import ModelConfig, SampleConfig
from lab.gates import HeadGates, Reference
from lab.generation import generate, left_padded, next_token_probabilities, steps
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache
from tests.lab.naive_sampling import naive_draw


def make_model(positions: str = "standard", d_vocab: int = 12, **changes) -> HookedGPT:
    config = ModelConfig(
        n_layers=2,
        n_heads=2,
        d_model=16,
        d_vocab=d_vocab,
        n_ctx=16,
        positional_embedding_type=positions,
        initializer_range=0.5,
        **changes,
    )
    return HookedGPT(config).double()  # so that no rounding decides a draw


PROMPTS = torch.tensor([[0, 3, 5, 7], [0, 2, 2, 9], [0, 4, 1, 6]])


def uncached(model, tokens, config, n, gates=None) -> torch.Tensor:
    """The same draws from a whole forward pass for every token."""
    generator = torch.Generator().manual_seed(config.seed)
    for _ in range(n):
        logits = model(tokens, gates=gates)[:, -1].detach()
        if config.temperature == 0:
            drawn = logits.argmax(dim=-1, keepdim=True)
        else:
            uniform = torch.rand(len(tokens), 1, dtype=torch.float64, generator=generator)
            drawn = [
                naive_draw(row.tolist(), config, u.item())
                for row, u in zip(logits, uniform, strict=True)
            ]
            drawn = torch.tensor(drawn).unsqueeze(1)
        tokens = torch.cat([tokens, drawn], dim=1)
    return tokens


@pytest.mark.parametrize("positions", ["standard", "sinusoidal", "rotary"])
@pytest.mark.parametrize(
    "config",
    [SampleConfig(temperature=0.0), SampleConfig(seed=3), SampleConfig(top_k=4, top_p=0.8)],
    ids=["greedy", "sampled", "filtered"],
)
def test_cached_generation_equals_uncached_token_for_token(positions, config):
    model = make_model(positions)
    got = generate(model, PROMPTS, config, 12)
    assert torch.equal(got, uncached(model, PROMPTS, config, 12))
    assert len({tuple(row) for row in got[:, 4:].tolist()}) == 3  # the prompts are not ignored


@pytest.mark.parametrize("positions", ["standard", "rotary"])
def test_cached_logits_equal_a_whole_pass_at_every_step_in_float32(positions):
    model = make_model(positions).float()
    tokens = torch.randint(0, 12, (3, 16), generator=torch.Generator().manual_seed(0))
    whole, cache = model(tokens), KeyValueCache(2)
    parts = [model(tokens[:, :5], kv_cache=cache)]
    parts += [model(tokens[:, p : p + 1], kv_cache=cache) for p in range(5, 16)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


def some_gates(model: HookedGPT, kind: str):
    z = torch.randn(2, 16, 2, 8, generator=torch.Generator().manual_seed(1)).double()
    mean = Reference(name="noise", sha256="0", z=z)
    if kind == "everywhere":
        return HeadGates.ablate([(0, 1), (1, 0)], like=model)
    if kind == "at positions":
        return HeadGates.ablate([(0, 0), (1, 1)], like=model, positions=(2, 6, 7))
    return HeadGates.ablate([(0, 0), (1, 1)], like=model, fill=mean).tensors(model, [mean])


@pytest.mark.parametrize("kind", ["everywhere", "at positions", "filled by position"])
def test_gates_act_on_every_token_at_its_own_position(kind):
    model, greedy = make_model(), SampleConfig(temperature=0.0)
    gates = some_gates(model, kind)
    got = generate(model, PROMPTS, greedy, 10, gates=gates)
    assert torch.equal(got, uncached(model, PROMPTS, greedy, 10, gates=gates))
    assert not torch.equal(got, generate(model, PROMPTS, greedy, 10))


def test_hooks_act_on_every_token():
    model, greedy = make_model(), SampleConfig(temperature=0.0)
    lengths = []

    def zero_head(z, hook):
        lengths.append(z.shape[1])
        z = z.clone()
        z[:, :, 1] = 0
        return z

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", zero_head)]):
        hooked = generate(model, PROMPTS, greedy, 6)
    gates = HeadGates.ablate([(0, 1)], like=model)
    assert torch.equal(hooked, generate(model, PROMPTS, greedy, 6, gates=gates))
    assert lengths == [4, 1, 1, 1, 1, 1]


def test_a_greedy_batch_equals_its_single_sequences():
    model, greedy = make_model(), SampleConfig(temperature=0.0)
    singles = [generate(model, row.unsqueeze(0), greedy, 8) for row in PROMPTS]
    assert torch.equal(generate(model, PROMPTS, greedy, 8), torch.cat(singles))


def test_the_models_own_generate_is_this_one():
    model = make_model()
    want = generate(model, PROMPTS, SampleConfig(temperature=0.7, top_k=5, top_p=0.9, seed=4), 6)
    got = model.generate(PROMPTS, max_new_tokens=6, temperature=0.7, top_k=5, top_p=0.9, seed=4)
    assert torch.equal(got, want)


def test_draws_are_as_frequent_as_their_probabilities():
    model, config = make_model(d_vocab=5), SampleConfig(temperature=2.0, seed=0)
    prompts = torch.tensor([[0, 3]]).expand(20_000, -1)
    drawn = generate(model, prompts, config, 1)[:, -1]
    expected = next_token_probabilities(model(prompts[:1])[0, -1], config) * 20_000
    assert expected.min() > 5
    counts = torch.bincount(drawn, minlength=5)
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


def test_seeds_decide_the_draws_and_the_global_generator_is_left_alone():
    model = make_model()
    before = torch.get_rng_state()
    first, again, other = (generate(model, PROMPTS, SampleConfig(seed=s), 12) for s in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(123)
    assert torch.equal(first, generate(model, PROMPTS, SampleConfig(seed=1), 12))
    torch.set_rng_state(before)


def test_streams_in_two_threads_do_not_disturb_each_other():
    model, turns = make_model(), threading.Barrier(2)
    want = [generate(model, PROMPTS, SampleConfig(seed=s), 10)[:, 4:] for s in (1, 2)]
    got = [[], []]

    def run(i: int) -> None:
        for step in steps(model, PROMPTS, SampleConfig(seed=i + 1), 10):
            got[i].append(step.tokens)
            turns.wait(timeout=300)  # token by token in turns, the worst interleaving

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(torch.stack(got[i], dim=1), want[i]) for i in range(2))


def test_a_stream_computes_no_token_before_it_is_asked_for():
    model, calls = make_model(), []
    with model.hooks(fwd_hooks=[("hook_embed", lambda value, hook: calls.append(value.shape[1]))]):
        tokens = steps(model, PROMPTS, SampleConfig(), 5)
        assert calls == []
        next(tokens)
        assert calls == [4]
        assert torch.is_grad_enabled()  # the consumer's own work is not under no_grad
        next(tokens)
        assert calls == [4, 1]


def test_a_sequence_ends_with_a_stop_id_and_repeats_it_until_all_have_ended():
    # The embedding alone decides: 2 -> 3 -> 4 -> ... whatever came before.
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.ln_final.w.fill_(1.0)
        model.embed.W_E[:, :12] = torch.eye(12)
        model.unembed.W_U[:12] = torch.eye(12).roll(1, dims=1)
    prompts, greedy = torch.tensor([[0, 2], [0, 7], [0, 4]]), SampleConfig(temperature=0.0)
    got = generate(model, prompts, greedy, 8, stop_ids=(6, 9))[:, 2:]
    assert got.tolist() == [[3, 4, 5, 6], [8, 9, 9, 9], [5, 6, 6, 6]]
    cut = generate(model, prompts, greedy, 3, stop_ids=(6, 9))[:, 2:]
    assert torch.equal(cut, got[:, :3])


@pytest.mark.parametrize(
    ("tokens", "n", "stop_ids", "message"),
    [
        ([[]], 1, (), r"^prompt must have at least 1 token, got none$"),
        ([[0, 12]], 1, (), r"^token ids must be from 0 to 11, got 0 to 12$"),
        ([[-1, 2]], 1, (), r"^token ids must be from 0 to 11, got -1 to 2$"),
        ([[0, 2]], 1, (12,), r"^stop ids must be from 0 to 11, got 12 to 12$"),
        ([[0, 2]], 0, (), r"^max_new_tokens must be a whole number of at least 1, got 0$"),
        (
            [[0] * 13],
            4,
            (),
            r"^prompt and new tokens must be at most n_ctx = 16, got 13 \+ 4; "
            r"at most 3 new tokens fit$",
        ),
        ([[0] * 16], 1, (), r"got 16 \+ 1; shorten the prompt$"),
    ],
)
def test_requests_that_cannot_be_met_are_refused_before_the_first_token(
    tokens, n, stop_ids, message
):
    tokens = torch.tensor(tokens, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        steps(make_model(), tokens, SampleConfig(), n, stop_ids=stop_ids)


def test_the_last_position_can_be_filled():
    assert generate(make_model(), PROMPTS, SampleConfig(), 12).shape == (3, 16)


def test_seeds_that_do_not_fit_a_generator_are_refused():
    with pytest.raises(ValueError, match=r"^seed must be below 2\*\*63, got 18446744073709551616$"):
        steps(make_model(), PROMPTS, SampleConfig(seed=2**64), 1)


UNEQUAL = ([3, 5, 7, 1], [2], [4, 1, 6, 2, 8, 9, 10], [9, 9], [1, 2, 3], [5], [6, 7], [8, 8, 1, 2])
DESIGNS: dict[str, dict] = {
    "standard": {},
    "sinusoidal": {"positional_embedding_type": "sinusoidal"},
    "rotary": {"positional_embedding_type": "rotary"},
    "none": {"positional_embedding_type": "none"},
    "grouped keys": {"positional_embedding_type": "rotary", "n_heads": 4, "n_key_value_heads": 2},
    "parallel": {"positional_embedding_type": "rotary", "parallel_attn_mlp": True},
    "attention only": {"attn_only": True, "normalization_type": "RMS"},
    "pruned": {"n_heads": 4, "n_key_value_heads": 2, "kept_heads": ((0, 2, 3), ())},
}


def design(name: str) -> HookedGPT:
    config = {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_vocab": 12, "n_ctx": 16}
    return HookedGPT(ModelConfig(**{**config, "initializer_range": 0.3, **DESIGNS[name]}))


def scaled(z: torch.Tensor, hook: object) -> torch.Tensor:
    return z * 0.5


@pytest.mark.parametrize("edited", [False, True], ids=["plain", "gates and a hook"])
@pytest.mark.parametrize("n_prompts", [1, 8])
@pytest.mark.parametrize("name", DESIGNS)
def test_cached_generation_from_unequal_prompts_equals_whole_passes_of_each(
    name: str, n_prompts: int, edited: bool
) -> None:
    model = design(name)
    exact = design(name).double()  # so that no rounding decides between two tokens
    gates, hooks = None, []
    if edited:
        gates = HeadGates.ablate([(0, 0)], like=model, value=0.25, positions=(0, 2, 3, 6))
        hooks = [("blocks.1.attn.hook_z", scaled)] if name != "pruned" else []
        hooks.append(("blocks.0.hook_resid_post", scaled))
    tokens, mask = left_padded(UNEQUAL[2 : 2 + n_prompts] + UNEQUAL[:2], pad_id=11)
    tokens, mask = tokens[:n_prompts], mask[:n_prompts]
    greedy, n = SampleConfig(temperature=0.0), 7
    with model.hooks(fwd_hooks=hooks), exact.hooks(fwd_hooks=hooks):
        found = list(steps(model, tokens, greedy, n, gates, attention_mask=mask))
        drawn = torch.stack([step.tokens for step in found], dim=1)
        exactly = generate(exact, tokens, greedy, n, gates, attention_mask=mask)
        for row, real in enumerate(mask):
            # One pass over a finished sequence holds the logits of every step before it.
            whole = exactly[row : row + 1, torch.cat([real, real.new_ones(n)])]
            steps_of = slice(int(real.sum()) - 1, -1)
            best = exact(whole, gates=gates)[0, steps_of].argmax(dim=-1)
            assert torch.equal(best, exactly[row, tokens.shape[1] :])
            # In float32 the logits, given the tokens that it drew itself.
            both = torch.cat([tokens[row, real], drawn[row]]).unsqueeze(0)
            want = model(both, gates=gates).detach()[0, steps_of]
            got = torch.stack([step.logits[row] for step in found])
            torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_an_observer_reads_every_step_without_padding_in_the_way() -> None:
    model = design("grouped keys").double()
    tokens, mask = left_padded([[3, 5, 7, 1], [2, 4]])
    seen: list[tuple[int, tuple[int, ...]]] = []
    reads_of: list[list] = []

    def observe(layer: int, reads: object) -> None:
        seen.append((layer, tuple(reads.q.shape[:2])))
        reads_of.append(reads)

    out = model.generate(tokens, 5, 0.0, attention_mask=mask, observe=observe)
    assert seen == [(layer, (2, 4 if step == 0 else 1)) for step in range(5) for layer in (0, 1)]
    _, cache = model.run_with_cache(out[1:, 2:])
    for step in range(1, 5):
        row = cache["pattern", 1][0, :, 1 + step, : 2 + step]
        got = reads_of[2 * step + 1]
        torch.testing.assert_close(got.pattern()[1, :, 0, 2:], row, atol=1e-12, rtol=0)
        entropy = torch.special.entr(row).sum(-1)
        torch.testing.assert_close(got.entropy()[1, :, 0], entropy, atol=1e-12, rtol=0)


def test_steps_carry_probabilities_over_the_whole_vocabulary() -> None:
    model, config = make_model(), SampleConfig(temperature=0.7, top_k=3)
    for step in steps(model, PROMPTS, config, 3):
        assert step.probabilities.shape == (3, 12)
        assert ((step.probabilities > 0).sum(dim=1) == 3).all()
        torch.testing.assert_close(step.probabilities.sum(dim=1), torch.ones(3).double())
        assert (step.probabilities.gather(1, step.tokens.unsqueeze(1)) > 0).all()


def test_the_prompts_own_logits_are_not_computed() -> None:
    model, shapes = make_model(), []
    with model.hooks(fwd_hooks=[("ln_final.hook_scale", lambda x, hook: shapes.append(x.shape))]):
        generate(model, PROMPTS, SampleConfig(), 2)
    assert shapes == [(3, 1, 1), (3, 1, 1)]


@pytest.mark.parametrize("weight", ["W_Q", "b_Q", "W_K", "W_V", "W_O"])
def test_edits_of_weights_in_place_are_seen_by_the_next_call(weight: str) -> None:
    model, greedy = make_model(), SampleConfig(temperature=0.0)
    before = [step.logits for step in steps(model, PROMPTS, greedy, 3)]
    with torch.no_grad():
        part = getattr(model.blocks[0].attn, weight)[1]
        part += torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).double()
    after = [step.logits for step in steps(model, PROMPTS, greedy, 3)]
    torch.testing.assert_close(after[0], model(PROMPTS)[:, -1].detach(), atol=1e-12, rtol=0)
    assert not torch.allclose(after[0], before[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_dir": "bidirectional"}, r"^attention_dir must be 'causal' to generate"),
        ({"d_vocab_out": 3}, r"^d_vocab_out must be d_vocab = 12 .*, got 3$"),
    ],
)
def test_models_that_cannot_go_on_from_their_own_words_are_refused(
    changes: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        steps(make_model(**changes), PROMPTS, SampleConfig(), 1)


@pytest.mark.gpu
def test_a_gpu_draws_what_the_cpu_draws():
    model = make_model()
    config = SampleConfig(top_k=6, top_p=0.9, seed=5)
    want = generate(model, PROMPTS, config, 12)
    got = generate(model.to("cuda"), PROMPTS, config, 12)
    assert got.device == PROMPTS.device
    assert torch.equal(got, want)
