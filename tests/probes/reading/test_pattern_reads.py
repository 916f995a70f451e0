"""PatternReads against AttentionReads of the same layer, and matrices that only others have."""

import math

import pytest
import torch
from torch.nn import functional as F

from lab.attention import Sight
from lab.attention_reads import AttentionReads
from probes.reading import pattern_reads as pattern_reads_module
from probes.reading.pattern_reads import PatternReads

SIGHTS = {
    "causal": Sight(),
    "whole": Sight(causal=False),
    "left padding": Sight(real=torch.tensor([[False, False, True, True, True], [True] * 5])),
    "right padding": Sight(real=torch.tensor([[True, True, True, False, False], [True] * 5])),
    "holes": Sight(causal=False, real=torch.tensor([[True, False, True, False, True], [True] * 5])),
}


def both(sight, kv_heads=2, dtype=torch.float64):
    """The same layer from q and k, and from its matrix with garbage where nobody may look."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        2 * torch.randn(2, 5, heads, 3, generator=generator, dtype=torch.float64)
        for heads in (4, kv_heads, kv_heads)
    )
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    reads = AttentionReads(q, k, v, scale=0.7, sight=sight)
    pattern = reads.pattern()
    garbage = torch.where(pattern.isnan(), 0.2, pattern)
    return reads, PatternReads(garbage, v, sight=sight)


@pytest.mark.parametrize("free", [False, True], ids=["whole", "sink-free"])
@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_same_answers(sight, kv_heads, free, monkeypatch):
    monkeypatch.setattr(pattern_reads_module, "SCORES_AT_ONCE", 90)  # tiles of two rows
    ours, theirs = both(SIGHTS[sight], kv_heads)
    if free:
        ours, theirs = ours.sink_free(), theirs.sink_free()
    rows = torch.tensor([[0, 1, 2, 3, 4, 4, 4, 2], [4, 4, 4, 4, 4, 3, 0, 1]])
    keys = torch.tensor([[0, 0, 2, 1, -1, 4, 2, 4], [0, 1, 2, 3, 4, 0, 0, -1]])
    near = {"atol": 1e-12, "rtol": 0, "equal_nan": True}
    for ask in (
        lambda reads: reads.pattern(),
        lambda reads: reads.entropy(),
        lambda reads: reads.mean_value(),
        lambda reads: reads.cells(rows, keys),
        lambda reads: reads.cells(rows[0], keys[0]),
        lambda reads: reads.block(slice(1, 4), slice(0, 3)),
        lambda reads: torch.cat([tile for _, tile in reads.tiles(2)], dim=2),
    ):
        torch.testing.assert_close(ask(theirs), ask(ours), **near)
    assert theirs.n_heads == ours.n_heads == 4
    assert [start for start, _ in theirs.tiles(2)] == [0, 2, 4]


def test_half_precision_is_read_in_float32():
    ours, theirs = both(Sight(), dtype=torch.bfloat16)
    assert theirs.entropy().dtype == theirs.mean_value().dtype == torch.float32
    rough = PatternReads(ours.pattern().bfloat16())
    torch.testing.assert_close(rough.entropy(), ours.entropy(), atol=0.03, rtol=0)


def test_mass_that_a_learned_sink_took_is_one_more_key():
    """Rows of such models sum to less than 1; the rest is neither spread nor forgotten."""
    row = torch.tensor([0.25, 0.25, 0.25])
    reads = PatternReads(F.pad(row, (0, 0)).expand(1, 1, 3, 3), sight=Sight(causal=False))
    assert reads.entropy()[0, 0, 0].item() == pytest.approx(math.log(4))
    left = reads.sink_free()
    assert left.entropy()[0, 0, 0].item() == pytest.approx(math.log(2))
    assert left.cells(torch.tensor([0, 0]), torch.tensor([0, 1])).flatten().tolist() == [0.0, 0.5]


def test_rounding_is_no_missing_mass():
    row = torch.tensor([0.5, 0.5 - 3e-6])
    entropy = PatternReads(row.expand(1, 1, 2, 2), sight=Sight(causal=False)).entropy()
    torch.testing.assert_close(entropy, torch.full_like(entropy, math.log(2)), atol=1e-5, rtol=0)
    sharp = PatternReads(torch.tensor([1.0 + 1e-7, 0.0]).expand(1, 1, 2, 2))
    assert (sharp.entropy() >= 0).all()


def test_rest_beside_a_strong_sink_is_divided_by_itself():
    """1 - A[q, 0] would be 0 here, and what is left a rounding error."""
    rest = torch.tensor([1e-9, 3e-9])
    row = torch.cat([1 - rest.sum().view(1), rest])
    reads = PatternReads(row.expand(1, 1, 3, 3), sight=Sight(causal=False)).sink_free()
    torch.testing.assert_close(reads.pattern()[0, 0, 0], torch.tensor([0.0, 0.25, 0.75]))


def test_values_that_are_not_shown_are_asked_for_in_vain():
    with pytest.raises(ValueError, match="values must be shown by hook_v of the model, got a mod"):
        PatternReads(torch.ones(1, 1, 1, 1)).mean_value()


def test_no_heads():
    reads = PatternReads(torch.ones(2, 0, 3, 3), torch.ones(2, 3, 0, 4))
    assert reads.entropy().shape == (2, 0, 3)
    assert reads.mean_value().shape == (2, 3, 0, 4)
