"""Attribution, lenses and interchange of TransformerLens on every architecture, against numbers.

Gradients are checked against central differences of the metric in float64, sums against the
logits, swaps against PyTorch's own hooks.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformer_lens.tools.analysis import direct_logit_attribution, logit_lens
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    Node,
    attribution_patch,
    faithfulness,
)
from transformer_lens.tools.analysis.interchange import (
    SubspaceInterchange,
    collect_activations,
    fit_das,
    intervened_logits,
    reinitialized,
)
from transformer_lens.tools.analysis.jacobian_lens import JacobianLens

from lab.hooked_gpt import HookedGPT

CLEAN = torch.tensor([[0, 5, 3]])
CORRUPT = torch.tensor([[0, 11, 3]])
EPS = 1e-5

pytestmark = pytest.mark.usefixtures("as_a_user")


def metric(logits: Tensor) -> Tensor:
    return logits[0, -1, 3] - logits[0, -1, 5]


def with_output(model: HookedGPT, module: nn.Module, edit: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the metric of the corrupt run with what a module puts out edited."""
    handle = module.register_forward_hook(lambda module, args, out: edit(out))
    try:
        return metric(model(CORRUPT))
    finally:
        handle.remove()


def with_input(model: HookedGPT, module: nn.Module, change: Tensor) -> Tensor:
    """Return the metric of the corrupt run with something added to what a module reads."""
    handle = module.register_forward_pre_hook(lambda module, args: (args[0] + change, *args[1:]))
    try:
        return metric(model(CORRUPT))
    finally:
        handle.remove()


def slope(run: Callable[[float], Tensor]) -> float:
    """Return the derivative at 0 by a central difference."""
    with torch.no_grad():
        return ((run(EPS) - run(-EPS)) / (2 * EPS)).item()


def written(model: HookedGPT, node: Node) -> Tensor:
    """Return clean minus corrupt of what a node writes to the stream at its position."""
    kept = ["hook_embed", f"blocks.{node.layer or 0}.hook_mlp_out"]
    kept.append(f"blocks.{node.layer or 0}.attn.hook_z")
    caches = [model.run_with_cache(tokens, names_filter=kept)[1] for tokens in (CLEAN, CORRUPT)]
    if node.kind == "embed":
        values = [cache["hook_embed"] for cache in caches]
    elif node.kind == "mlp_out":
        values = [cache["mlp_out", node.layer] for cache in caches]
    else:
        W_O = model.blocks[node.layer].attn.W_O[node.head]
        values = [cache["z", node.layer][:, :, node.head] @ W_O for cache in caches]
    change = torch.zeros_like(values[0])
    change[:, node.position] = (values[0] - values[1])[:, node.position]
    return change.detach()


class TestAttributionPatching:
    """First-order estimates are the derivative of the metric."""

    def test_nodes(self, swept_model: HookedGPT) -> None:
        if swept_model.config.attn_only:
            with pytest.raises(ValueError, match="hook points missing from the cache"):
                attribution_patch(swept_model, CLEAN, CORRUPT, metric)
            return
        scores = attribution_patch(swept_model, CLEAN, CORRUPT, metric).node_scores
        heads, layers = swept_model.config.n_heads, swept_model.config.n_layers
        assert len(scores) == 3 * (1 + layers * (heads + 1))
        assert max(map(abs, scores.values())) > 1e-3
        for node in list(scores)[2::5]:
            change = written(swept_model, node)
            name = {
                "embed": "hook_embed",
                "mlp_out": f"blocks.{node.layer}.hook_mlp_out",
                "attn_head_out": f"blocks.{node.layer}.hook_attn_out",
            }[node.kind]
            point = swept_model.get_submodule(name)
            expected = slope(
                lambda t, c=change, p=point: with_output(swept_model, p, lambda x: x + t * c)
            )
            assert scores[node] == pytest.approx(expected, abs=1e-7), node

    def test_identical_inputs_have_no_attribution(self, tool_model: HookedGPT) -> None:
        """TransformerLens #1787, #1788: dropout gave identical inputs an attribution."""
        if tool_model.config.attn_only:
            return  # refused, see test_nodes
        scores = attribution_patch(tool_model, CLEAN, CLEAN, metric).node_scores
        assert set(scores.values()) == {0.0}
        tool_model.train()
        with pytest.raises(ValueError, match="eval"):
            attribution_patch(tool_model, CLEAN, CORRUPT, metric)

    def test_edges(self, swept_model: HookedGPT) -> None:
        edges = EdgeAttributionConfig(granularity="edge")
        config = swept_model.config
        if config.attn_only or config.kv_heads != config.n_heads:
            with pytest.raises(ValueError, match=r"hook points missing|not per query head"):
                attribution_patch(swept_model, CLEAN, CORRUPT, metric, edges)
            return
        result = attribution_patch(swept_model, CLEAN, CORRUPT, metric, edges)
        flags = swept_model.cfg
        assert not (flags.use_attn_result or flags.use_split_qkv_input or flags.use_hook_mlp_in)
        scores = result.edge_scores
        some = sorted(scores, key=lambda edge: -abs(scores[edge]))
        seen = set()
        for writer, reader in some:
            if (writer.kind, reader.kind) in seen:
                continue
            seen.add((writer.kind, reader.kind))
            expected = slope(self.along(swept_model, written(swept_model, writer), reader))
            assert scores[writer, reader] == pytest.approx(expected, abs=1e-7), (writer, reader)
        assert {kind for _, kind in seen} == {"q_input", "k_input", "v_input", "mlp_in", "logits"}
        nodes = attribution_patch(swept_model, CLEAN, CORRUPT, metric).node_scores
        for node, score in nodes.items():
            assert result.node_scores[node] == pytest.approx(score, abs=1e-9)

    @staticmethod
    def along(model: HookedGPT, change: Tensor, reader: Node) -> Callable[[float], Tensor]:
        """Return the metric as a function of how much of a change one reader sees."""
        if reader.kind == "logits":
            return lambda t: with_input(model, model.ln_final, t * change)
        block = model.blocks[reader.layer]
        if reader.kind == "mlp_in":
            return lambda t: with_input(model, block.ln2, t * change)
        _, cache = model.run_with_cache(CORRUPT)
        letter = reader.kind[0]
        weight = getattr(block.attn, f"W_{letter.upper()}")[reader.head]
        bias = getattr(block.attn, f"b_{letter.upper()}")[reader.head]

        def run(t: float) -> Tensor:
            stream = block.ln1(cache["resid_pre", reader.layer] + t * change)

            def put(x: Tensor) -> Tensor:
                x = x.clone()
                x[:, :, reader.head] = stream @ weight + bias
                return x

            return with_output(model, model.get_submodule(f"{block.attn.name}.hook_{letter}"), put)

        return run

    def test_faithfulness_of_everything_and_of_nothing(self, swept_model: HookedGPT) -> None:
        edges = EdgeAttributionConfig(granularity="edge")
        config = swept_model.config
        if config.attn_only or config.kv_heads != config.n_heads:
            with pytest.raises(ValueError, match=r"hook points missing|not per query head"):
                faithfulness(swept_model, CLEAN, CORRUPT, metric, [])
            return
        every = list(attribution_patch(swept_model, CLEAN, CORRUPT, metric, edges).edge_scores)
        whole = faithfulness(swept_model, CLEAN, CORRUPT, metric, every)
        assert whole.full_metric == pytest.approx(metric(swept_model(CLEAN)).item(), abs=1e-9)
        assert whole.corrupt_metric == pytest.approx(metric(swept_model(CORRUPT)).item(), abs=1e-9)
        assert whole.recovered == pytest.approx(1.0, abs=1e-6)
        nothing = faithfulness(swept_model, CLEAN, CORRUPT, metric, [])
        assert nothing.recovered == pytest.approx(0.0, abs=1e-6)


class TestDirectLogitAttribution:
    """Parts of the stream sum to the logit without its bias, once the norm is folded."""

    def test_sums_to_the_logit(self, tool_model: HookedGPT) -> None:
        """TransformerLens #1580, #1272, #509: folding that missed, sums that did not close."""
        folded = tool_model.fold_ln()
        tokens, answers = torch.cat([CLEAN, CORRUPT]), torch.tensor([4, 6])
        wanted = (tool_model(tokens) - folded.b_U)[torch.arange(2), -1, answers]
        for unit in ("component", "layer", "head"):
            if unit == "layer" and "blocks.0.hook_resid_mid" not in folded.hook_dict:
                with pytest.raises(KeyError, match=r"unknown activation 'blocks.0.hook_resid_mid'"):
                    direct_logit_attribution(folded, tokens, answer_tokens=answers, unit=unit)
                continue
            found = direct_logit_attribution(folded, tokens, answer_tokens=answers, unit=unit)
            total = found.attribution[-1] if unit == "layer" else found.attribution.sum(0)
            torch.testing.assert_close(total, wanted, atol=1e-10, rtol=0)

    def test_of_one_head_is_what_its_removal_takes_away(self, tool_model: HookedGPT) -> None:
        folded = tool_model.fold_ln()
        _, cache = folded.run_with_cache(CLEAN)
        found = direct_logit_attribution(folded, CLEAN, answer_tokens=4, unit="head")
        scale = cache["ln_final.hook_scale"][0, -1, 0]
        for layer, head in itertools.product(range(2), range(3)):
            result = cache["z", layer][0, -1, head] @ folded.W_O[layer, head]
            if folded.config.normalization_type == "LN":
                result = result - result.mean()
            expected = result @ folded.W_U[:, 4] / scale
            index = list(found.labels).index(f"L{layer}H{head}")
            torch.testing.assert_close(found.attribution[index].flatten()[0], expected)

    def test_is_refused_where_the_norm_has_weights(self, tool_model: HookedGPT) -> None:
        """Ours, seen in 4.3: the sum missed the logit by 0.5 without an error."""
        with pytest.raises(ValueError, match=r"needs a final norm with w = 1 .* model.fold_ln\(\)"):
            direct_logit_attribution(tool_model, CLEAN, answer_tokens=4)
        with pytest.raises(ValueError, match=r"tokens must be ids from 0 to 12, got 13 to 13"):
            direct_logit_attribution(tool_model.fold_ln(), CLEAN, answer_tokens=13)


class TestLenses:
    """Reading the stream before the end."""

    def test_each_row_is_the_head_of_the_model_on_that_stream(self, tool_model: HookedGPT) -> None:
        """TransformerLens #1076, #1180, #1677: scale of the lens, positions of a bare cache."""
        _, cache = tool_model.run_with_cache(CLEAN)
        found = logit_lens(tool_model, CLEAN, positions=None)
        streams = [cache["resid_pre", 0], cache["resid_pre", 1], cache["resid_post", 1]]
        for row, stream in zip(found.values, streams, strict=True):
            expected = tool_model.unembed(tool_model.ln_final(stream))
            torch.testing.assert_close(row, expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(found.values[-1], tool_model(CLEAN), atol=1e-10, rtol=0)
        _, bare = tool_model.run_with_cache(CLEAN, remove_batch_dim=True)
        last = bare.accumulated_resid(apply_ln=True, pos_slice=-1)
        expected = tool_model.ln_final(streams[-1])[0, -1]
        torch.testing.assert_close(last[-1], expected, atol=1e-10, rtol=0)

    def test_the_jacobian_lens_takes_bridges_only(self, tool_model: HookedGPT) -> None:
        with pytest.raises((TypeError, ValueError), match="TransformerBridge"):
            JacobianLens.fit(tool_model, ["a"], corpus="none")


class TestInterchange:
    """Swapping a subspace, and what a model without training would do."""

    HOOK = "blocks.0.hook_resid_post"

    @torch.no_grad()
    def test_a_whole_swap_is_the_swap_by_hand(self, tool_model: HookedGPT) -> None:
        def last(tokens: Tensor) -> Tensor:
            return tool_model(tokens)[:, -1]

        at = torch.tensor([1])
        source = collect_activations(tool_model, self.HOOK, CLEAN, last, positions=at)
        _, cache = tool_model.run_with_cache(CLEAN)
        torch.testing.assert_close(source, cache[self.HOOK][:, 1], atol=1e-10, rtol=0)
        swap = SubspaceInterchange(torch.eye(12, dtype=torch.float64))
        found = intervened_logits(tool_model, self.HOOK, swap, CORRUPT, source, last, positions=at)

        def put(x: Tensor) -> Tensor:
            x = x.clone()
            x[:, 1] = cache[self.HOOK][:, 1]
            return x

        expected = with_output(tool_model, tool_model.get_submodule(self.HOOK), put)
        torch.testing.assert_close(found[0, 3] - found[0, 5], expected, atol=1e-10, rtol=0)

    def test_a_learned_subspace_leaves_the_model_as_it_was(self, tool_model: HookedGPT) -> None:
        before = {name: value.clone() for name, value in tool_model.state_dict().items()}
        result = fit_das(
            tool_model,
            self.HOOK,
            CORRUPT,
            CLEAN,
            torch.tensor([1]),
            lambda tokens: tool_model(tokens)[:, -1],
            rank=2,
            base_positions=torch.tensor([1]),
            source_positions=torch.tensor([1]),
            epochs=2,
        )
        basis = result.basis.double()
        torch.testing.assert_close(
            basis.T @ basis, torch.eye(2, dtype=torch.float64), atol=1e-5, rtol=0
        )
        for name, value in tool_model.state_dict().items():
            assert torch.equal(value, before[name])
        assert all(parameter.requires_grad for parameter in tool_model.parameters())

    def test_reinitialised_models_are_untrained_and_independent(
        self, tool_model: HookedGPT
    ) -> None:
        state = torch.get_rng_state()
        trained = {name: value.clone() for name, value in tool_model.named_parameters()}
        one, same, other = (reinitialized(tool_model, seed) for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), state)
        for (name, parameter), again, apart in zip(
            one.named_parameters(), same.parameters(), other.parameters(), strict=True
        ):
            assert torch.equal(parameter, again)
            assert torch.equal(dict(tool_model.named_parameters())[name], trained[name])
            kind = name.rpartition(".")[2]
            if kind.startswith("W_"):
                assert not torch.equal(parameter, apart)
                assert not torch.equal(parameter, trained[name])
            else:
                assert set(parameter.flatten().tolist()) == {1.0 if kind == "w" else 0.0}
        wide = torch.cat([p.flatten() for n, p in one.named_parameters() if ".W_" in n])
        assert wide.std().item() == pytest.approx(0.3, rel=0.05)
