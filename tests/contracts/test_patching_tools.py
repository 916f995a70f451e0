"""TransformerLens's patching on every architecture: each cell against a patch made by hand.

The hand patches through PyTorch's own forward hooks, so it shares neither TransformerLens's loops
nor this project's contexts.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache, patching

from lab.hooked_gpt import HookedGPT

CLEAN = torch.tensor([[0, 5, 3], [1, 4, 8]])
CORRUPT = torch.tensor([[0, 11, 3], [10, 4, 8]])

pytestmark = pytest.mark.usefixtures("as_a_user")  # hundreds of runs of checked shapes

BY_POS: dict[str, str] = {
    "resid_pre": "blocks.{}.hook_resid_pre",
    "resid_mid": "blocks.{}.hook_resid_mid",
    "attn_out": "blocks.{}.hook_attn_out",
    "mlp_out": "blocks.{}.hook_mlp_out",
}
HEADS = {"out": "z", "q": "q", "k": "k", "v": "v"}
SWEEPS: dict[str, tuple[str, Callable[..., tuple]]] = {
    **{name: (hook, lambda pos: (slice(None), pos)) for name, hook in BY_POS.items()},
    **{
        f"attn_head_{name}_by_pos": (
            f"blocks.{{}}.attn.hook_{hook}",
            lambda pos, head: (slice(None), pos, head),
        )
        for name, hook in HEADS.items()
    },
    **{
        f"attn_head_{name}_all_pos": (
            f"blocks.{{}}.attn.hook_{hook}",
            lambda head: (slice(None), slice(None), head),
        )
        for name, hook in HEADS.items()
    },
    "attn_head_pattern_all_pos": ("blocks.{}.attn.hook_pattern", lambda head: (slice(None), head)),
    "attn_head_pattern_by_pos": (
        "blocks.{}.attn.hook_pattern",
        lambda head, row: (slice(None), head, row),
    ),
    "attn_head_pattern_dest_src_pos": (
        "blocks.{}.attn.hook_pattern",
        lambda head, row, key: (slice(None), head, row, key),
    ),
}
"""Where each sweep patches: the hook, and the cells of one index after the layer."""


def metric(logits: Tensor) -> Tensor:
    """A difference of two logits at the last position, over the batch."""
    return (logits[:, -1, 3] - logits[:, -1, 5]).mean()


def edited(model: HookedGPT, name: str, edit: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the metric of the corrupt run with one activation edited."""
    point = model.get_submodule(name)
    handle = point.register_forward_hook(lambda module, args, out: edit(out))
    try:
        return metric(model(CORRUPT))
    finally:
        handle.remove()


def caches(model: HookedGPT) -> tuple[ActivationCache, ActivationCache]:
    return model.run_with_cache(CLEAN)[1], model.run_with_cache(CORRUPT)[1]


@torch.no_grad()
def test_every_sweep_is_the_patch_by_hand(swept_model: HookedGPT) -> None:
    clean, _ = caches(swept_model)
    plain = metric(swept_model(CORRUPT))
    for kind, (hook, where) in SWEEPS.items():
        sweep = getattr(patching, f"get_act_patch_{kind}")
        if hook.format(0) not in swept_model.hook_dict:
            with pytest.raises(KeyError, match="unknown activation"):
                sweep(swept_model, CORRUPT, clean, metric)
            continue
        table = sweep(swept_model, CORRUPT, clean, metric)
        assert table.ndim == where.__code__.co_argcount + 1
        assert (table - plain).abs().max() > 1e-6, kind
        for layer, *cell in list(itertools.product(*map(range, table.shape)))[::3]:
            name, at = hook.format(layer), where(*cell)

            def patch(x: Tensor, name: str = name, at: tuple = at) -> Tensor:
                x = x.clone()
                x[at] = clean[name][at]
                return x

            expected = edited(swept_model, name, patch)
            torch.testing.assert_close(
                table[layer, *cell], expected.to(table.dtype), atol=1e-6, rtol=0
            )


@torch.no_grad()
def test_key_heads_are_patched_as_they_are(tool_model: HookedGPT) -> None:
    """TransformerLens #980: k and v of grouped-query attention have fewer heads than q."""
    clean, _ = caches(tool_model)
    config = tool_model.config
    for letter, heads in (("q", config.n_heads), ("k", config.kv_heads), ("v", config.kv_heads)):
        assert clean[letter, 0].shape == (2, 3, heads, 4)
        sweep = getattr(patching, f"get_act_patch_attn_head_{letter}_all_pos")
        assert sweep(tool_model, CORRUPT, clean, metric).shape == (2, heads)
    assert tool_model.QK.shape == (2, config.n_heads, 12, 12)


@torch.no_grad()
def test_collections_of_sweeps_hold_the_sweeps(swept_model: HookedGPT) -> None:
    clean, _ = caches(swept_model)
    config = swept_model.config
    if not config.attn_only:
        block = patching.get_act_patch_block_every(swept_model, CORRUPT, clean, metric)
        for index, kind in enumerate(("resid_pre", "attn_out", "mlp_out")):
            alone = getattr(patching, f"get_act_patch_{kind}")(swept_model, CORRUPT, clean, metric)
            assert torch.equal(block[index], alone)
    if config.kv_heads != config.n_heads:
        return  # q, k and v have tables of different shapes
    tables = patching.get_act_patch_attn_head_all_pos_every(swept_model, CORRUPT, clean, metric)
    for index, kind in enumerate(("out", "q", "k", "v", "pattern")):
        sweep = getattr(patching, f"get_act_patch_attn_head_{kind}_all_pos")
        assert torch.equal(tables[index], sweep(swept_model, CORRUPT, clean, metric))
    tables = patching.get_act_patch_attn_head_by_pos_every(swept_model, CORRUPT, clean, metric)
    alone = patching.get_act_patch_attn_head_v_by_pos(swept_model, CORRUPT, clean, metric)
    assert torch.equal(tables[3], alone)


@torch.no_grad()
def test_identical_inputs_have_no_effect_and_training_is_refused(tool_model: HookedGPT) -> None:
    """TransformerLens #1787, #1788: dropout gave identical inputs an attribution."""
    _, corrupt = caches(tool_model)
    table = patching.get_act_patch_attn_head_out_by_pos(tool_model, CORRUPT, corrupt, metric)
    plain = metric(tool_model(CORRUPT)).to(table.dtype)
    assert torch.equal(table, plain.expand_as(table))
    tool_model.train()
    with pytest.raises(ValueError, match="eval"):
        patching.get_act_patch_attn_head_out_by_pos(tool_model, CORRUPT, corrupt, metric)


@torch.no_grad()
def test_statistics_of_a_sweep(tool_model: HookedGPT) -> None:
    clean, _ = caches(tool_model)

    def each(logits: Tensor) -> Tensor:
        return logits[:, -1, 3] - logits[:, -1, 5]

    result = patching.get_act_patch_resid_pre(
        tool_model, CORRUPT, clean, each, reduce="none", baseline=True
    )
    mean = patching.get_act_patch_resid_pre(tool_model, CORRUPT, clean, metric)
    torch.testing.assert_close(result.mean(), mean)
    low, high = result.bootstrap_ci(n_resamples=50, seed=1)[:2]
    assert ((low <= high) & (low <= result.mean() + 1e-6)).all()
    assert len(result.to_dataframe()) == result.values.numel()
    torch.testing.assert_close(result.baseline, each(tool_model(CORRUPT)).to(result.values.dtype))


@torch.no_grad()
@pytest.mark.parametrize("component", ["q", "k", "v"])
def test_direct_paths_are_the_edit_of_one_heads_input(
    tool_model: HookedGPT, component: str
) -> None:
    """The edge into (1, h) is head (0, s)'s change, added to what that head's q, k or v is made of.

    By hand: q_h = ln1(stream + change) W_Q[h] + b_Q[h], put in the place of hook_q.
    """
    clean, corrupt = caches(tool_model)
    if component != "q" and tool_model.config.kv_heads != tool_model.config.n_heads:
        with pytest.raises(ValueError, match="per-query-head K/V semantics are undefined"):
            patching.get_act_patch_direct_path_all_sources(
                tool_model, CORRUPT, clean, corrupt, metric, component=component, verbose=False
            )
        return
    table = patching.get_act_patch_direct_path_all_sources(
        tool_model, CORRUPT, clean, corrupt, metric, component=component, verbose=False
    )
    assert not tool_model.cfg.use_split_qkv_input
    block, letter = tool_model.blocks[1], component.upper()
    weight, bias = getattr(block.attn, f"W_{letter}"), getattr(block.attn, f"b_{letter}")
    for source, head in itertools.product(range(3), range(3)):
        change = (clean["z", 0] - corrupt["z", 0])[:, :, source] @ tool_model.W_O[0, source]
        stream = block.ln1(corrupt["resid_pre", 1] + change)

        def patch(x: Tensor, head: int = head, stream: Tensor = stream) -> Tensor:
            x = x.clone()
            x[:, :, head] = stream @ weight[head] + bias[head]
            return x

        expected = edited(tool_model, f"blocks.1.attn.hook_{component}", patch)
        torch.testing.assert_close(
            table[0, source, 1, head], expected.to(table.dtype), atol=1e-6, rtol=0
        )
    assert (table[0, :, 1] - metric(tool_model(CORRUPT))).abs().max() > 1e-6
