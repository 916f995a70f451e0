"""TransformerLens's own tools, unchanged, on a HookedGPT: they run and their values are right."""

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.head_detector import detect_head
from transformer_lens.patching import get_act_patch_attn_head_out_all_pos

from lab.config import ModelConfig
from lab.model import HookedGPT


@pytest.fixture(params=["standard", "sinusoidal", "rotary"])
def model(request: pytest.FixtureRequest) -> HookedGPT:
    """A model of each kind of positions, with biases that are not zero."""
    config = ModelConfig(
        n_layers=2,
        n_heads=3,
        d_model=24,
        d_vocab=17,
        n_ctx=16,
        initializer_range=0.25,
        positional_embedding_type=request.param,
    )
    model = HookedGPT(config).eval()
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".b" in name:
                parameter.normal_(std=0.3, generator=generator)
    return model


@pytest.fixture
def tokens() -> Tensor:
    """One sequence without repeats but one."""
    return torch.tensor([[0, 5, 3, 9, 5, 3, 2, 7, 9, 1]])


class TestDetectHead:
    """detect_head's "mul" measure is on-pattern mass over all mass, rounded to 3 decimals."""

    @pytest.mark.parametrize(
        "kind", ["previous_token_head", "duplicate_token_head", "induction_head"]
    )
    def test_scores(self, model: HookedGPT, tokens: Tensor, kind: str) -> None:
        got = detect_head(model, tokens, kind)
        _, cache = model.run_with_cache(tokens)
        ids, n = tokens[0].tolist(), tokens.shape[1]
        cells = {
            "previous_token_head": [(q, q - 1) for q in range(1, n)],
            "duplicate_token_head": [
                (q, k) for q in range(n) for k in range(q) if ids[k] == ids[q]
            ],
            "induction_head": [
                (q, k)
                for q in range(n)
                for k in range(1, q + 1)
                if k <= q and ids[k - 1] == ids[q] and k - 1 < q
            ],
        }[kind]
        expected = torch.zeros(2, 3)
        for layer in range(2):
            for head in range(3):
                pattern = cache["pattern", layer][0, head]
                expected[layer, head] = sum(pattern[q, k] for q, k in cells) / pattern.sum()
        torch.testing.assert_close(got, expected, atol=6e-4, rtol=0)

    def test_sees_a_head_that_is_made_to_look_back(self, tokens: Tensor) -> None:
        """A previous-token head by rotary construction scores near (S - 1) / S; others do not."""
        config = ModelConfig(n_layers=1, n_heads=2, d_model=16, d_vocab=17, n_ctx=16)
        model = HookedGPT(config).eval()
        with torch.no_grad():
            model.embed.W_E.zero_()
            model.pos_embed.W_pos.copy_(torch.eye(16))
            query = torch.zeros(16, 8)
            key = torch.zeros(16, 8)
            for pos in range(1, 9):
                query[pos, pos - 1] = key[pos - 1, pos - 1] = 1.0
            model.blocks[0].attn.W_Q[0].copy_(100 * query)
            model.blocks[0].attn.W_K[0].copy_(key)
        scores = detect_head(model, tokens[:, :9], "previous_token_head")
        assert scores[0, 0].item() == pytest.approx(8 / 9, abs=2e-3)
        assert scores[0, 1].item() < 0.4


class TestActivationCache:
    """Decompositions sum to the stream that they decompose."""

    def test_run_with_cache_returns_one(self, model: HookedGPT, tokens: Tensor) -> None:
        _, cache = model.run_with_cache(tokens)
        assert isinstance(cache, ActivationCache)
        _, bare = model.run_with_cache(tokens, return_cache_object=False)
        assert isinstance(bare, dict)

    def test_decompose_resid(self, model: HookedGPT, tokens: Tensor) -> None:
        _, cache = model.run_with_cache(tokens)
        parts, labels = cache.decompose_resid(return_labels=True)
        embeds = (
            ["embed"]
            if model.config.positional_embedding_type == "rotary"
            else ["embed", "pos_embed"]
        )
        assert labels == [*embeds, "0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out"]
        torch.testing.assert_close(parts.sum(0), cache["resid_post", 1], atol=1e-5, rtol=0)
        torch.testing.assert_close(parts[-2], cache["attn_out", 1])

    def test_stack_head_results(self, model: HookedGPT, tokens: Tensor) -> None:
        _, cache = model.run_with_cache(tokens)
        results, labels = cache.stack_head_results(return_labels=True)
        assert labels == model.all_head_labels()
        for index, (layer, head) in enumerate((a, b) for a in range(2) for b in range(3)):
            expected = cache["z", layer][:, :, head] @ model.W_O[layer, head]
            torch.testing.assert_close(results[index], expected, atol=1e-5, rtol=0)
        for layer in range(2):
            written = results[3 * layer : 3 * layer + 3].sum(0) + model.b_O[layer]
            torch.testing.assert_close(written, cache["attn_out", layer], atol=1e-5, rtol=0)

    def test_cached_tensors_are_copies(self, model: HookedGPT, tokens: Tensor) -> None:
        def overwrite(x: Tensor, hook: object) -> Tensor:
            return x.zero_()

        _, plain = model.run_with_cache(tokens)
        with torch.no_grad():
            model.add_hook("blocks.1.hook_resid_pre", overwrite)
            _, edited = model.run_with_cache(tokens)
            model.reset_hooks()
        torch.testing.assert_close(
            edited["resid_post", 0], plain["resid_post", 0], atol=1e-5, rtol=0
        )

    @pytest.mark.parametrize(
        "wrong",
        ["blocks.0.attn.hook_patern", ["hook_embed", "blocks.9.hook_z"], lambda name: False],
    )
    def test_unknown_names_are_errors(
        self, model: HookedGPT, tokens: Tensor, wrong: object
    ) -> None:
        with pytest.raises(KeyError, match=r"unknown hook|must match a hook"):
            model.run_with_cache(tokens, names_filter=wrong)
        assert not model.blocks[0].attn.hook_z.has_hooks()

    def test_unknown_hook_names_suggest_the_right_one(
        self, model: HookedGPT, tokens: Tensor
    ) -> None:
        with pytest.raises(KeyError, match=r"did you mean 'blocks.0.attn.hook_z'"):
            model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_zz", lambda x, hook: x)])


def test_patching_heads_gives_the_patched_logits(model: HookedGPT, tokens: Tensor) -> None:
    """Each cell of the table equals a run whose z of that head was swapped by hand."""
    corrupted = tokens.clone()
    corrupted[0, 3] = 11

    def metric(logits: Tensor) -> Tensor:
        return logits[0, -1, 1] - logits[0, -1, 2]

    with torch.no_grad():
        _, clean = model.run_with_cache(tokens)
        table = get_act_patch_attn_head_out_all_pos(model, corrupted, clean, metric)
        expected = torch.zeros(2, 3)
        for layer in range(2):
            for head in range(3):

                def swap(z: Tensor, hook: object, layer: int = layer, head: int = head) -> Tensor:
                    z = z.clone()
                    z[:, :, head] = clean["z", layer][:, :, head]
                    return z

                name = f"blocks.{layer}.attn.hook_z"
                logits = model.run_with_hooks(corrupted, fwd_hooks=[(name, swap)])
                expected[layer, head] = metric(logits)
    torch.testing.assert_close(table.reshape(2, 3), expected, atol=1e-5, rtol=0)
    assert expected.std() > 1e-3
