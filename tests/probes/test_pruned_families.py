"""Pruned models of every family are the ablated ones: by hooks, in generation, from the disk.

The ablation is done by hooks on z of the unpruned model, so that gates have no part in it.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.gates import HeadGates, Reference
from lab.hooked_gpt import HookedGPT
from lab.kv_cache import KeyValueCache
from probes.ablation.sweep import sweep_sets
from probes.planted import PlantedHead, plant
from probes.pruning.removing import cache_bytes, certify, count_parameters, prune_heads

N_LAYERS, N_HEADS, D_MODEL, VOCAB = 3, 6, 18, 13
RMS = {"normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu"}
ROTARY = {"positional_embedding_type": "rotary"}
FAMILIES: dict[str, dict[str, object]] = {
    "gpt2, odd d_head": {"d_head": 5},
    "gpt2, tied": {"tie_word_embeddings": True, "positional_embedding_type": "sinusoidal"},
    "llama": {**RMS, **ROTARY, "d_head": 4},
    "llama, 3 heads a key, d_head 7": {**RMS, "n_key_value_heads": 2, "d_head": 7},
    "llama, 2 heads a key": {**RMS, **ROTARY, "n_key_value_heads": 3, "d_head": 4},
    "one key head": {**RMS, **ROTARY, "n_key_value_heads": 1, "d_head": 4},
    "neox": {**ROTARY, "d_head": 6, "rotary_dim": 2, "parallel_attn_mlp": True},
    "attention only": {"attn_only": True, "normalization_type": None},
}
FIRST = ((0, 0), (0, 4), *((1, head) for head in range(N_HEADS)))
"""A layer without heads, and groups of unequal size: of 2, 3 or 6 heads a key."""
THEN = ((0, 1), (0, 2), (2, 3), (2, 4), (2, 5))
"""Removed later: of 3 heads a key whole groups, of 2 heads a key one and a half."""
KEPT = ((3, 5), (), (0, 1, 2))
TYPICAL = ("gpt2, odd d_head", "llama, 3 heads a key, d_head 7", "neox")
"""A bias on everything, shared keys, parallel blocks: the others' means are slow tests."""
MEANS = [
    (name, "mean") if name in TYPICAL else pytest.param(name, "mean", marks=pytest.mark.slow)
    for name in FAMILIES
]
KEYS_LEFT = {1: 1 + 1, 2: 1 + 1, 3: 2 + 2, 6: 2 + 3}
"""Key heads that are left, by how many there were."""

Heads = tuple[tuple[int, int], ...]


def make(name: str, dtype: torch.dtype) -> HookedGPT:
    sizes = {"n_layers": N_LAYERS, "n_heads": N_HEADS, "d_model": D_MODEL, "d_vocab": VOCAB}
    config = ModelConfig(**{**sizes, "n_ctx": 24, "initializer_range": 0.25, **FAMILIES[name]})
    model = HookedGPT(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key == "embed.W_E":
                parameter.mul_(6.0)
            elif ".b_" in key and "unembed" not in key:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(0.5 * noise)
    return model


def some_tokens(n: int = 11) -> Tensor:
    return torch.randint(0, VOCAB, (3, n), generator=torch.Generator().manual_seed(2))


def mean_z(model: HookedGPT) -> Reference:
    _, cache = model.run_with_cache(some_tokens())
    z = torch.stack([cache["z", layer].mean((0, 1)) for layer in range(N_LAYERS)])
    return Reference(name="test", sha256="0" * 64, z=z.unsqueeze(1))


def ablated(model: HookedGPT, heads: Heads, mean: Reference | None, tokens: Tensor) -> Tensor:
    """Run the unpruned model with hooks that overwrite z."""

    def edit(z: Tensor, hook: object, layer: int) -> Tensor:
        for at, head in heads:
            if at == layer:
                z[:, :, head] = 0.0 if mean is None else mean.z[layer, 0, head]
        return z

    hooks = [
        (f"blocks.{layer}.attn.hook_z", lambda z, hook, layer=layer: edit(z, hook, layer))
        for layer in range(N_LAYERS)
    ]
    return model.run_with_hooks(tokens, fwd_hooks=hooks)


@pytest.mark.parametrize(("name", "mode"), [*((name, "zero") for name in FAMILIES), *MEANS])
def test_pruned_twice_with_a_folder_in_between(name: str, mode: str, tmp_path: Path) -> None:
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        model = make(name, dtype)
        mean = mean_z(model) if mode == "mean" else None
        prune_heads(model, FIRST, mode=mode, reference=mean).save(tmp_path / str(dtype))
        once = HookedGPT.load(tmp_path / str(dtype))
        assert once.W_E.dtype == dtype
        twice = prune_heads(once, THEN, mode=mode, reference=mean)
        for pruned, gone in ((once, FIRST), (twice, FIRST + THEN)):
            expected = ablated(model, gone, mean, some_tokens())
            largest = max(1.0, expected.abs().max().item())
            for path in ("fused", "explicit"):
                got = pruned(some_tokens(), attention=path)
                assert (got - expected).abs().max() <= limit * largest
        assert twice.config.kept_heads == KEPT
        config, width = model.config, model.config.head_width
        keys_gone = 3 * config.kv_heads - KEYS_LEFT[config.kv_heads]
        queries = len(FIRST + THEN) * (2 * D_MODEL * width + width)
        assert count_parameters(model) - count_parameters(twice) == (
            queries + keys_gone * (2 * D_MODEL * width + 2 * width)
        )
        assert twice.config.n_parameters == count_parameters(twice)
        cache = KeyValueCache(N_LAYERS)
        with torch.no_grad():
            twice(some_tokens(), kv_cache=cache)
        held = [t.nbytes for layer in cache.layers if layer is not None for t in layer]
        assert sum(held) == some_tokens().numel() * cache_bytes(twice)
        assert (
            cache_bytes(model) // cache_bytes(twice)
            == 3 * config.kv_heads // (KEYS_LEFT[config.kv_heads])
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_generation_with_a_cache_token_for_token(name: str) -> None:
    """Against the ablated model, which starts from the first token again for every new one."""
    model = make(name, torch.float64)
    mean = mean_z(model)
    pruned = prune_heads(model, FIRST + THEN, mode="mean", reference=mean)
    prompt = some_tokens(4)
    tokens = prompt
    for _ in range(10):
        logits = ablated(model, FIRST + THEN, mean, tokens)
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    got = pruned.generate(prompt, max_new_tokens=10, temperature=0.0)
    assert torch.equal(got, tokens)
    gates = HeadGates.ablate(FIRST + THEN, like=model, fill=mean).tensors(model, [mean])
    drawn = {"max_new_tokens": 10, "temperature": 8.0, "seed": 4}
    got = pruned.generate(prompt, **drawn)
    assert torch.equal(got, model.generate(prompt, gates=gates, **drawn))
    assert len(set(got[:, 4:].flatten().tolist())) >= 4  # no rut, in which anything agrees


@pytest.mark.parametrize("name", TYPICAL)
def test_a_certificate(name: str) -> None:
    model = make(name, torch.float32)
    gates = HeadGates.ablate(FIRST, like=model)
    pruned = prune_heads(model, FIRST)
    proof = certify(model, pruned, gates, some_tokens(), mode="zero", repeats=1)
    assert proof.holds and proof.parameters_after == count_parameters(pruned)
    wrong = prune_heads(model, [*FIRST[1:], (0, 1)])
    assert not certify(model, wrong, gates, some_tokens(), mode="zero", repeats=1).holds


@pytest.mark.parametrize(
    "options",
    [{"norm": None}, {"norm": "LN", "rotate": 3, "kv_heads": 2}, {"norm": "RMS", "rotate": 1}],
    ids=["plain", "LN, 2 heads a key", "RMS"],
)
def test_planted_heads_that_do_nothing_can_go(options: dict[str, object]) -> None:
    """What is left of a planted model does what its heads were built for, bit for bit as gated."""
    reversal = PlantedHead(kind="reversal", beta=20.0, writes="copy")
    idle = PlantedHead(kind="previous", beta=20.0, writes="nothing")
    planted = plant([[idle, reversal, idle, idle]], **options)
    batch = planted.task.sample(20, seed=0, split="test")
    whole = sweep_sets(planted.model, batch, (), metrics=["exact_match"]).means()[0, 0]
    small = prune_heads(planted.model, [(0, 0), (0, 2), (0, 3)])
    torch.testing.assert_close(
        small(batch.tokens), planted.model(batch.tokens), atol=1e-12, rtol=1e-12
    )
    assert whole == 1.0
    assert sweep_sets(small, batch, (), metrics=["exact_match"]).means()[0, 0] == 1.0
    empty = prune_heads(small, [(0, 1)])
    assert sweep_sets(empty, batch, (), metrics=["exact_match"]).means()[0, 0] == 0.0


def test_no_order_of_removal_matters(tmp_path: Path) -> None:
    """One head after the other, saved and loaded each time, in two orders: the same bits."""
    model = make("llama, 3 heads a key, d_head 7", torch.float64)
    heads = [(0, 0), (0, 2), (0, 1)]
    ends = []
    for number, order in enumerate((heads, heads[::-1])):
        pruned = model
        for step, pair in enumerate(order):
            prune_heads(pruned, [pair]).save(tmp_path / f"{number}-{step}")
            pruned = HookedGPT.load(tmp_path / f"{number}-{step}")
        ends.append(pruned)
    assert ends[0].config == ends[1].config
    for (name, one), (_, other) in zip(
        ends[0].state_dict().items(), ends[1].state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name


def test_ragged_models_refuse_what_would_mislabel_heads() -> None:
    """TransformerLens's tools number heads by their place: with gaps every name would be wrong."""
    from transformer_lens import patching
    from transformer_lens.head_detector import detect_head

    pruned = prune_heads(make("gpt2, odd d_head", torch.float64), [(0, 1)])
    _, cache = pruned.run_with_cache(some_tokens())
    calls: dict[str, Callable[[], object]] = {
        "n_heads": lambda: pruned.cfg.n_heads,
        "OV": lambda: pruned.OV,
        "QK": lambda: pruned.QK,
        "composition": lambda: pruned.all_composition_scores("K"),
        "results": lambda: cache.stack_head_results(),
        "patching": lambda: patching.get_act_patch_attn_head_out_all_pos(
            pruned, some_tokens(), cache, lambda logits: logits.mean()
        ),
        "detect_head": lambda: detect_head(pruned, some_tokens()[:1], "previous_token_head"),
        "to_hf": lambda: pruned.to_hf(),
        "boot_native": lambda: pruned.to_boot_native(),
    }
    calls |= {name: lambda n=name: getattr(pruned, n) for name in ("W_K", "W_O", "b_V")}
    for name, call in calls.items():
        with pytest.raises(ValueError, match="heads") as error:
            call()
        assert "prune" in str(error.value), name
    even = [(layer, 5) for layer in range(N_LAYERS)]
    for gone in (even, itertools.islice(even, 2)):
        with pytest.raises(ValueError, match="n_heads must be the same heads in every layer"):
            _ = prune_heads(make("llama", torch.float64), gone).cfg.n_heads
