"""TransformerLens's own tools, unchanged, on a HookedGPT: they run and their values are right."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformer_lens import ActivationCache, evals
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.training import TrainConfig, train

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT

pytestmark = pytest.mark.usefixtures("as_a_user")  # shapes: test_architectures.py


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)


@pytest.fixture
def tokens() -> Tensor:
    """One sequence without repeats but one."""
    return torch.tensor([[0, 5, 3, 9, 5, 3, 2, 7, 9, 1]])


class TestDetectHead:
    """detect_head's "mul" measure is on-pattern mass over all mass, rounded to 3 decimals."""

    KINDS = ("previous_token_head", "duplicate_token_head", "induction_head")

    @pytest.mark.parametrize("kind", KINDS)
    def test_scores(self, tool_model: HookedGPT, tokens: Tensor, kind: str) -> None:
        got = detect_head(tool_model, tokens, kind)
        _, cache = tool_model.run_with_cache(tokens)
        ids, n = tokens[0].tolist(), tokens.shape[1]
        cells = {
            "previous_token_head": [(q, q - 1) for q in range(1, n)],
            "duplicate_token_head": [
                (q, k) for q in range(n) for k in range(q) if ids[k] == ids[q]
            ],
            "induction_head": [
                (q, k) for q in range(n) for k in range(1, q + 1) if ids[k - 1] == ids[q]
            ],
        }[kind]
        expected = torch.zeros(2, 3).double()
        for layer in range(2):
            for head in range(3):
                pattern = cache["pattern", layer][0, head]
                expected[layer, head] = sum(pattern[q, k] for q, k in cells) / pattern.sum()
        torch.testing.assert_close(got, expected, atol=6e-4, rtol=0)

    def test_a_list_is_the_mean_and_the_cache_is_left_alone(
        self, tool_model: HookedGPT, tokens: Tensor
    ) -> None:
        """TransformerLens PR #1745: kwargs of a list were dropped, a caller's cache was masked."""
        prompts = [tokens, tokens.flip(1)]
        choices: list[dict[str, object]] = [{"error_measure": "abs"}, {"exclude_bos": True}, {}]
        for options in choices:
            if tool_model.config.attention_dir == "bidirectional" and "error_measure" in options:
                with pytest.raises(AssertionError):  # it asks for a causal pattern
                    detect_head(tool_model, tokens, self.KINDS[0], **options)
                continue
            alone = [detect_head(tool_model, one, self.KINDS[0], **options) for one in prompts]
            both = detect_head(tool_model, prompts, self.KINDS[0], **options)
            torch.testing.assert_close(both, torch.stack(alone).mean(0), atol=2e-3, rtol=0)
        _, cache = tool_model.run_with_cache(tokens, remove_batch_dim=True)
        before = {name: value.clone() for name, value in cache.items()}
        detect_head(tool_model, tokens, self.KINDS[0], cache=cache, exclude_bos=True)
        assert all(torch.equal(cache[name], before[name]) for name in before)

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

    def test_run_with_cache_returns_one(self, tool_model: HookedGPT, tokens: Tensor) -> None:
        _, cache = tool_model.run_with_cache(tokens)
        assert isinstance(cache, ActivationCache)
        _, bare = tool_model.run_with_cache(tokens, return_cache_object=False)
        assert isinstance(bare, dict)

    def test_decompose_resid(self, tool_model: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens #1648: hook_attn_out was not what is added to the stream."""
        _, cache = tool_model.run_with_cache(tokens)
        parts, labels = cache.decompose_resid(return_labels=True)
        embeds = ["embed", "pos_embed"] if "hook_pos_embed" in cache else ["embed"]
        halves = ["attn_out"] if tool_model.config.attn_only else ["attn_out", "mlp_out"]
        assert labels == [*embeds, *(f"{layer}_{half}" for layer in range(2) for half in halves)]
        close(parts.sum(0), cache["resid_post", 1])
        close(parts[len(embeds)], cache["attn_out", 0])
        if "blocks.0.hook_resid_mid" in cache:
            for layer in range(2):
                close(
                    cache["resid_mid", layer], cache["resid_pre", layer] + cache["attn_out", layer]
                )
                close(
                    cache["resid_post", layer], cache["resid_mid", layer] + cache["mlp_out", layer]
                )

    def test_accumulated_resid(self, tool_model: HookedGPT, tokens: Tensor) -> None:
        _, cache = tool_model.run_with_cache(tokens)
        rows, labels = cache.accumulated_resid(return_labels=True)
        assert labels == ["0_pre", "1_pre", "final_post"]
        names = [("resid_pre", 0), ("resid_pre", 1), ("resid_post", 1)]
        for row, name in zip(rows, names, strict=True):
            close(row, cache[name])

    def test_everything_that_writes_sums_to_the_stream(
        self, tool_model: HookedGPT, tokens: Tensor
    ) -> None:
        """Heads, neurons, embeddings and accumulated_bias together are the last stream."""
        _, cache = tool_model.run_with_cache(tokens)
        close(cache.get_full_resid_decomposition().sum(0), cache["resid_post", 1])
        if tool_model.config.attn_only:
            with pytest.raises(KeyError, match="unknown activation"):
                cache.stack_neuron_results(-1)
            return
        neurons = cache.stack_neuron_results(-1)
        assert len(neurons) == 2 * 16
        expected = cache["post", 1][..., 5, None] * tool_model.W_out[1, 5]
        close(neurons[16 + 5], expected)

    def test_apply_ln_to_stack_is_the_norm_without_its_weights(
        self, tool_model: HookedGPT, tokens: Tensor
    ) -> None:
        _, cache = tool_model.run_with_cache(tokens)
        parts = cache.apply_ln_to_stack(cache.decompose_resid(), layer=-1)
        close(parts.sum(0), cache["normalized"])

    def test_logit_attributions(self, tool_model: HookedGPT, tokens: Tensor) -> None:
        folded = tool_model.fold_ln()
        logits, cache = folded.run_with_cache(tokens)
        found = cache.logit_attrs(cache.decompose_resid(), tokens=tokens).sum(0)
        wanted = (logits - folded.b_U).gather(2, tokens[..., None])[..., 0]
        close(found, wanted)
        with pytest.raises(ValueError, match="needs a final norm with w = 1"):
            tool_model.run_with_cache(tokens)[1].logit_attrs(cache.decompose_resid(), tokens=tokens)

    def test_stack_head_results(self, tool_model: HookedGPT, tokens: Tensor) -> None:
        _, cache = tool_model.run_with_cache(tokens)
        results, labels = cache.stack_head_results(return_labels=True)
        assert labels == tool_model.all_head_labels()
        for index, (layer, head) in enumerate((a, b) for a in range(2) for b in range(3)):
            close(results[index], cache["z", layer][:, :, head] @ tool_model.W_O[layer, head])
        for layer in range(2):
            written = results[3 * layer : 3 * layer + 3].sum(0) + tool_model.b_O[layer]
            close(written, cache["attn_out", layer])
        tool_model.set_use_attn_result(True)
        logits, whole = tool_model.run_with_cache(tokens)
        close(whole.stack_head_results(), results)
        close(logits, tool_model(tokens))

    @pytest.mark.parametrize(
        "wrong",
        ["blocks.0.attn.hook_patern", ["hook_embed", "blocks.9.hook_z"], lambda name: False],
    )
    def test_unknown_names_are_errors(
        self, tool_model: HookedGPT, tokens: Tensor, wrong: object
    ) -> None:
        with pytest.raises(KeyError, match=r"unknown hook|must match a hook"):
            tool_model.run_with_cache(tokens, names_filter=wrong)
        assert not tool_model.blocks[0].attn.hook_z.has_hooks()


class TestTraining:
    """TransformerLens's training loop and evaluations."""

    class Rows(Dataset):
        """Two sequences, as TransformerLens's loop wants them."""

        def __init__(self, tokens: Tensor) -> None:
            self.tokens = tokens

        def __len__(self) -> int:
            return len(self.tokens)

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"tokens": self.tokens[index]}

    ROWS = torch.tensor([[0, 5, 3, 9, 5, 3], [1, 4, 8, 2, 7, 7]])

    def test_one_step_of_its_loop_is_the_step_by_hand(self, tool_model: HookedGPT) -> None:
        by_hand = copy.deepcopy(tool_model)
        optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-2)
        by_hand(self.ROWS, return_type="loss").backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimizer.step()
        with torch.random.fork_rng():  # it seeds the global generator
            config = TrainConfig(
                num_epochs=1, batch_size=2, lr=1e-2, optimizer_name="Adam", weight_decay=None,
                max_grad_norm=1.0, device="cpu", print_every=None,
            )  # fmt: skip
            train(tool_model, config, self.Rows(self.ROWS))
        for (name, got), wanted in zip(
            tool_model.named_parameters(), by_hand.parameters(), strict=True
        ):
            # Adam's first step has the size of the learning rate, however small the gradient.
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0, msg=name)
        assert tool_model.training

    def test_evaluate_on_dataset(self, tool_model: HookedGPT) -> None:
        loader = DataLoader(self.Rows(self.ROWS), batch_size=1)
        got = evals.evaluate_on_dataset(tool_model, loader, device="cpu")
        each = [tool_model(row[None], return_type="loss").item() for row in self.ROWS]
        assert got == pytest.approx(sum(each) / 2, abs=1e-6)

    def test_induction_loss(self, build: Callable[..., HookedGPT]) -> None:
        """It draws ids from 100 to 20,000: smaller vocabularies are told so."""
        with pytest.raises(ValueError, match="token ids must be from 0 to 12"):
            evals.induction_loss(build("gpt2"), subseq_len=4, device="cpu")
        large = build("gpt2", d_vocab=20_000, d_model=6, n_heads=1, d_mlp=6, n_layers=1)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            tokens = torch.randint(100, 20_000, (2, 4)).repeat(1, 2)
            torch.manual_seed(3)
            got = evals.induction_loss(large, batch_size=2, subseq_len=4, device="cpu")
        logs = large(tokens).log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
        torch.testing.assert_close(got, -logs[:, 5:].mean())

    def test_sanity_check_needs_a_tokenizer(self, tool_model: HookedGPT) -> None:
        with pytest.raises(ValueError, match="this model has no tokenizer"):
            evals.sanity_check(tool_model)
