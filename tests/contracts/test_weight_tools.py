"""What is made of the weights alone: stacks, circuits, scores, folding, and the tools for them."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformer_lens import SVDInterpreter
from transformer_lens.model_protocol import (
    TrainableTransformerLensModel,
    TransformerLensModelWithWeights,
)
from transformer_lens.tools.analysis import attention_head_subspace_affinity

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.norms import RMSNorm
from lab.vocab import letter_vocab
from probes.pruning.removing import prune_heads

Built = Callable[..., HookedGPT]


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)


def test_protocols_hold(tool_model: HookedGPT) -> None:
    assert isinstance(tool_model, TransformerLensModelWithWeights)
    assert isinstance(tool_model, TrainableTransformerLensModel)


class TestStacks:
    """One tensor for all layers."""

    def test_stacks_are_the_parameters_as_they_are_now(self, tool_model: HookedGPT) -> None:
        config = tool_model.config
        names = {f"attn.{kind}_{letter}" for kind in "Wb" for letter in "QKVO"}
        if not config.attn_only:
            names |= {"mlp.W_in", "mlp.W_out", "mlp.b_in", "mlp.b_out"}
        names |= {"mlp.W_gate"} if config.gated_mlp else set()
        for name in names:
            stack = getattr(tool_model, name.partition(".")[2])
            for layer in range(2):
                assert torch.equal(stack[layer], tool_model.get_parameter(f"blocks.{layer}.{name}"))
        with torch.no_grad():
            tool_model.blocks[0].attn.W_Q.zero_()
        assert not tool_model.W_Q[0].any()
        if not config.gated_mlp:
            assert tool_model.W_gate is None

    def test_what_a_model_lacks_is_said(self, build: Built) -> None:
        with pytest.raises(ValueError, match="W_in needs a model with MLPs"):
            _ = build("attention only").W_in
        for name in ("W_pos", "W_E_pos"):
            with pytest.raises(ValueError, match="W_pos needs a model that adds position"):
                getattr(build("llama"), name)
        pruned = prune_heads(build("gpt2"), [(0, 1)])
        for read in (lambda: pruned.W_Q, lambda: pruned.QK, lambda: pruned.cfg.n_heads):
            with pytest.raises(ValueError, match="the same heads in every layer"):
                read()

    def test_w_e_pos(self, build: Built) -> None:
        model = build("gpt2")
        assert torch.equal(model.W_E_pos, torch.cat([model.embed.W_E, model.pos_embed.W_pos]))

    def test_circuits_are_products_of_each_heads_weights(self, tool_model: HookedGPT) -> None:
        QK, OV = tool_model.QK.AB, tool_model.OV.AB
        config = tool_model.config
        for layer, head in itertools.product(range(2), range(3)):
            attn, shared = tool_model.blocks[layer].attn, config.kv_head(head)
            close(QK[layer, head], attn.W_Q[head] @ attn.W_K[shared].T)
            close(OV[layer, head], attn.W_V[shared] @ attn.W_O[head])

    @pytest.mark.parametrize("mode", ["Q", "K", "V"])
    def test_composition_scores(self, tool_model: HookedGPT, mode: str) -> None:
        scores = tool_model.all_composition_scores(mode)
        assert scores.head_labels == tool_model.all_head_labels()
        assert scores.head_labels[:4] == ["L0H0", "L0H1", "L0H2", "L1H0"]
        OV, QK = tool_model.OV.AB, tool_model.QK.AB
        right = {"Q": QK, "K": QK.mT, "V": OV}[mode]
        for a, h, b, g in itertools.product(range(2), range(3), range(2), range(3)):
            expected = (OV[a, h] @ right[b, g]).norm() / (OV[a, h].norm() * right[b, g].norm())
            close(scores[a, h, b, g], expected if a < b else torch.zeros(()).double())

    @pytest.mark.usefixtures("as_a_user")
    def test_modes_of_composition(self, build: Built) -> None:
        with pytest.raises(ValueError, match="unknown mode 'QK'; choose from K, Q, V"):
            build("gpt2").all_composition_scores("QK")

    def test_accumulated_bias_is_what_no_input_changes(self, tool_model: HookedGPT) -> None:
        attn = [block.attn.b_O for block in tool_model.blocks]
        mlp = (
            [torch.zeros(12).double()] * 2
            if tool_model.config.attn_only
            else [block.mlp.b_out for block in tool_model.blocks]
        )
        close(tool_model.accumulated_bias(0), torch.zeros(12).double())
        close(tool_model.accumulated_bias(1), attn[0] + mlp[0])
        close(tool_model.accumulated_bias(1, mlp_input=True), attn[0] + mlp[0] + attn[1])
        close(tool_model.accumulated_bias(2, include_mlp_biases=False), attn[0] + attn[1])
        with pytest.raises(ValueError, match="layer must be from 0 to 2, got 3"):
            tool_model.accumulated_bias(3)


@pytest.mark.usefixtures("as_a_user")
class TestFolding:
    """fold_ln: the same logits from norms without weights."""

    def test_logits_and_heads_stay(self, model: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens #1580, #1272, #509: fold_ln folded wrongly, or without being asked."""
        before = {name: value.clone() for name, value in model.state_dict().items()}
        folded = model.fold_ln()
        close(folded(tokens), model(tokens))
        assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
        _, was = model.run_with_cache(tokens)
        _, now = folded.run_with_cache(tokens)
        assert set(was) == set(now)
        inner = ("mlp.hook_post", "mlp.ln.hook_normalized")  # of solu_ln: before and after its w
        for name in was:
            if name not in ("ln_final.hook_normalized", "unembed.hook_in"):
                moved = "solu_ln" in model.config.act_fn and name.endswith(inner)
                if not moved:
                    close(now[name], was[name])
        for name, parameter in folded.named_parameters():
            if "ln" in name:
                assert set(parameter.flatten().tolist()) == {1.0 if name.endswith("w") else 0.0}
        if model.config.normalization_type == "LN":
            close(folded.W_U.mean(0), torch.zeros(model.config.vocab_out).double())

    def test_float32(self, build: Built, tokens: Tensor) -> None:
        for name in ("gpt2", "llama"):
            model = build(name).float()
            got, wanted = model.fold_ln()(tokens), model(tokens)
            limit = 1e-5 * wanted.abs().max().item()
            torch.testing.assert_close(got, wanted, atol=limit, rtol=0)

    def test_a_replaced_module_is_named(self, build: Built) -> None:
        model = build("gpt2")
        model.ln_final = RMSNorm(model.config)
        with pytest.raises(ValueError, match=r"^ln_final must be the LayerNorm .* got RMSNorm;"):
            model.fold_ln()
        model = build("gpt2")
        model.blocks[1].mlp.b_in = torch.nn.Parameter(model.blocks[1].mlp.b_in[1:].detach())
        with pytest.raises(ValueError, match=r"^shape of blocks.1.mlp.b_in must be \[.*got \["):
            model.fold_ln()

    def test_tied_embeddings_come_apart(self, build: Built) -> None:
        model = build("gpt2 tied")
        folded = model.fold_ln()
        assert not folded.config.tie_word_embeddings
        assert torch.equal(folded.W_E, model.W_E)
        assert not torch.equal(folded.W_U, folded.W_E.T)

    def test_flags_tokenizer_and_mode_come_along_and_hooks_do_not(
        self, build: Built, tokens: Tensor
    ) -> None:
        model = build("gpt2").train()
        model.tokenizer = letter_vocab(11)
        model.cfg.use_attn_result = True
        model.add_hook("hook_embed", lambda x, hook: torch.zeros_like(x))
        folded = model.fold_ln()
        assert folded.tokenizer is model.tokenizer
        assert folded.cfg.use_attn_result
        assert folded.training
        assert folded.list_hooks() == {}

    def test_a_shift_before_a_gate_is_refused(self, build: Built, tokens: Tensor) -> None:
        model = build("gpt2", gated_mlp=True)
        with pytest.raises(ValueError, match=r"before a gated MLP must have b = 0 .*blocks.0.ln2"):
            model.fold_ln()
        with torch.no_grad():
            for block in model.blocks:
                block.ln2.b.zero_()
        close(model.fold_ln()(tokens), model(tokens))


@pytest.mark.usefixtures("as_a_user")
class TestTools:
    """TransformerLens's tools for weights."""

    @pytest.mark.parametrize("role", ["Q", "K", "V"])
    def test_subspace_affinity(self, tool_model: HookedGPT, role: str) -> None:
        """|U^T V|^2 of orthonormal bases of what one head writes and another reads."""
        result = attention_head_subspace_affinity(tool_model, target_role=role, layer_order="all")
        weights = getattr(tool_model, f"W_{role}")
        for a, h, b, g in itertools.product(range(2), range(3), range(2), range(weights.shape[1])):
            U = torch.linalg.qr(tool_model.W_O[a, h].T).Q
            V = torch.linalg.qr(weights[b, g]).Q
            expected = (U.T @ V).square().sum()
            torch.testing.assert_close(result.scores[a, h, b, g].double(), expected)

    def test_a_head_without_output_has_no_subspace(self, tool_model: HookedGPT) -> None:
        with torch.no_grad():
            tool_model.blocks[0].attn.W_O[1].zero_()
        with pytest.raises(ValueError, match="numerical rank is zero"):
            attention_head_subspace_affinity(tool_model, target_role="Q")

    def test_singular_vectors_are_of_the_head_that_was_asked_for(
        self, tool_model: HookedGPT
    ) -> None:
        """Ours, seen in 4.3: with grouped queries it took another head's values."""
        tools, config = SVDInterpreter(tool_model), tool_model.config
        for head in range(3):
            found = tools.get_singular_vectors("OV", 1, num_vectors=2, head_index=head)
            attn = tool_model.blocks[1].attn
            full = attn.W_V[config.kv_head(head)] @ attn.W_O[head]
            vectors = torch.linalg.svd(full).Vh[:2] @ tool_model.W_U
            close(found[:, 0].T.abs(), vectors.abs())
        if config.attn_only:
            with pytest.raises(NotImplementedError, match="w_in"):
                tools.get_singular_vectors("w_in", 1, num_vectors=2)
            return
        found = tools.get_singular_vectors("w_out", 0, num_vectors=2)
        vectors = torch.linalg.svd(tool_model.W_out[0]).Vh[:2] @ tool_model.W_U
        close(found[:, 0].T.abs(), vectors.abs())

    def test_tied_models_have_their_unembedding_there(self, build: Built) -> None:
        model = build("one key head")
        found = SVDInterpreter(model).get_singular_vectors("OV", 0, num_vectors=1, head_index=5)
        assert found.shape == (13, 1, 1)


@pytest.mark.usefixtures("as_a_user")
class TestInitialWeights:
    """reset_parameters, as PyTorch's own modules have it."""

    def test_scale_of_the_old_class(self) -> None:
        """TransformerLens #902, #1568: NaN from torch.empty, and another scale than promised."""
        for seed in range(20):
            config = ModelConfig(
                n_layers=1, n_heads=2, d_model=64, d_vocab=200, n_ctx=8,
                initializer_range=None, seed=seed,
            )  # fmt: skip
            model = HookedGPT(config)
            assert all(parameter.isfinite().all() for parameter in model.parameters())
            assert model.W_E.std().item() == pytest.approx(0.8 / 8, rel=0.05)
            assert model.cfg.initializer_range == 0.1

    def test_a_generator_draws_the_same_again(self, model: HookedGPT) -> None:
        config, dtype = model.config, model.W_E.dtype
        fresh = HookedGPT(config).to(dtype)
        model.to(torch.float32).reset_parameters(torch.Generator().manual_seed(config.seed))
        for (name, got), wanted in zip(
            model.to(dtype).named_parameters(), fresh.parameters(), strict=True
        ):
            assert torch.equal(got, wanted), name

    def test_every_module_with_parameters_resets_them(self, model: HookedGPT) -> None:
        for module in model.modules():
            own = list(module.parameters(recurse=False))
            if own:
                with torch.no_grad():
                    for parameter in own:
                        parameter.fill_(7.0)
                module.reset_parameters()  # pyright: ignore[reportCallIssue]
                assert not any((parameter == 7.0).any() for parameter in own)


class TestTokens:
    """Ids, and texts where there is a tokenizer."""

    def test_ids_without_a_tokenizer(self, build: Built, tokens: Tensor) -> None:
        model = build("gpt2")
        assert torch.equal(model.to_tokens(tokens), tokens)
        assert torch.equal(model.to_tokens(tokens[0]), tokens[:1])
        assert torch.equal(model(tokens[0]), model(tokens[:1]))
        assert model.to_single_token(7) == 7
        for ask in (model, model.to_tokens, model.to_single_token, model.to_str_tokens):
            with pytest.raises(ValueError, match="no tokenizer"):
                ask("abc")
        with pytest.raises(ValueError, match="needs a tokenizer"):
            model.to_string(tokens)

    def test_texts_of_a_tasks_vocabulary(self, build: Built) -> None:
        model = build("gpt2")
        model.tokenizer = letter_vocab(11)
        assert model.to_tokens("cab").tolist() == [[4, 2, 3]]
        assert model.to_tokens(["ab", "ba"], prepend_bos=True).tolist() == [[0, 2, 3], [0, 3, 2]]
        assert model.to_string([4, 2, 3]) == "cab"
        assert model.to_string(torch.tensor([[4, 2], [1, 0]])) == ["ca", "<sep><bos>"]
        assert model.to_str_tokens("ca", prepend_bos=True) == ["<bos>", "c", "a"]
        assert model.to_str_tokens(["c", "ab"]) == [["c"], ["a", "b"]]
        assert model.to_str_tokens(torch.tensor([[1, 5]])) == ["<sep>", "d"]
        assert (model.to_single_token("d"), model.to_single_str_token(5)) == (5, "d")
        assert model.get_token_position("a", "bada") == 1
        assert model.get_token_position(2, torch.tensor([3, 2, 5, 2]), mode="last") == 3
        assert torch.equal(model("cab"), model(torch.tensor([[4, 2, 3]])))
        with pytest.raises(ValueError, match="'ab' must be a single token, got 2 tokens"):
            model.to_single_token("ab")
        with pytest.raises(ValueError, match="equally long, got 1 and 2 tokens; pad"):
            model.to_tokens(["a", "ab"])
        with pytest.raises(ValueError, match="input must hold 'c', got a sequence without it"):
            model.get_token_position("c", "ab")
        with pytest.raises(ValueError, match="one sequence of tokens, got a batch of 2"):
            model.to_str_tokens(torch.tensor([[1, 5], [1, 5]]))

    def test_directions_are_columns_of_the_unembedding(self, build: Built) -> None:
        model = build("no norm")
        model.tokenizer = letter_vocab(11)
        for asked, ids in ((3, 3), ("b", 3), (torch.tensor([[1, 2]]), [[1, 2]]), ([4], [4])):
            expected = model.W_U.T[torch.tensor(ids)]
            assert torch.equal(model.tokens_to_residual_directions(asked), expected)
