"""Mean values and blocks of AttentionReads against the matrix, on every mask."""

import itertools

import pytest
import torch

from lab.attention import Sight, mix_values
from lab.attention_reads import AttentionReads

MASKS = {
    "none": None,
    "left": [[False] * 3 + [True] * 6, [True] * 9],
    "right": [[True] * 5 + [False] * 4, [True] * 9],
    "holes": [[True, False, True] * 3, [True] * 9],
}
NEAR = {"atol": 1e-12, "rtol": 0, "equal_nan": True}


def reads_of(mask, causal, kv_heads, n_query=9, first_key=0):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, n_query, 4, 3), (2, 9, kv_heads, 3), (2, 9, kv_heads, 5))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    real = None if MASKS[mask] is None else torch.tensor(MASKS[mask])
    sight = Sight(causal=causal, real=real)
    return AttentionReads(2 * q, k, v, scale=0.9, sight=sight, first_key=first_key)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_mean_value_and_blocks_are_the_matrix_s(mask, causal, kv_heads):
    for n_query, first_key in itertools.product((9, 4) if causal else (9,), (0, 1)):
        reads = reads_of(mask, causal, kv_heads, n_query, first_key)
        matrix = reads.pattern()
        assert reads.n_heads == 4
        torch.testing.assert_close(reads.mean_value(), mix_values(matrix, reads.v), **NEAR)
        for rows, keys in (
            (slice(0, 3), slice(0, 9)),
            (slice(1, n_query), slice(2, 5)),
            (slice(n_query - 1, n_query), slice(8, 9)),
        ):
            got = reads.block(rows, keys)
            torch.testing.assert_close(got, matrix[:, :, rows, keys], **NEAR)


def test_value_that_came_with_the_rows_is_the_same():
    """Narrow heads get z from the kernel call that gives the entropies."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, 4, 8, generator=generator) for _ in range(3))
    with torch.no_grad():
        both = AttentionReads(q, k, v, scale=0.3, z_follows=True)
        both.entropy()
        assert both.z is not None
        alone = AttentionReads(q, k, v, scale=0.3)
        torch.testing.assert_close(both.mean_value(), alone.mean_value(), atol=1e-6, rtol=0)


def test_no_heads_mix_nothing():
    nothing = torch.zeros(2, 4, 0, 3)
    reads = AttentionReads(nothing, nothing, nothing, scale=1.0)
    assert reads.mean_value().shape == (2, 4, 0, 3)
    assert reads.block(slice(0, 2), slice(0, 4)).shape == (2, 0, 2, 4)
    assert reads.numbers_a_cell == 0
