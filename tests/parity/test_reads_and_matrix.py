"""Every probe's number, read without the matrix, against the explicit matrix, however sharp."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.attention.entropy import SILENT_BELOW, entropy_profile
from probes.attention.heads import score_heads
from probes.attention.targets import ProbeInput
from probes.registry import PROBES, load_function

LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12}


DESIGNS: dict[str, dict] = {
    "a key head each": {},
    "shared key heads": {"n_key_value_heads": 2, "positional_embedding_type": "rotary"},
    "pruned": {"n_key_value_heads": 2, "kept_heads": ((0, 2, 3), (1,))},
}


def model_with_logits(design: str, spread: float, dtype: torch.dtype, batch: Batch) -> HookedGPT:
    """Build a model whose scores have this standard deviation in every layer."""
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 32, "d_vocab": 8, "n_ctx": 16}
    config = ModelConfig(**sizes, initializer_range=0.3, **DESIGNS[design])
    model = HookedGPT(config).to(dtype)
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            scores = matrices(model, batch, "attn_scores")[layer]
            block.attn.W_Q *= spread / scores[scores.isfinite()].std()
    return model


def matrices(model: HookedGPT, batch: Batch, kind: str) -> list[Tensor]:
    """Return one kind of matrix of every layer."""
    found: list[Tensor] = []
    hooks = [
        (f"blocks.{layer}.attn.hook_{kind}", lambda x, hook: found.append(x.detach().clone()))
        for layer in range(model.config.n_layers)
    ]
    model.run_with_hooks(batch.tokens, fwd_hooks=hooks)  # a cache refuses a pruned model
    return found


def masses_in(pattern: Tensor, batch: Batch, probe: str) -> Tensor:
    """Sum a probe's target cells in the matrix and divide by its rows: [head]."""
    entry = next(entry for entry in PROBES if entry.name == probe)
    x = ProbeInput(tokens=batch.tokens, sources=batch.sources, special_ids=(0, 1))
    targets = load_function(entry)(x)
    wanted = torch.zeros(pattern.shape[0], *pattern.shape[2:], dtype=torch.float64)
    for b, (rows, keys) in enumerate(zip(targets.query_pos, targets.key_pos, strict=True)):
        for row, key in zip(rows.tolist(), keys.tolist(), strict=True):
            wanted[b, row, key] += 1.0 if key >= 0 else 0.0
    mass = (pattern.double() * wanted.unsqueeze(1)).sum((0, 2, 3))
    return mass / targets.n_rows.sum()


def rows_in(pattern: Tensor) -> dict[str, np.ndarray]:
    """Return both entropies from the matrix: [head, query_pos], mean over sequences."""
    pattern = pattern.double()
    rest = pattern[..., 1:]
    silent = rest.sum(-1) < SILENT_BELOW
    free = torch.special.entr(rest / rest.sum(-1, keepdim=True)).sum(-1)
    return {
        "entropy": torch.special.entr(pattern).sum(-1).mean(0).numpy(),
        "sink_free": free.masked_fill(silent, torch.nan).nanmean(0).numpy(),
    }


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("design", DESIGNS)
def test_scores_and_entropies(design: str, spread: float, dtype: torch.dtype) -> None:
    batch = get_task("reversal", length=6, n_symbols=6).sample(4, seed=2, split="test")
    model = model_with_logits(design, spread, dtype, batch)
    scores = matrices(model, batch, "attn_scores")
    largest = max(s[s.isfinite()].abs().max().item() for s in scores)
    limit = LIMITS[dtype] * max(1.0, largest)
    heads, entropy = score_heads(model, batch), entropy_profile(model, batch)
    assert set(heads["probe"]) == {entry.name for entry in PROBES}
    for layer, pattern in enumerate(matrices(model, batch, "pattern")):
        for probe, rows in heads[heads["layer"] == layer].groupby("probe"):
            expected = masses_in(pattern, batch, str(probe)).numpy()
            np.testing.assert_allclose(rows["score"], expected, rtol=0, atol=limit, err_msg=probe)
        of_layer: pd.DataFrame = entropy[entropy["layer"] == layer]
        for column, expected in rows_in(pattern).items():
            got = of_layer[column].to_numpy().reshape(expected.shape)
            np.testing.assert_allclose(got, expected, rtol=0, atol=limit, err_msg=column)
