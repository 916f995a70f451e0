"""Attention against the lectures' worked numbers, against loops, and against itself."""

import math

import pytest
import torch
from einops import rearrange
from torch import Tensor

from lab.attention import (
    Sight,
    attention_pattern,
    attention_scores,
    fused_attention,
    mix_values,
)
from lab.attention_reads import AttentionReads

SQRT_HALF = 2**-0.5


def one_head(rows: list[list[float]]) -> Tensor:
    """Turn an [n, d] matrix into q, k or v of one sequence and one head."""
    return rearrange(torch.tensor(rows, dtype=torch.float64), "pos d -> 1 pos 1 d")


def worked(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return pattern, output and row entropies of one head, along both paths."""
    pattern = attention_pattern(attention_scores(q, k, scale=SQRT_HALF, sight=Sight(causal=causal)))
    out = mix_values(pattern, v)
    torch.testing.assert_close(
        fused_attention(q, k, v, scale=SQRT_HALF, sight=Sight(causal=causal)), out
    )
    entropy = AttentionReads(q, k, v, scale=SQRT_HALF, sight=Sight(causal=causal)).entropy()
    return pattern[0, 0], out[0, :, 0], entropy[0, 0]


def close(got: Tensor, printed: list[list[float]] | list[float]) -> None:
    """Compare with printed numbers to 4 decimals."""
    torch.testing.assert_close(got, torch.tensor(printed, dtype=got.dtype), atol=5e-5, rtol=0)


class TestLectures:
    """The two worked examples that students have on paper."""

    def test_first_lecture(self) -> None:
        q = one_head([[1, 0], [0, 1], [1, 1]])
        k = one_head([[1, 0], [0, 1], [0.5, 0.5]])
        pattern, out, entropy = worked(q, k, k, causal=False)
        close(
            pattern,
            [
                [0.45552749, 0.22460634, 0.31986617],
                [0.22460634, 0.45552749, 0.31986617],
                [1 / 3] * 3,
            ],
        )
        close(out, [[0.61546057, 0.38453943], [0.38453943, 0.61546057], [0.5, 0.5]])
        close(entropy, [1.05820965, 1.05820965, 1.09861229])

    def test_first_lecture_with_the_causal_mask(self) -> None:
        q = one_head([[1, 0], [0, 1], [1, 1]])
        k = one_head([[1, 0], [0, 1], [0.5, 0.5]])
        pattern, out, entropy = worked(q, k, k, causal=True)
        close(pattern, [[1, 0, 0], [0.33023845, 0.66976155, 0], [1 / 3] * 3])
        close(out, [[1, 0], [0.33023845, 0.66976155], [0.5, 0.5]])
        close(entropy, [0, 0.63434737, 1.09861229])

    # The lecture derives Q, K and V from X; four pairs of 0/1 weights give the printed scores.
    PAIRS = (
        ([[1, 0], [1, 1]], [[1, 0], [0, 1]]),
        ([[1, 0], [0, 1]], [[1, 1], [0, 1]]),
        ([[0, 1], [1, 0]], [[1, 1], [1, 0]]),
        ([[0, 1], [1, 1]], [[0, 1], [1, 0]]),
    )

    @pytest.mark.parametrize("pair", PAIRS)
    @pytest.mark.parametrize("causal", [False, True])
    def test_second_lecture(self, pair: tuple, causal: bool) -> None:
        x = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.float64)
        W_Q, W_K = (torch.tensor(w, dtype=torch.float64) for w in pair)
        W_V = torch.tensor([[2, 0], [0, 1]], dtype=torch.float64)
        q, k, v = (one_head((x @ w).tolist()) for w in (W_Q, W_K, W_V))
        pattern, out, entropy = worked(q, k, v, causal=causal)
        last = [0.24825508, 0.24825508, 0.50348984]
        if causal:
            close(pattern, [[1, 0, 0], [0.19557032, 0.80442968, 0], last])
            close(out, [[2, 0], [0.39114063, 1.60885937], [1.50348984, 1]])
        else:
            rows = [[0.40111209, 0.19777581, 0.40111209], [0.10838345, 0.44580827, 0.44580827]]
            close(pattern, [*rows, last])
            outs = [[1.60444837, 0.79666372], [1.10838345, 1.33742482], [1.50348984, 1.0]]
            close(out, outs)
            close(entropy, [1.05336298, 0.96114365, 1.03727744])


def random_qkv(
    n_query: int, n_key: int, *, spread: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q, k, v whose scores have the standard deviation `spread`."""
    generator = torch.Generator().manual_seed(n_query * 1000 + n_key)
    shape = (2, n_key, 3, 8)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return (spread * q[:, :n_query]).to(dtype), k.to(dtype), v.to(dtype)


def naive_matrix(q: Tensor, k: Tensor, scale: float, *, causal: bool, first_key: int = 0) -> Tensor:
    """Build the matrix in float64 by loops over heads, rows and keys, with Python's own math."""
    batch, n_query, heads, _ = q.shape
    n_key = k.shape[1]
    matrix = torch.full((batch, heads, n_query, n_key), math.nan, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(n_query):
                last = i + n_key - n_query if causal else n_key - 1
                seen = range(first_key, last + 1)
                if not seen:
                    continue
                scores = [
                    math.fsum((q[b, i, h].double() * k[b, j, h]).tolist()) * scale for j in seen
                ]
                top = max(scores)
                total = math.fsum(math.exp(s - top) for s in scores)
                matrix[b, h, i] = 0
                for j, s in zip(seen, scores, strict=True):
                    matrix[b, h, i, j] = math.exp(s - top) / total
    return matrix


def naive_entropy(matrix: Tensor) -> Tensor:
    """Sum -A ln A over the keys of every row, 0 ln 0 being 0."""
    return -(matrix * matrix.clamp(min=1e-300).log()).sum(-1)


SHAPES = [(1, 1), (2, 2), (9, 9), (1, 9), (4, 9)]
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n_query", "n_key"), SHAPES)
def test_fused_equals_explicit_equals_loops(
    n_query: int, n_key: int, causal: bool, dtype: torch.dtype
) -> None:
    q, k, v = random_qkv(n_query, n_key, dtype=dtype)
    pattern = attention_pattern(attention_scores(q, k, scale=0.3, sight=Sight(causal=causal)))
    expected = naive_matrix(q, k, 0.3, causal=causal)
    exact = {"atol": TOLERANCES[dtype], "rtol": 0}
    torch.testing.assert_close(pattern.double(), expected, **exact)
    z = mix_values(pattern, v)
    torch.testing.assert_close(z.double(), mix_values(expected, v.double()), **exact)
    torch.testing.assert_close(
        fused_attention(q, k, v, scale=0.3, sight=Sight(causal=causal)), z, **exact
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n_query", "n_key"), SHAPES)
class TestReads:
    """Every number of AttentionReads against the naive matrix."""

    def test_cells_entropy_and_tiles(
        self, n_query: int, n_key: int, causal: bool, spread: float, dtype: torch.dtype
    ) -> None:
        q, k, v = random_qkv(n_query, n_key, spread=spread, dtype=dtype)
        plain = AttentionReads(q, k, v, scale=8**-0.5, sight=Sight(causal=causal))
        for reads, first_key in ((plain, 0), (plain.sink_free(), 1)):
            matrix = naive_matrix(q, k, 8**-0.5, causal=causal, first_key=first_key)
            largest = (
                attention_scores(q.double(), k.double(), scale=8**-0.5, sight=Sight(causal=False))
                .abs()
                .max()
            )
            exact = {
                "atol": TOLERANCES[dtype] * max(1.0, largest.item()),
                "rtol": 0,
                "equal_nan": True,
            }
            rows = torch.arange(n_query).repeat_interleave(n_key)
            keys = torch.arange(n_key).repeat(n_query)
            cells = rearrange(reads.cells(rows, keys).double(), "b h (q k) -> b h q k", q=n_query)
            torch.testing.assert_close(cells, matrix, **exact)
            torch.testing.assert_close(reads.entropy().double(), naive_entropy(matrix), **exact)
            torch.testing.assert_close(reads.pattern().double(), matrix, **exact)
            assert not (reads.entropy() < 0).any()


class TestReadsAtTheEdges:
    """What a caller may ask that has no ordinary answer."""

    def test_cells_may_differ_between_sequences(self) -> None:
        q, k, v = random_qkv(5, 5)
        reads = AttentionReads(q, k, v, scale=0.3)
        rows, keys = torch.tensor([[1, 4], [2, 3]]), torch.tensor([[0, 3], [2, 1]])
        got = reads.cells(rows, keys)
        matrix = reads.pattern()
        expected = torch.stack([matrix[b, :, rows[b], keys[b]] for b in range(2)])
        torch.testing.assert_close(got, expected)

    def test_no_key_and_later_keys_read_zero(self) -> None:
        q, k, v = random_qkv(5, 5)
        reads = AttentionReads(q, k, v, scale=0.3)
        got = reads.cells(torch.tensor([2, 2, 0]), torch.tensor([-1, 3, 4]))
        assert torch.equal(got, torch.zeros_like(got))

    def test_hidden_sink_reads_zero_and_its_own_row_is_undefined(self) -> None:
        q, k, v = random_qkv(5, 5)
        reads = AttentionReads(q, k, v, scale=0.3).sink_free()
        got = reads.cells(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 0]))
        assert got[..., 0].isnan().all()
        assert torch.equal(got[..., 1:], torch.zeros_like(got[..., 1:]))
        assert reads.entropy()[..., 0].isnan().all()
        assert reads.entropy()[..., 1].max() < 1e-12

    def test_no_heads(self) -> None:
        nothing = torch.zeros(2, 4, 0, 8)
        reads = AttentionReads(nothing, nothing, nothing, scale=1.0)
        assert reads.entropy().shape == (2, 0, 4)
        assert reads.cells(torch.tensor([1]), torch.tensor([0])).shape == (2, 0, 1)

    def test_half_precision_is_read_in_float32(self) -> None:
        q, k, v = (t.bfloat16() for t in random_qkv(9, 9, spread=10.0))
        got = AttentionReads(q, k, v, scale=8**-0.5).entropy()
        expected = naive_entropy(naive_matrix(q, k, 8**-0.5, causal=True))
        torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=0)

    def test_one_hot_and_uniform_rows(self) -> None:
        sharp = torch.eye(6, dtype=torch.float64).reshape(1, 6, 1, 6)
        one_hot = AttentionReads(1e4 * sharp, sharp, sharp, scale=1.0)
        assert torch.equal(one_hot.entropy(), torch.zeros(1, 1, 6, dtype=torch.float64))
        uniform = AttentionReads(0 * sharp, sharp, sharp, scale=1.0)
        expected = torch.arange(1.0, 7.0, dtype=torch.float64).log()
        torch.testing.assert_close(uniform.entropy()[0, 0], expected, atol=1e-12, rtol=0)
