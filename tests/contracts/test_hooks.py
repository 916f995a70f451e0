"""Hooks and caches: what is added acts, what ends is gone, what is cached stays as it was."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from lab.blocks import Attention
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache
from lab.lens.hook_table import FLAGGED_HOOKS

pytestmark = pytest.mark.usefixtures("as_a_user")  # shapes: test_architectures.py

Built = Callable[..., HookedGPT]
Z = "blocks.0.attn.hook_z"


@pytest.fixture
def gpt2(build: Built) -> HookedGPT:
    return build("gpt2")


def zero(x: Tensor, hook: HookPoint) -> Tensor:
    return torch.zeros_like(x)


def live_hooks(model: HookedGPT) -> int:
    """Count what PyTorch itself would call, whatever TransformerLens's lists say."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def set_flags(model: HookedGPT) -> None:
    """Ask for everything that the architecture has."""
    for flag in set(FLAGGED_HOOKS.values()):
        if flag != "use_attn_in" or model.config.kv_heads == model.config.n_heads:
            setattr(model.cfg, flag, True)


class TestLife:
    """When hooks begin and end to act."""

    def test_an_error_leaves_no_hook_a_thousand_times(self, build: Built) -> None:
        """TransformerLens PR #156: hooks survived an exception in run_with_hooks."""
        gpt2 = build("gpt2", n_layers=1)
        tokens = torch.tensor([[1, 2]])
        before = gpt2(tokens)
        names = list(gpt2.hook_dict)

        def fail(x: Tensor, hook: HookPoint) -> None:
            raise RuntimeError("stop here")

        for i in range(1000):
            hooks = [(names[i % len(names)], fail), (Z, zero)]
            with pytest.raises(RuntimeError, match="stop here"):
                gpt2.run_with_hooks(tokens, fwd_hooks=hooks, reset_hooks_end=i % 3 > 0)
        assert gpt2.list_hooks() == {}
        assert gpt2.context_level == 0
        assert live_hooks(gpt2) == 0
        assert torch.equal(gpt2(tokens), before)

    def test_a_wrong_name_after_good_ones_leaves_none(
        self, gpt2: HookedGPT, tokens: Tensor
    ) -> None:
        with pytest.raises(KeyError, match=r"did you mean 'blocks\.0\.attn\.hook_z'"):
            gpt2.run_with_hooks(tokens, fwd_hooks=[(Z, zero), ("blocks.0.attn.hook_zz", zero)])
        assert live_hooks(gpt2) == 0

    def test_users_hooks_outlive_caches(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens #1636, #1638: run_with_cache removed hooks that a user had added."""
        plain = gpt2(tokens)
        gpt2.add_hook(Z, zero)
        zeroed = gpt2(tokens)
        logits, cache = gpt2.run_with_cache(tokens)
        assert not cache["z", 0].any()
        assert torch.equal(gpt2(tokens), zeroed)
        torch.testing.assert_close(logits, zeroed, atol=1e-11, rtol=0)
        gpt2.reset_hooks()
        assert torch.equal(gpt2(tokens), plain)

    def test_kept_hooks_outlive_later_runs(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        """Ours, seen in 4.3: hooks of reset_hooks_end=False went at the next run of any kind."""
        plain = gpt2(tokens)
        zeroed = gpt2.run_with_hooks(tokens, fwd_hooks=[(Z, zero)], reset_hooks_end=False)
        gpt2.run_with_cache(tokens, names_filter="hook_embed")
        gpt2.run_with_hooks(tokens, fwd_hooks=[("hook_embed", lambda x, hook: None)])
        with gpt2.hooks(fwd_hooks=[("hook_pos_embed", lambda x, hook: None)]):
            gpt2(tokens)
        assert torch.equal(gpt2(tokens), zeroed)
        assert not torch.equal(zeroed, plain)
        assert list(gpt2.list_hooks()) == [Z]
        gpt2.reset_hooks()
        assert torch.equal(gpt2(tokens), plain)

    def test_contexts_within_contexts_end_one_by_one(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        with gpt2.hooks(fwd_hooks=[(Z, zero)]):
            outer = gpt2(tokens)
            with gpt2.hooks(fwd_hooks=[("blocks.1.attn.hook_z", zero)]):
                assert not torch.equal(gpt2(tokens), outer)
            assert torch.equal(gpt2(tokens), outer)
        assert live_hooks(gpt2) == 0

    def test_backward_hooks_end_with_their_context(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens #1323, #1324: backward hooks leaked from `with hooks(bwd_hooks=...)`."""
        seen: list[Tensor] = []
        with gpt2.hooks(bwd_hooks=[(Z, lambda grad, hook: seen.append(grad.clone()))]):
            gpt2(tokens, return_type="loss").backward()
        assert gpt2.list_hooks(dir="bwd") == {}
        assert live_hooks(gpt2) == 0
        gpt2(tokens, return_type="loss").backward()
        assert len(seen) == 1

    def test_hooks_go_with_a_copy_of_the_model(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        other = copy.deepcopy(gpt2)
        assert not torch.equal(other.run_with_hooks(tokens, fwd_hooks=[(Z, zero)]), gpt2(tokens))
        assert live_hooks(gpt2) == live_hooks(other) == 0


class TestReplacedModules:
    """Ours, seen in 4.3: hooks went to the module that was no longer run, without an error."""

    def test_a_hook_finds_the_new_module(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        old = gpt2.blocks[0].attn
        gpt2.blocks[0].attn = copy.deepcopy(old)
        plain = gpt2(tokens)
        assert not torch.equal(gpt2.run_with_hooks(tokens, fwd_hooks=[(Z, zero)]), plain)
        gpt2.blocks[0].attn.hook_z = HookPoint()
        for name in (Z, lambda name: name == Z):
            changed = gpt2.run_with_hooks(tokens, fwd_hooks=[(name, zero)])
            assert not torch.equal(changed, plain)
        gpt2.blocks[0].attn.hook_z = HookPoint()
        _, cache = gpt2.run_with_cache(tokens, names_filter=Z)
        assert cache[Z].shape == (3, 8, 6, 6)

    def test_a_hook_left_behind_is_an_error(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        gpt2.add_hook(Z, zero)
        gpt2.blocks[0].attn = Attention(gpt2.config, gpt2.cfg, 0).double()
        message = "hooks must be on modules of the model, got one on blocks.0.attn.hook_z"
        with pytest.raises(ValueError, match=message):
            gpt2(tokens)
        with pytest.raises(ValueError, match=message):
            gpt2.run_with_cache(tokens)
        gpt2.reset_hooks()
        gpt2.setup()
        plain = gpt2(tokens)
        gpt2.add_hook(Z, zero)
        assert not torch.equal(gpt2(tokens), plain)


class TestNames:
    """What names_filter and hook names may be."""

    def test_every_form_of_a_filter_caches_the_same(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens #340, #45: names_filter as str or list was ignored."""
        caches = [
            gpt2.run_with_cache(tokens, names_filter=names)[1]
            for names in (Z, [Z], (Z,), lambda name: name == Z)
        ]
        assert all(list(cache) == [Z] for cache in caches)

    def test_an_old_name_finds_the_fork(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        """HookedTransformer had hook_q_input and its fellows on the block."""
        old = "blocks.1.hook_q_input"
        gpt2.set_use_split_qkv_input(True)
        _, cache = gpt2.run_with_cache(tokens)
        assert torch.equal(cache["q_input", 1], cache["blocks.1.attn.hook_q_input"])
        assert torch.equal(cache[old], cache["q_input", -1])
        assert not torch.equal(gpt2.run_with_hooks(tokens, fwd_hooks=[(old, zero)]), gpt2(tokens))
        assert list(gpt2.run_with_cache(tokens, names_filter=old)[1]) == [old]

    def test_a_name_that_the_run_skips_is_an_error(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        name = "blocks.1.hook_resid_pre"
        with pytest.raises(KeyError, match=f"names_filter names {name}, which this run never"):
            gpt2.run_with_cache(tokens, names_filter=[name, "hook_embed"], stop_at_layer=1)

    def test_a_filter_leaves_out_what_nobody_computes(
        self, gpt2: HookedGPT, tokens: Tensor
    ) -> None:
        seen: list[str] = []
        every = [(lambda name: True, lambda x, hook: seen.append(hook.name))]
        gpt2.run_with_hooks(tokens, fwd_hooks=every)
        assert not [name for name in seen if name.endswith("hook_result")]
        with pytest.raises(KeyError, match=r"set cfg.use_attn_result = True, or hook it by"):
            gpt2.add_hook(lambda name: name.endswith("hook_result"), zero)
        with pytest.raises(KeyError, match="must match a hook"):
            gpt2.add_hook(lambda name: False, zero)

    def test_a_flag_that_nobody_reads_is_an_error(self, gpt2: HookedGPT) -> None:
        with pytest.raises(ValueError, match="did you mean 'use_attn_result'"):
            gpt2.cfg.use_attn_results = True

    def test_a_wrong_key_of_a_cache_suggests_one(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        _, cache = gpt2.run_with_cache(tokens)
        with pytest.raises(KeyError, match=r"did you mean 'blocks\.0\.attn\.hook_pattern'"):
            cache["blocks.0.attn.hook_patern"]


class TestCaches:
    """What run_with_cache keeps."""

    @pytest.mark.parametrize("kept", [-1, 2, (2, 5), [0, 7], (None, None, 3)])
    def test_positions_are_cut_on_their_own_axis(
        self, tool_model: HookedGPT, tokens: Tensor, kept: object
    ) -> None:
        """Ours, seen in 4.3: pos_slice cut hook_q_input and its like on the axis of heads."""
        set_flags(tool_model)
        _, whole = tool_model.run_with_cache(tokens)
        _, cut = tool_model.run_with_cache(tokens, pos_slice=kept)
        wanted = [kept] if isinstance(kept, int) else kept
        wanted = slice(*wanted) if isinstance(wanted, tuple) else wanted
        assert set(cut) == set(whole)
        for name, value in whole.items():
            matrix = name.endswith(("hook_attn_scores", "hook_pattern"))
            expected = value[:, :, wanted] if matrix else value[:, wanted]
            assert torch.equal(cut[name], expected), name

    def test_one_sequence_without_its_batch_axis(self, tool_model: HookedGPT) -> None:
        set_flags(tool_model)
        tokens = torch.tensor([[3, 1, 4, 1, 5]])
        _, whole = tool_model.run_with_cache(tokens)
        _, bare = tool_model.run_with_cache(tokens, remove_batch_dim=True, pos_slice=(1, 3))
        for name, value in whole.items():
            matrix = name.endswith(("hook_attn_scores", "hook_pattern"))
            expected = value[0][:, 1:3] if matrix else value[0][1:3]
            assert torch.equal(bare[name], expected), name
        with pytest.raises(ValueError, match="remove_batch_dim must be used with a batch of one"):
            tool_model.run_with_cache(tokens.repeat(2, 1), remove_batch_dim=True)

    def test_gradients_are_those_of_autograd(self, tool_model: HookedGPT, tokens: Tensor) -> None:
        if tool_model.config.kv_heads == tool_model.config.n_heads:
            tool_model.set_use_attn_result(True)
        loss, cache = tool_model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
        names = [name for name in cache if not name.endswith("_grad")]
        kept: dict[str, Tensor] = {}

        def keep(x: Tensor, hook: HookPoint) -> None:
            kept[hook.name] = x

        again = tool_model.run_with_hooks(
            tokens, return_type="loss", fwd_hooks=[(name, keep) for name in names]
        )
        wanted = torch.autograd.grad(again, [kept[name] for name in names])
        assert torch.equal(loss, again)
        for name, gradient in zip(names, wanted, strict=True):
            torch.testing.assert_close(cache[f"{name}_grad"], gradient, atol=1e-11, rtol=0)
        with pytest.raises(ValueError, match=r"one number for backward, got shape \[3, 8, 13\]"):
            tool_model.run_with_cache(tokens, incl_bwd=True)

    def test_an_edit_in_place_changes_no_cache(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens PR #1187, and ours: cached tensors were views of what came next."""
        with torch.no_grad():
            _, before = gpt2.run_with_cache(tokens)
            kept = {name: value.clone() for name, value in before.items()}
            for name in list(kept)[::2]:
                gpt2.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook: x.mul_(2.0))])
                gpt2.add_hook(name, lambda x, hook: x.zero_())
                _, edited = gpt2.run_with_cache(tokens)
                gpt2.reset_hooks()
                # What stands before the edited activation is what it was.
                for earlier in list(kept)[: list(kept).index(name)]:
                    torch.testing.assert_close(edited[earlier], kept[earlier], atol=1e-11, rtol=0)
            assert all(torch.equal(before[name], kept[name]) for name in kept)

    def test_bytes_are_known_beforehand(self, model: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens #659: use_attn_result takes n_heads times the stream."""
        set_flags(model)
        for kept in (None, (0, 3)):
            _, cache = model.run_with_cache(tokens, pos_slice=kept)
            taken = sum(value.numel() * value.element_size() for value in cache.values())
            assert model.cache_bytes(3, 8, pos_slice=kept) == taken
        if model.config.attention_dir != "causal":
            return  # no kv_cache
        some = ["blocks.1.attn.hook_pattern", "unembed.hook_out"]
        kv_cache = KeyValueCache(2)
        model(tokens[:, :5], kv_cache=kv_cache)
        _, cache = model.run_with_cache(tokens[:, 5:], names_filter=some, kv_cache=kv_cache)
        taken = sum(value.numel() * value.element_size() for value in cache.values())
        assert model.cache_bytes(3, 3, some, n_key=8) == taken

    def test_a_cache_of_results_beyond_the_limit_is_refused(
        self, gpt2: HookedGPT, tokens: Tensor
    ) -> None:
        gpt2.set_use_attn_result(True)
        needed = 2 * 3 * 8 * 6 * 24 * 8
        gpt2.largest_wide_cache = needed
        gpt2.run_with_cache(tokens)
        gpt2.largest_wide_cache = needed - 1
        with pytest.raises(
            ValueError, match=f"hook_result must be at most .* got {needed} for 3 x"
        ):
            gpt2.run_with_cache(tokens)
        gpt2.run_with_cache(tokens, pos_slice=-1)
        gpt2.run_with_cache(tokens, names_filter=lambda name: "blocks.0" in name)
        gpt2.run_with_cache(tokens, names_filter="blocks.0.attn.hook_z")

    def test_caching_hooks_stay_until_they_are_reset(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        cache = gpt2.add_caching_hooks([Z, "hook_embed"])
        gpt2(tokens)
        first = cache[Z]
        gpt2.run_with_cache(tokens[:1], names_filter="hook_embed")
        assert set(cache) == {Z, "hook_embed"}
        assert cache[Z].shape == (1, 8, 6, 6)
        assert first.shape == (3, 8, 6, 6)
        gpt2.reset_hooks()
        with pytest.raises(KeyError, match="unknown hook"):
            gpt2.add_caching_hooks("hook_embde")

    def test_on_another_device(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        """TransformerLens #217, #246, #250, #837, #907: caches on the wrong device."""
        _, cache = gpt2.run_with_cache(tokens, device="meta")
        assert {str(value.device) for value in cache.values()} == {"meta"}
        assert gpt2.cfg.device == str(gpt2.W_E.device) == "cpu"


class TestThreads:
    """Hooks stand on the model, so one thread at a time has them."""

    def test_the_caches_of_two_threads_do_not_mix(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        alone = {n: gpt2.run_with_cache(tokens[:, :n])[1] for n in (3, 5)}
        started, ready = threading.Event(), threading.Event()

        def slow(x: Tensor, hook: object) -> None:
            started.set()
            ready.wait(0.3)  # time for the other to come in, if nobody stops it

        def one() -> Any:
            with gpt2.hooks([("blocks.0.hook_resid_pre", slow)]):
                return gpt2.run_with_cache(tokens[:, :3])[1]

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(one)
            assert started.wait(30)
            second = pool.submit(lambda: gpt2.run_with_cache(tokens[:, :5])[1])
            for n, got in ((3, first.result(30)), (5, second.result(30))):
                assert got.keys() == alone[n].keys()
                assert all(torch.equal(got[name], alone[n][name]) for name in got)

    def test_a_thread_does_not_wait_for_ever(self, gpt2: HookedGPT, tokens: Tensor) -> None:
        gpt2.one_thread.seconds = 0.01
        with gpt2.hooks(), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(gpt2.run_with_cache, tokens)
            with pytest.raises(RuntimeError, match=r"^hooks must be used by one thread of a model"):
                waiting.result(30)
            own = copy.deepcopy(gpt2)
            _, cache = pool.submit(own.run_with_cache, tokens).result(30)
            assert "hook_embed" in cache
        gpt2.run_with_cache(tokens)
