"""What holds for every architecture that a ModelConfig can describe."""

import itertools

import pytest
import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from lab.attention_reads import AttentionReads
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache
from lab.lens.hook_table import FLAGGED_HOOKS
from probes.pruning.removing import count_parameters, prune_heads


def some_tokens(batch: int = 3, n: int = 8) -> Tensor:
    return torch.randint(0, 13, (batch, n), generator=torch.Generator().manual_seed(5))


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-11, rtol=0)


def test_paths_agree(model: HookedGPT) -> None:
    for n in (1, 2, 8):
        tokens = some_tokens(n=n)
        close(model(tokens, attention="fused"), model(tokens, attention="explicit"))


def disturb(x: Tensor, hook: HookPoint) -> Tensor:
    """Add noise of the activation's own size; to a divisor, a positive factor a position."""
    generator = torch.Generator().manual_seed(11)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    if hook.name.endswith("hook_scale"):
        return x * noise.exp()
    finite = x.isfinite()
    return torch.where(finite, x + noise * x[finite].std(), x)


def same(x: Tensor, hook: HookPoint) -> Tensor:
    return x.clone()


@pytest.mark.usefixtures("as_a_user")  # a thousand runs, whose shapes all other tests check
def test_every_hook_is_live(live_model: HookedGPT) -> None:
    """TransformerLens #1526, #1527: edits to some hooks were ignored.

    Noise at any hook changes the logits; handing on what came changes no bit of the same path
    with the same flags, and nothing but rounding of the fused one.
    """
    model, tokens = live_model, some_tokens(2, 6)
    plain = model(tokens)
    in_steps: dict[str | None, Tensor] = {}
    shared = model.config.kv_heads != model.config.n_heads
    for name in model.hook_dict:
        flag = FLAGGED_HOOKS.get(name.rpartition(".")[2])
        if shared and flag == "use_attn_in":
            with pytest.raises(ValueError, match="hook_attn_in needs a key head for each query"):
                model.run_with_hooks(tokens, fwd_hooks=[(name, disturb)])
            continue
        changed = model.run_with_hooks(tokens, fwd_hooks=[(name, disturb)])
        assert (changed - plain).abs().max() > 1e-3 * plain.std(), name
        close(model.run_with_hooks(tokens, fwd_hooks=[(name, same)]), plain)
        if flag is not None:
            setattr(model.cfg, flag, True)
        if flag not in in_steps:
            in_steps[flag] = model(tokens, attention="explicit")
        got = model.run_with_hooks(tokens, fwd_hooks=[(name, same)], attention="explicit")
        assert torch.equal(got, in_steps[flag]), name
        if flag is not None:
            setattr(model.cfg, flag, False)


@pytest.mark.usefixtures("as_a_user")
def test_flags_change_nothing_but_what_is_cached(model: HookedGPT) -> None:
    tokens = some_tokens()
    plain, before = model.run_with_cache(tokens)
    flags = set(FLAGGED_HOOKS.values())
    if model.config.kv_heads != model.config.n_heads:
        flags.remove("use_attn_in")
    for flag in flags:
        setattr(model.cfg, flag, True)
    logits, after = model.run_with_cache(tokens)
    close(logits, plain)
    new = {name.rpartition(".")[2] for name in set(after) - set(before)}
    assert new == {
        name
        for name, flag in FLAGGED_HOOKS.items()
        if flag in flags and not (model.config.attn_only and flag == "use_hook_mlp_in")
    }
    results = after["result", 0].sum(2) + model.blocks[0].attn.b_O
    close(results, after["attn_out", 0])
    scale = "blocks.0.ln1.hook_scale"
    assert scale not in after or after[scale].shape == (3, 8, 1)


def test_layers_in_two_parts(model: HookedGPT) -> None:
    tokens = some_tokens()
    assert torch.equal(model(model(tokens, stop_at_layer=1), start_at_layer=1), model(tokens))


@pytest.mark.usefixtures("as_a_user")
def test_padding_shifts_nothing(model: HookedGPT) -> None:
    """TransformerLens #1609, #1610, #240, PR #344: left padding must not shift positions.

    And #389, #1607, #1608, pytorch #41508: rows of padding are neither NaN nor part of the loss.
    """
    pads, n = (0, 1, 3, 8), 11
    sequences = [some_tokens(4, n)[i : i + 1, : n - pad] for i, pad in enumerate(pads)]
    padded = torch.full((4, n), 7)
    mask = torch.zeros(4, n, dtype=torch.bool)
    for row, (pad, sequence) in enumerate(zip(pads, sequences, strict=True)):
        padded[row, pad:], mask[row, pad:] = sequence[0], True
    bare = [model(sequence) for sequence in sequences]
    for path in ("fused", "explicit"):
        got = model(padded, attention_mask=mask, attention=path)
        for row, pad in enumerate(pads):
            close(got[row, pad:], bare[row][0])
    _, cache = model.run_with_cache(padded, attention_mask=mask)
    for pattern in (cache["pattern", layer] for layer in range(2)):
        for row, pad in enumerate(pads):
            assert not pattern[row, :, :pad].any()
            assert not pattern[row, :, :, :pad].any()
    if model.config.d_vocab_out is not None:
        return
    loss = model(padded, attention_mask=mask, return_type="loss")
    others = padded.masked_fill(~mask, 2)
    assert torch.equal(model(others, attention_mask=mask, return_type="loss"), loss)
    alone = [model(x, return_type="loss", loss_per_token=True)[0] for x in sequences]
    close(loss, torch.cat(alone).mean())
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_padded_reads_equal_the_pattern(model: HookedGPT) -> None:
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1, :3] = False
    seen: list[AttentionReads] = []
    model(some_tokens(), attention_mask=mask, observe=lambda layer, reads: seen.append(reads))
    _, cache = model.run_with_cache(some_tokens(), attention_mask=mask)
    rows, keys = (torch.arange(8).repeat_interleave(8), torch.arange(8).repeat(8))
    for layer, reads in enumerate(seen):
        cells = reads.cells(rows, keys).unflatten(2, (8, 8))
        pattern = cache["pattern", layer]
        assert cells[1, :, :3].isnan().all()
        close(cells.nan_to_num(), pattern)
        entropy = torch.special.entr(pattern).sum(-1)
        close(reads.entropy()[1, :, 3:], entropy[1, :, 3:])
        close(reads.entropy()[[0, 2]], entropy[[0, 2]])


@pytest.mark.usefixtures("as_a_user")
def test_cached_positions_equal_the_whole(model: HookedGPT) -> None:
    chunks = [3, 1, 1, 3]
    tokens = some_tokens()
    if model.config.attention_dir == "bidirectional":
        # Its earlier positions change with later ones: there is nothing to keep.
        with pytest.raises(ValueError, match="kv_cache must be"):
            model(tokens, kv_cache=KeyValueCache(2))
        return
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[2, :2] = False
    for given in (None, mask):
        kv_cache = KeyValueCache(2)
        parts = []
        for start, part in zip(itertools.accumulate(chunks, initial=0), chunks, strict=False):
            here = None if given is None else given[:, start : start + part]
            some = tokens[:, start : start + part]
            parts.append(model(some, kv_cache=kv_cache, attention_mask=here))
        whole = model(tokens, attention_mask=given)
        real = mask if given is not None else torch.ones_like(mask)
        close(torch.cat(parts, dim=1)[real], whole[real])


@pytest.mark.parametrize(
    "heads", [[(0, 0), (0, 1), (0, 2)], [(0, 5), *((1, head) for head in range(6))]]
)
@pytest.mark.usefixtures("as_a_user")
def test_pruning_is_gating(model: HookedGPT, heads: list[tuple[int, int]]) -> None:
    gated = model(some_tokens(), gates=HeadGates.ablate(heads, like=model))
    pruned = prune_heads(model, heads)
    close(pruned(some_tokens()), gated)
    config, width, d_head = model.config, 24, 6
    key_heads = sum(
        len(config.kv_heads_of(layer)) - len(pruned.config.kv_heads_of(layer)) for layer in range(2)
    )
    lost = (len(heads) + key_heads) * 2 * width * d_head + (len(heads) + 2 * key_heads) * d_head
    assert count_parameters(model) - count_parameters(pruned) == lost
    assert pruned.config.n_parameters == count_parameters(pruned)


def test_parameters_are_counted_without_a_model(model: HookedGPT) -> None:
    assert model.config.n_parameters == count_parameters(model)
