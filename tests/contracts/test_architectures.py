"""What holds for every architecture that a ModelConfig can describe."""

import itertools

import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.gates import HeadGates
from lab.hook_table import FLAGGED_HOOKS
from lab.kv_cache import KeyValueCache
from lab.model import HookedGPT
from lab.reads import AttentionReads
from probes.pruning import count_parameters, prune_heads

GPT2 = {"n_layers": 2, "n_heads": 6, "d_model": 24, "d_head": 6, "d_vocab": 13, "n_ctx": 16}
LLAMA = {
    "positional_embedding_type": "rotary",
    "normalization_type": "RMS",
    "gated_mlp": True,
    "act_fn": "silu",
}
ARCHITECTURES: dict[str, dict] = {
    "gpt2": {},
    "gpt2 tied": {"tie_word_embeddings": True},
    "sinusoidal": {"positional_embedding_type": "sinusoidal"},
    "no positions": {"positional_embedding_type": "none"},
    "llama": LLAMA,
    "llama, 3 heads a key": {**LLAMA, "n_key_value_heads": 2},
    "one key head": {**LLAMA, "n_key_value_heads": 1, "tie_word_embeddings": True},
    "neox": {
        "positional_embedding_type": "rotary",
        "rotary_dim": 4,
        "parallel_attn_mlp": True,
    },
    "gpt-j": {
        "positional_embedding_type": "rotary",
        "rotary_dim": 4,
        "rotary_adjacent_pairs": True,
        "parallel_attn_mlp": True,
    },
    "solu": {"act_fn": "solu"},
    "solu and norm": {"act_fn": "solu_ln"},
    "attention only": {"attn_only": True},
    "no norm": {"normalization_type": None},
    "bidirectional": {"attention_dir": "bidirectional"},
    "other outputs": {"d_vocab_out": 5},
}


def build(name: str) -> HookedGPT:
    """Build one architecture in float64, with biases and norms that matter."""
    config = ModelConfig(**{**GPT2, "initializer_range": 0.3, "seed": 1, **ARCHITECTURES[name]})
    model = HookedGPT(config).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".b" in key or key.endswith(".w"):
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(0.3 * noise)
    return model


def some_tokens(batch: int = 3, n: int = 8) -> Tensor:
    return torch.randint(0, 13, (batch, n), generator=torch.Generator().manual_seed(5))


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-11, rtol=0)


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> HookedGPT:
    return build(request.param)


def test_paths_agree(model: HookedGPT) -> None:
    for n in (1, 2, 8):
        tokens = some_tokens(n=n)
        close(model(tokens, attention="fused"), model(tokens, attention="explicit"))


def test_every_hook_is_live(model: HookedGPT) -> None:
    tokens = some_tokens()
    plain = model(tokens)

    def disturb(x: Tensor, hook: object) -> Tensor:
        generator = torch.Generator().manual_seed(11)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        if hook.name.endswith("hook_scale"):
            return x * noise.exp()
        finite = x.isfinite()
        return torch.where(finite, x + noise * x[finite].std(), x)

    shared = model.config.kv_heads != model.config.n_heads
    for name in model.hook_dict:
        if shared and name.endswith("hook_attn_in"):
            with pytest.raises(ValueError, match="hook_attn_in needs a key head for each query"):
                model.run_with_hooks(tokens, fwd_hooks=[(name, disturb)])
            continue
        changed = model.run_with_hooks(tokens, fwd_hooks=[(name, disturb)])
        assert (changed - plain).abs().max() > 1e-3 * plain.std(), name
        same = model.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook: x.clone())])
        close(same, plain)


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


@pytest.mark.parametrize("pads", [(0, 0, 0), (3, 0, 1), (1, 5, 2)])
def test_padding_shifts_nothing(model: HookedGPT, pads: tuple[int, ...]) -> None:
    """Left padding, another amount in each sequence: real tokens get the logits of no padding."""
    widest = max(pads)
    sequences = [some_tokens()[i : i + 1, : 8 - pad] for i, pad in enumerate(pads)]
    padded = torch.full((3, 8), 7)
    mask = torch.zeros(3, 8, dtype=torch.bool)
    for row, (pad, sequence) in enumerate(zip(pads, sequences, strict=True)):
        padded[row, pad:], mask[row, pad:] = sequence[0], True
    for path in ("fused", "explicit"):
        got = model(padded, attention_mask=mask, attention=path)
        for row, (pad, sequence) in enumerate(zip(pads, sequences, strict=True)):
            close(got[row, pad:], model(sequence)[0])
    _, cache = model.run_with_cache(padded, attention_mask=mask)
    for pattern in (cache["pattern", layer] for layer in range(2)):
        for row, pad in enumerate(pads):
            assert not pattern[row, :, :pad].any()
            assert not pattern[row, :, :, :pad].any()
    if model.config.d_vocab_out is None:
        loss = model(padded, attention_mask=mask, return_type="loss")
        others = padded.masked_fill(~mask, 2)
        assert torch.equal(model(others, attention_mask=mask, return_type="loss"), loss)
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert widest < 8


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


@pytest.mark.parametrize("chunks", [[1] * 8, [3, 1, 4]])
def test_cached_positions_equal_the_whole(model: HookedGPT, chunks: list[int]) -> None:
    if model.config.attention_dir == "bidirectional":
        pytest.skip("earlier positions of a bidirectional model change with later ones")
    tokens = some_tokens()
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
    "heads", [[(0, 1)], [(0, 0), (0, 1), (0, 2)], [(1, h) for h in range(6)], [(0, 5), (1, 3)]]
)
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
