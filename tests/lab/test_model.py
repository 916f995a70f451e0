"""HookedGPT: shapes and names, both attention paths, layers one by one, caches, tying, refusals."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lab.attention_reads import AttentionReads
from lab.config import ModelConfig
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache

POSITIONS = ["standard", "sinusoidal", "rotary"]


def small_model(**changes: object) -> HookedGPT:
    """A model with odd sizes (heads * d_head != d_model) and weights that matter."""
    sizes = {"n_layers": 3, "n_heads": 3, "d_model": 20, "d_head": 6, "d_vocab": 13, "n_ctx": 12}
    config = ModelConfig(**{**sizes, "initializer_range": 0.25, "seed": 3, **changes})
    return HookedGPT(config).eval()


def some_tokens(batch: int = 4, n: int = 9) -> Tensor:
    """Draw ids without touching the global generator."""
    return torch.randint(0, 13, (batch, n), generator=torch.Generator().manual_seed(5))


@pytest.fixture(params=POSITIONS)
def model(request: pytest.FixtureRequest) -> HookedGPT:
    """One model of each kind of positions."""
    return small_model(positional_embedding_type=request.param)


class TestSurface:
    """Names, shapes and initial weights."""

    def test_parameters_are_those_of_the_old_model(self) -> None:
        shapes = {name: tuple(p.shape) for name, p in small_model(n_layers=1).named_parameters()}
        assert shapes == {
            "embed.W_E": (13, 20),
            "pos_embed.W_pos": (12, 20),
            "blocks.0.ln1.w": (20,),
            "blocks.0.ln1.b": (20,),
            "blocks.0.attn.W_Q": (3, 20, 6),
            "blocks.0.attn.W_K": (3, 20, 6),
            "blocks.0.attn.W_V": (3, 20, 6),
            "blocks.0.attn.W_O": (3, 6, 20),
            "blocks.0.attn.b_Q": (3, 6),
            "blocks.0.attn.b_K": (3, 6),
            "blocks.0.attn.b_V": (3, 6),
            "blocks.0.attn.b_O": (20,),
            "blocks.0.ln2.w": (20,),
            "blocks.0.ln2.b": (20,),
            "blocks.0.mlp.W_in": (20, 80),
            "blocks.0.mlp.b_in": (80,),
            "blocks.0.mlp.W_out": (80, 20),
            "blocks.0.mlp.b_out": (20,),
            "ln_final.w": (20,),
            "ln_final.b": (20,),
            "unembed.W_U": (20, 13),
            "unembed.b_U": (13,),
        }

    def test_hooks_have_the_old_names_and_shapes(self, model: HookedGPT) -> None:
        _, cache = model.run_with_cache(some_tokens())
        resid, scale, heads, matrix, mlp = (
            (4, 9, 20),
            (4, 9, 1),
            (4, 9, 3, 6),
            (4, 3, 9, 9),
            (4, 9, 80),
        )
        block = {
            **dict.fromkeys(["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"], resid),
        }
        expected = {f"blocks.0.hook_{name}": shape for name, shape in block.items()}
        rotary = model.config.positional_embedding_type == "rotary"
        for name in ["q", "k", "v", "z", *(["rot_q", "rot_k"] if rotary else [])]:
            expected[f"blocks.0.attn.hook_{name}"] = heads
        for name in ("attn_scores", "pattern"):
            expected[f"blocks.0.attn.hook_{name}"] = matrix
        for name in ("pre", "post"):
            expected[f"blocks.0.mlp.hook_{name}"] = mlp
        for norm in ("blocks.0.ln1", "blocks.0.ln2", "ln_final"):
            expected |= {f"{norm}.hook_scale": scale, f"{norm}.hook_normalized": resid}
        expected |= {"unembed.hook_in": resid, "unembed.hook_out": (4, 9, 13)}
        expected["hook_embed"] = resid
        if not rotary:
            expected["hook_pos_embed"] = resid
        first_layer = {
            name: tuple(value.shape)
            for name, value in cache.items()
            if not name.startswith(("blocks.1", "blocks.2"))
        }
        assert first_layer == expected

    def test_initial_weights(self) -> None:
        torch.manual_seed(7)
        before = torch.get_rng_state()
        a, b = (small_model(seed=1, d_model=60, d_vocab=200) for _ in range(2))
        assert torch.equal(torch.get_rng_state(), before)
        for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
            assert torch.equal(x, y)
            assert x.isfinite().all()
            if ".b" in name:
                assert not x.any()
        assert a.W_E.std().item() == pytest.approx(0.25, rel=0.05)
        assert not torch.equal(a.W_E, small_model(seed=2, d_model=60, d_vocab=200).W_E)

    def test_config_follows_the_parameters(self) -> None:
        model = small_model()
        assert model.double().cfg.dtype == torch.float64
        assert model.to("meta").cfg.device == "meta"


class TestPaths:
    """The path that a hook asks for, and the fused one, are the same model.

    That every hook is live, and changes no bit by itself, is in tests/contracts.
    """

    @pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
    def test_agree(self, model: HookedGPT, dtype: torch.dtype, limit: float) -> None:
        model = model.to(dtype)
        for n in (1, 2, 9):
            fused = model(some_tokens(n=n), attention="fused")
            explicit = model(some_tokens(n=n), attention="explicit")
            scale = max(1.0, fused.abs().max().item())
            torch.testing.assert_close(fused, explicit, atol=limit * scale, rtol=0)

    def test_step_by_step_norm_equals_the_fused_one(self, model: HookedGPT) -> None:
        model = model.double()
        got = model.run_with_hooks(
            some_tokens(), fwd_hooks=[(lambda name: "hook_scale" in name, lambda x, hook: None)]
        )
        torch.testing.assert_close(got, model(some_tokens()), atol=1e-12, rtol=0)

    def test_plain_torch_hooks_fire_too(self, model: HookedGPT) -> None:
        seen = []
        handle = model.blocks[1].attn.hook_pattern.register_forward_hook(
            lambda module, args, out: seen.append(out.shape)
        )
        model(some_tokens())
        handle.remove()
        assert seen == [(4, 3, 9, 9)]

    def test_fused_refuses_hooks_that_could_not_fire(self, model: HookedGPT) -> None:
        hooks = [("blocks.1.attn.hook_pattern", lambda x, hook: None)]
        with pytest.raises(ValueError, match=r"attention='fused' never builds .* in layer 1"):
            model.run_with_hooks(some_tokens(), attention="fused", fwd_hooks=hooks)

    def test_a_hook_that_raises_leaves_nothing_behind(self, model: HookedGPT) -> None:
        before = model(some_tokens())

        def fail(x: Tensor, hook: object) -> None:
            raise RuntimeError("stop here")

        for name in ("blocks.0.attn.hook_pattern", "blocks.2.ln2.hook_scale"):
            with pytest.raises(RuntimeError, match="stop here"):
                model.run_with_hooks(some_tokens(), fwd_hooks=[(name, fail)])
        assert torch.equal(model(some_tokens()), before)


class TestForward:
    """Arguments of forward."""

    def test_layers_can_be_run_in_two_parts(self, model: HookedGPT) -> None:
        tokens = some_tokens()
        whole = model(tokens)
        for layer in (0, 1, 2, -1):
            residual = model(tokens, stop_at_layer=layer)
            assert torch.equal(model(residual, start_at_layer=layer), whole)
        _, cache = model.run_with_cache(tokens)
        explicit = model(tokens, stop_at_layer=2, attention="explicit")
        torch.testing.assert_close(explicit, cache["resid_pre", 2], atol=1e-5, rtol=0)

    def test_losses(self, model: HookedGPT) -> None:
        tokens = some_tokens()
        logits, loss = model(tokens, return_type="both")
        per_token = model(tokens, return_type="loss", loss_per_token=True)
        naive = -logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
        torch.testing.assert_close(per_token, naive)
        torch.testing.assert_close(loss, naive.mean())
        residual = model(tokens, stop_at_layer=1)
        resumed = model(residual, return_type="loss", start_at_layer=1, tokens=tokens)
        assert torch.equal(resumed, loss)
        assert model(tokens, return_type=None) is None

    @pytest.mark.parametrize("changes", [{}, {"parallel_attn_mlp": True}, {"attn_only": True}])
    def test_without_an_output_observers_see_the_same_and_hooks_still_fire(
        self, changes: dict[str, bool]
    ) -> None:
        model, tokens = small_model(**changes), some_tokens()
        seen: dict[str, list[Tensor]] = {"logits": [], "nothing": []}
        fired: list[str] = []
        model(tokens, observe=lambda _, reads: seen["logits"].append(reads.entropy()))
        model(tokens, None, observe=lambda _, reads: seen["nothing"].append(reads.entropy()))
        for one, other in zip(seen["logits"], seen["nothing"], strict=True):
            assert torch.equal(one, other)

        def note(x: Tensor, *, hook: object) -> None:
            fired.append("hook")

        def observe(layer: int, reads: AttentionReads) -> None:
            fired.append(f"reads of {layer}")

        with model.hooks(fwd_hooks=[("blocks.2.hook_resid_post", note)]):
            model(tokens, None, observe=observe)
        handle = model.blocks[2].ln1.register_forward_hook(lambda *_: fired.append("ln1"))
        model(tokens, None, observe=observe)
        handle.remove()
        reads = [f"reads of {layer}" for layer in range(3)]
        assert fired == [*reads, "hook", *reads[:2], "ln1", reads[2]]

    def test_reads_that_bring_z_along_change_nothing(self) -> None:
        model, tokens = small_model(), some_tokens()
        brought: list[bool] = []

        def observe(_: int, reads: AttentionReads) -> None:
            reads.entropy()
            brought.append(reads.z is not None)

        def double(z: Tensor, hook: object) -> Tensor:
            return 2.0 * z

        gates = HeadGates.ablate([(1, 2)], like=model)
        with torch.no_grad(), model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", double)]):
            wanted = model(tokens, gates=gates)
            found = model(tokens, gates=gates, observe=observe)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
            model(tokens, gates=gates, observe=observe, attention="explicit")
        model(tokens, observe=observe).sum().backward()
        assert brought == [True] * 3 + [False] * 6
        assert bool(model.blocks[0].attn.W_V.grad.any())

    def test_observer_sees_every_layer_and_what_the_pattern_hook_sees(
        self, model: HookedGPT
    ) -> None:
        seen: list[tuple[int, AttentionReads]] = []
        tokens = some_tokens()
        logits = model(tokens, observe=lambda layer, reads: seen.append((layer, reads)))
        assert torch.equal(logits, model(tokens))
        assert [layer for layer, _ in seen] == [0, 1, 2]
        _, cache = model.run_with_cache(tokens)
        for layer, reads in seen:
            torch.testing.assert_close(reads.pattern(), cache["pattern", layer], atol=1e-5, rtol=0)

    @pytest.mark.parametrize("chunks", [[1] * 9, [4, 5], [3, 1, 5]])
    def test_cached_positions_equal_the_whole(self, model: HookedGPT, chunks: list[int]) -> None:
        tokens = some_tokens()
        whole = model(tokens)
        kv_cache = KeyValueCache(model.config.n_layers)
        parts = [model(part, kv_cache=kv_cache) for part in tokens.split(chunks, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)
        assert kv_cache.length == 9

    def test_hooks_see_cached_runs(self, model: HookedGPT) -> None:
        tokens, shapes = some_tokens(), []
        kv_cache = KeyValueCache(model.config.n_layers)
        model(tokens[:, :6], kv_cache=kv_cache)
        model.run_with_hooks(
            tokens[:, 6:],
            kv_cache=kv_cache,
            fwd_hooks=[("blocks.1.attn.hook_pattern", lambda x, hook: shapes.append(x.shape))],
        )
        assert shapes == [(4, 3, 3, 9)]

    @pytest.mark.parametrize(
        ("tokens", "kwargs", "message"),
        [
            (torch.zeros(1, 13, dtype=torch.long), {}, r"1 to n_ctx = 12 tokens, got 13"),
            (torch.zeros(1, 0, dtype=torch.long), {}, r"1 to n_ctx = 12 tokens, got 0"),
            (torch.tensor([[0, 13]]), {}, r"token ids must be from 0 to 12, got 0 to 13"),
            (torch.tensor([[0, 1]]), {"attention": "flash"}, r"unknown attention 'flash'"),
            (torch.tensor([[0, 1]]), {"return_type": "prob"}, r"return_type must be logits"),
        ],
    )
    @pytest.mark.usefixtures("as_a_user")
    def test_refusals(self, tokens: Tensor, kwargs: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            small_model()(tokens, **kwargs)


class TestTying:
    """One parameter for embedding and unembedding."""

    def test_shares_one_parameter(self) -> None:
        model, untied = small_model(tie_word_embeddings=True), small_model()
        assert "unembed.W_U" not in dict(model.named_parameters())
        state = model.state_dict()
        assert state.keys() == untied.state_dict().keys()
        assert torch.equal(state["unembed.W_U"], model.W_E.T)
        untied.load_state_dict(state)
        torch.testing.assert_close(model(some_tokens()), untied(some_tokens()))
        model(some_tokens(), return_type="loss").backward()
        assert model.embed.W_E.grad is not None

    def test_loading_checks_agreement(self) -> None:
        model = small_model(tie_word_embeddings=True)
        state = model.state_dict()
        other = small_model(tie_word_embeddings=True, seed=9)
        other.load_state_dict(state)
        assert torch.equal(other(some_tokens()), model(some_tokens()))
        state["unembed.W_U"] = state["unembed.W_U"] + 1
        with pytest.raises(ValueError, match=r"unembed.W_U must be embed.W_E transposed"):
            other.load_state_dict(state)


def test_forward_equals_a_plain_transcription() -> None:
    """The whole model once more, in float64, with one loop over heads and no shared code."""
    model = small_model(positional_embedding_type="standard").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4))
            )
    tokens = some_tokens()
    x = model.embed.W_E[tokens] + model.pos_embed.W_pos[: tokens.shape[1]]
    mask = torch.ones(9, 9).tril().log().double()
    for block in model.blocks:
        a, n = block.attn, F.layer_norm(x, (20,), block.ln1.w, block.ln1.b, 1e-5)
        heads = [
            ((n @ a.W_Q[h] + a.b_Q[h]) @ (n @ a.W_K[h] + a.b_K[h]).mT / 6**0.5 + mask).softmax(-1)
            @ (n @ a.W_V[h] + a.b_V[h])
            @ a.W_O[h]
            for h in range(3)
        ]
        x = x + sum(heads) + a.b_O
        n = F.layer_norm(x, (20,), block.ln2.w, block.ln2.b, 1e-5)
        x = x + F.gelu(n @ block.mlp.W_in + block.mlp.b_in) @ block.mlp.W_out + block.mlp.b_out
    n = F.layer_norm(x, (20,), model.ln_final.w, model.ln_final.b, 1e-5)
    expected = n @ model.unembed.W_U + model.unembed.b_U
    for path in ("fused", "explicit"):
        torch.testing.assert_close(model(tokens, attention=path), expected, atol=1e-12, rtol=0)
