"""The same weights as a HookedGPT and as a TransformerBridge: the same numbers from every probe."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
import transformers
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.tasks.registry import get_task
from probes.attention.distances import head_distances
from probes.attention.entropy import entropy_profile
from probes.attention.heads import score_heads
from probes.attention.offsets import offset_spectrum
from probes.attention.peaks import head_peaks
from probes.borrowed.answers import Answers
from probes.borrowed.attribution import logit_attribution
from probes.borrowed.edges import edge_attribution
from probes.borrowed.lens import logit_lens
from probes.borrowed.patching import patch_activations
from probes.labels.head_labels import label_study
from probes.writing.copying import copying_scores
from probes.writing.values import head_values

SAME = 1e-5
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 40, "n_positions": 24}
LLAMA = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 40,
    "vocab_size": 40,
    "max_position_embeddings": 24,
}
NEOX = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 40,
    "vocab_size": 40,
    "max_position_embeddings": 24,
    "rotary_pct": 0.25,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama, biases": ("LlamaForCausalLM", LLAMA | {"attention_bias": True}),
    "neox": ("GPTNeoXForCausalLM", NEOX),
    "neox, one after the other": ("GPTNeoXForCausalLM", NEOX | {"use_parallel_residual": False}),
}
PROBES: dict[str, Callable[..., pd.DataFrame]] = {
    "scores": score_heads,
    "entropy": entropy_profile,
    "spectrum": offset_spectrum,
    "peaks": head_peaks,
    "distances": head_distances,
    "values": head_values,
}


def two_views(name: str) -> tuple[HookedGPT, TransformerBridge]:
    """Return one random transformers model, whose biases and norms matter, as both."""
    architecture, values = MODELS[name]
    kind = getattr(transformers, architecture)
    config = kind.config_class(
        **values, bos_token_id=None, eos_token_id=None, attn_implementation="eager"
    )
    with torch.random.fork_rng():
        hf = kind(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in hf.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(parameter.mean().round() + scale * noise)
    ours = HookedGPT.from_pretrained(hf)  # a copy: the bridge changes the model it is built of
    return ours, build_bridge_from_module(hf, architecture, hf_config=hf.config)


SLOW = pytest.mark.slow
FAST_MODELS = ("gpt2", "llama, biases", "neox")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in FAST_MODELS else SLOW) for name in MODELS],
)
def views(request: pytest.FixtureRequest) -> tuple[HookedGPT, TransformerBridge]:
    return two_views(request.param)


def repeated(n: int = 9) -> Tensor:
    """Three sequences whose second half repeats the first."""
    block = torch.randint(2, 40, (3, n), generator=torch.Generator().manual_seed(4))
    return torch.cat([torch.zeros(3, 1, dtype=torch.long), block, block], dim=1)


def padding(kind: str, tokens: Tensor) -> Tensor | None:
    if kind == "none":
        return None
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    mask[2, :2] = 0
    if kind == "both sides":
        mask[2, 15:] = 0
    return mask


def assert_same(got: pd.DataFrame, wanted: pd.DataFrame) -> None:
    assert got.attrs["table"] == wanted.attrs["table"]
    pd.testing.assert_frame_equal(got, wanted, check_exact=False, rtol=0, atol=SAME)
    numbers = wanted.select_dtypes("float64")
    assert numbers.notna().any(axis=None)


@pytest.mark.parametrize(
    "pad", [pytest.param("none", marks=SLOW), pytest.param("left", marks=SLOW), "both sides"]
)
@pytest.mark.parametrize("probe", PROBES)
def test_every_probe(views: tuple[HookedGPT, TransformerBridge], probe: str, pad: str) -> None:
    ours, theirs = views
    tokens = repeated()
    mask = padding(pad, tokens)
    found = [PROBES[probe](model, tokens, attention_mask=mask) for model in (theirs, ours)]
    assert_same(*found)


def test_weights_copy_alike(views: tuple[HookedGPT, TransformerBridge]) -> None:
    ours, theirs = views
    tokens = repeated(12)[:, :13]
    wanted = copying_scores(ours, tokens)
    assert_same(copying_scores(theirs, tokens), wanted)
    assert wanted["eigenvalue"].abs().max() > 0.1


def test_sources_of_a_task(views: tuple[HookedGPT, TransformerBridge]) -> None:
    ours, theirs = views
    batch = get_task("reversal", length=8).sample(4, seed=1)
    assert_same(score_heads(theirs, batch), score_heads(ours, batch))


def test_labels_and_what_is_behind_them(views: tuple[HookedGPT, TransformerBridge]) -> None:
    """Words may round otherwise, and p-values jump where two flips tie."""
    ours, theirs = views
    batch = get_task("reversal", length=8).sample(8, seed=1)
    got, wanted = (label_study(model, batch, sequences=12) for model in (theirs, ours))
    assert got.labels["label"].tolist() == wanted.labels["label"].tolist()
    loose = ["reason", "mixture", "tested", "p_value", "q_value", "p_max_t"]
    assert_same(got.labels.drop(columns=loose), wanted.labels.drop(columns=loose))
    loose = ["why_not", *loose[3:]]
    assert_same(got.evidence.drop(columns=loose), wanted.evidence.drop(columns=loose))


@pytest.mark.parametrize(
    ("norm", "direction"),
    [
        ("LN", "causal"),
        ("RMS", "bidirectional"),
        *[
            pytest.param(norm, direction, marks=SLOW)
            for norm, direction in (
                ("LN", "bidirectional"),
                ("RMS", "causal"),
                (None, "causal"),
                (None, "bidirectional"),
            )
        ],
    ],
)
def test_transformer_lens_s_own_model(norm: str | None, direction: str) -> None:
    config = ModelConfig(
        n_layers=2,
        n_heads=4,
        n_key_value_heads=2,
        d_model=32,
        d_vocab=40,
        n_ctx=24,
        attention_dir=direction,
        normalization_type=norm,
        initializer_range=0.3,
        attn_only=norm is None,
    )
    ours = HookedGPT(config)
    theirs = ours.to_boot_native()
    tokens = repeated()
    mask = padding("left", tokens) if direction == "causal" else None
    for probe in PROBES.values():
        found = [probe(model, tokens, attention_mask=mask) for model in (theirs, ours)]
        assert_same(*found)
    assert_same(copying_scores(theirs, tokens[:, :10]), copying_scores(ours, tokens[:, :10]))


def pairs(model: HookedGPT) -> tuple[Tensor, Tensor, Answers]:
    """Return clean and corrupt sequences, and the ids that tell them apart best in the last row."""
    clean = repeated(4)
    corrupt = clean.roll(1, dims=0)
    with torch.no_grad():
        gap = (model(clean) - model(corrupt))[:, -1]
    return clean, corrupt, Answers.after(clean, gap.argmax(dim=1), gap.argmin(dim=1))


def test_patches_and_lens_are_the_same(views):
    clean, corrupt, asked = pairs(views[0])
    for activation in ("resid_pre", "mlp_out", "z", "k", "pattern"):
        got, wanted = (
            patch_activations(view, clean, corrupt, activation=activation, answers=asked)
            for view in reversed(views)
        )
        assert_same(got, wanted)
    got, wanted = (logit_lens(view, clean, by_position=True) for view in reversed(views))
    assert_same(got, wanted)


def test_edges_are_the_same(views):
    ours = views[0]
    clean, corrupt, asked = pairs(ours)
    if ours.config.kv_heads != ours.config.n_heads:
        said = ("whose heads share keys and values", "its K/V inputs are not per query head")
        for view, message in zip(views, said, strict=True):
            with pytest.raises(ValueError, match=message):
                edge_attribution(view, clean, corrupt, answers=asked)
        return
    got, wanted = (
        edge_attribution(view, clean, corrupt, answers=asked) for view in reversed(views)
    )
    assert_same(got, wanted)


@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=SLOW)])
def test_attributions_are_the_same_in_compatibility_mode(name):
    """But for what it folds: b_V goes from the heads into b_O, so attention is compared whole."""
    ours, theirs = two_views(name)
    theirs.enable_compatibility_mode()
    clean, _, asked = pairs(ours)
    got, wanted = (logit_attribution(view, clean, answers=asked) for view in (theirs, ours))
    for frame in (got, wanted):
        frame["part"] = frame["part"].replace({"head": "attention", "b_O": "attention"})
    sums = [
        frame.groupby(["part", "layer"], dropna=False)["attribution"].sum()
        for frame in (got, wanted)
    ]
    assert len(sums[0]) == (7 if name == "gpt2" else 6)
    pd.testing.assert_series_equal(*sums, check_exact=False, rtol=0, atol=SAME)
    assert got.attrs["logit"] == pytest.approx(wanted.attrs["logit"], abs=SAME)
