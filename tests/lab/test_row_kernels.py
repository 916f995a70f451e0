"""lse and mean key against float64 rows, on every mask, kernel and dtype; each trap a test."""

import itertools
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lab import row_kernels
from lab.attention import MASK_CELLS, Sight, fused_attention, mix_values
from lab.attention_reads import AttentionReads
from lab.row_kernels import (
    cpu_kernel,
    cuda_kernel,
    kernel_for,
    one_call_gives_both,
    rows_and_values,
    softmax_rows,
    tiled_kernel,
)

LIMITS = {torch.float32: 2e-5, torch.float64: 1e-12}
KERNELS = {"cpu": cpu_kernel, "tiled": tiled_kernel}


def draw(n_query: int, n_key: int, heads: int, kv_heads: int, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, n_query, heads, 8), (2, n_key, kv_heads, 8), (2, n_key, kv_heads, 8))
    return tuple(
        3 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )


def padding(kind: str, n_key: int) -> Tensor | None:
    real = torch.ones(2, n_key, dtype=torch.bool)
    if kind == "left":
        real[0, : n_key // 2] = False
    if kind == "right":
        real[1, -max(1, n_key // 3) :] = False
    if kind == "holes":
        real[:, 1::3] = False
    return None if kind == "none" else real


def matrix(q: Tensor, k: Tensor, scale: float, causal: bool, real: Tensor | None, first_key: int):
    """The pattern in float64 by its definition, row by row; NaN in rows that see no key."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    batch, n_query, heads, _ = q.shape
    n_key = k.shape[1]
    found = torch.full((batch, heads, n_query, n_key), math.nan, dtype=torch.float64)
    for b, i in itertools.product(range(batch), range(n_query)):
        position = i + n_key - n_query
        there = [j for j in range(n_key) if real is None or real[b, j]]
        there = there[first_key:]
        seen = [j for j in there if j <= position or not causal]
        if not seen or (real is not None and not real[b, position]):
            continue
        scores = torch.einsum("hd,jhd->hj", q[b, i].double(), k[b, seen].double()) * scale
        found[b, :, i] = 0.0
        found[b, :, i, seen] = scores.softmax(dim=-1)
    return found


def exact_rows(q: Tensor, k: Tensor, scale: float, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Lse = score - log A at the largest cell, and the mean key, in float64."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2).double()
    top, where = pattern.nan_to_num(nan=1.0).max(dim=-1)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) * scale
    lse = scores.gather(-1, where.unsqueeze(-1)).squeeze(-1) - top.log()
    return lse.masked_fill(pattern[..., 0].isnan(), math.nan), mix_values(pattern, k)


CASES = [
    pytest.param(n_query, n_key, causal, pad, heads, id=f"{n_query}x{n_key}-{causal}-{pad}-{heads}")
    for (n_query, n_key), causal, pad, heads in itertools.product(
        [(1, 1), (9, 9), (1, 9), (4, 9)],
        [True, False],
        ["none", "left", "right", "holes"],
        [(4, 4), (6, 2), (4, 1)],
    )
    if causal or n_query == n_key
]


@pytest.mark.parametrize(("n_query", "n_key", "causal", "pad", "heads"), CASES)
def test_every_mask(
    n_query: int, n_key: int, causal: bool, pad: str, heads: tuple[int, int]
) -> None:
    q, k, v = draw(n_query, n_key, *heads)
    real = padding(pad, n_key)
    sight = Sight(causal=causal, real=real)
    pattern = matrix(q, k, 0.3, causal, real, 0)
    for dtype, limit in LIMITS.items():
        near = {"atol": 10 * limit, "rtol": 0, "equal_nan": True}
        of_dtype = [t.to(dtype) for t in (q, k, v)]
        z = fused_attention(*of_dtype, scale=0.3, sight=sight)
        want = mix_values(pattern.nan_to_num(), v.repeat_interleave(heads[0] // heads[1], dim=2))
        torch.testing.assert_close(z.double(), want, **near)
        for first_key, kernel in itertools.product((0, 1), KERNELS.values()):
            hidden = matrix(q, k, 0.3, causal, real, first_key) if first_key else pattern
            rows = softmax_rows(
                *of_dtype[:2], scale=0.3, sight=sight, first_key=first_key, kernel=kernel
            )
            lse, mean_key = exact_rows(q, k, 0.3, hidden)
            torch.testing.assert_close(rows.lse.double(), lse, **near)
            torch.testing.assert_close(rows.mean_key.double(), mean_key, **near)
            reads = AttentionReads(*of_dtype, scale=0.3, sight=sight, first_key=first_key)
            torch.testing.assert_close(reads.entropy().double(), entropy_of(hidden), **near)
            at = torch.cartesian_prod(torch.arange(n_query), torch.arange(n_key)).T
            cells = reads.cells(at[0], at[1]).unflatten(2, (n_query, n_key))
            torch.testing.assert_close(cells.double(), hidden, **near)
            torch.testing.assert_close(reads.pattern().double(), hidden, **near)


def entropy_of(pattern: Tensor) -> Tensor:
    return torch.special.entr(pattern).sum(dim=-1)


@pytest.mark.parametrize("pad", ["none", "left", "holes"])
@pytest.mark.parametrize(("n_query", "n_key"), [(70, 70), (30, 70)])
def test_tiles_of_masks_join(
    n_query: int, n_key: int, pad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = draw(n_query, n_key, 4, 2)
    sight = Sight(real=padding(pad, n_key))
    whole = fused_attention(q, k, v, scale=0.3, sight=sight)
    rows = softmax_rows(q, k, scale=0.3, sight=sight)
    monkeypatch.setattr("lab.attention.MASK_CELLS", 700)
    monkeypatch.setattr("lab.row_kernels.SCORES_AT_ONCE", 3_000)
    small = Sight(real=sight.real)
    tiled = fused_attention(q, k, v, scale=0.3, sight=small)
    torch.testing.assert_close(tiled, whole, atol=1e-12, rtol=0)
    for kernel in KERNELS.values():
        parts = softmax_rows(q, k, scale=0.3, sight=small, kernel=kernel)
        for got, want in ((parts.lse, rows.lse), (parts.mean_key, rows.mean_key)):
            torch.testing.assert_close(got, want, atol=1e-12, rtol=0, equal_nan=True)


# Traps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 4, 0, 8), (0, 4, 2, 8), (2, 0, 2, 8)])
def test_nothing_to_read_ends_no_process(shape: tuple[int, ...]) -> None:
    nothing = torch.zeros(shape)
    rows = softmax_rows(nothing, nothing, scale=1.0, sight=Sight())
    assert rows.lse.shape == (shape[0], shape[2], shape[1])
    assert rows.mean_key.shape == shape
    assert fused_attention(nothing, nothing, nothing, scale=1.0).shape == shape


def test_the_cpu_operator_itself_ends_the_process_without_heads() -> None:
    """If this fails, PyTorch has mended it, and the detour in softmax_rows can go."""
    code = (
        "import torch; x = torch.zeros(1, 0, 4, 8); "
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode < 0


def test_padding_wider_than_a_block_of_the_kernel() -> None:
    q, k, _ = draw(1_100, 1_100, 1, 1)
    real = torch.ones(2, 1_100, dtype=torch.bool)
    real[0, :900] = False
    rows = softmax_rows(q, k, scale=0.3, sight=Sight(real=real))
    assert rows.lse[0, :, :900].isnan().all()
    alone = softmax_rows(q[:1, 900:], k[:1, 900:], scale=0.3, sight=Sight())
    torch.testing.assert_close(rows.lse[:1, :, 900:], alone.lse, atol=1e-12, rtol=0)
    torch.testing.assert_close(rows.mean_key[:1, 900:], alone.mean_key, atol=1e-12, rtol=0)


def test_rows_of_equal_scores_are_not_taken_for_blind_ones() -> None:
    """A single visible key with score 0 has lse = 0, the kernel's answer to a blind row."""
    q, k, _ = (0 * t for t in draw(4, 9, 2, 2))
    real = padding("left", 9)
    lse = softmax_rows(q, k, scale=0.3, sight=Sight(real=real)).lse
    assert lse.isfinite().all()
    first = softmax_rows(q[:, :1], k[:, :5], scale=0.3, sight=Sight(real=real[:, :5])).lse
    assert torch.equal(first[0], torch.zeros_like(first[0]))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("at_once", [1, 3])
def test_one_call_gives_rows_and_values(
    monkeypatch: pytest.MonkeyPatch, causal: bool, at_once: int
) -> None:
    q, k, v = (t.float() for t in draw(70, 70, 4, 4))
    sight = Sight(causal=causal)
    assert one_call_gives_both(q, k, v, sight)
    monkeypatch.setattr(row_kernels, "WIDE_NUMBERS", at_once * 2 * 2 * 70 * 8)
    rows, z = rows_and_values(q, k, v, scale=0.3, causal=causal)
    pattern = matrix(q, k, 0.3, causal, None, 0)
    lse, mean_key = exact_rows(q, k, 0.3, pattern)
    exact = (lse, mean_key, mix_values(pattern, v.double()))
    for found, wanted in zip((rows.lse, rows.mean_key, z), exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "sight"),
    [
        (lambda t: t.double(), Sight()),
        (lambda t: t[:, :, :0], Sight()),
        (lambda t: t[:, :1], Sight()),
        (lambda t: t, Sight(real=torch.ones(2, 9, dtype=torch.bool))),
        (lambda t: t.repeat(1, 1, 1, 5), Sight()),
    ],
    ids=["float64", "no heads", "one query", "padding", "wide heads"],
)
def test_one_call_is_for_narrow_heads_without_padding(change: Any, sight: Sight) -> None:
    q, k, v = (change(t.float()) for t in draw(9, 9, 4, 4))
    assert not one_call_gives_both(q, k, v, sight)


def test_half_precision_is_read_in_float32() -> None:
    q, k, v = (t.bfloat16() for t in draw(64, 64, 4, 2))
    for real in (None, padding("left", 64)):
        reads = AttentionReads(q, k, v, scale=0.3, sight=Sight(real=real))
        assert reads.entropy().dtype == torch.float32
        want = entropy_of(matrix(q, k, 0.3, True, real, 0))
        got = reads.entropy().double()
        torch.testing.assert_close(got, want, atol=5e-5, rtol=0, equal_nan=True)


def test_reads_carry_no_gradient_and_the_tiled_form_does() -> None:
    q, k, v = (t.requires_grad_() for t in draw(9, 9, 2, 2))
    assert not AttentionReads(q, k, v, scale=0.3).entropy().requires_grad
    rows = softmax_rows(q, k, scale=0.3, sight=Sight(), kernel=tiled_kernel)
    (grad,) = torch.autograd.grad(rows.lse.sum(), q)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    lse = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf).logsumexp(-1)
    torch.testing.assert_close(grad, torch.autograd.grad(lse.sum(), q)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0])
def test_sharp_heads_keep_their_entropy_in_float32(spread: float) -> None:
    q, k, v = (t.float() for t in draw(200, 200, 2, 2))
    q = q * spread
    got = AttentionReads(q, k, v, scale=0.3).entropy().double()
    want = entropy_of(matrix(q, k, 0.3, True, None, 0))
    largest = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3).abs().max().item()
    torch.testing.assert_close(got, want, atol=4e-7 * max(largest, 30), rtol=0)
    assert (got >= 0).all()


# Memory ------------------------------------------------------------------------------------------


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operator's result held."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor):
                stored = t.untyped_storage().nbytes() // t.element_size()
                self.numbers = max(self.numbers, stored)
        return out


@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("pad", ["none", "left"])
def test_no_square_is_ever_built(pad: str, kv_heads: int) -> None:
    n, rows = 4_096, torch.arange(1, 4_096)
    q, k, v = (t[:1].float() for t in draw(n, n, 8, kv_heads))
    real = padding(pad, n)
    sight = Sight(real=None if real is None else real[:1])
    with LargestTensor() as largest:
        fused_attention(q, k, v, scale=0.3, sight=sight)
        reads = AttentionReads(q, k, v, scale=0.3, sight=sight)
        reads.entropy()
        reads.cells(rows, rows - 1)
        reads.cells(rows, torch.zeros_like(rows))
    assert largest.numbers <= MASK_CELLS < n * n


def test_grouped_keys_are_read_where_they_stand() -> None:
    q, k, v = (t.float() for t in draw(64, 2_000, 8, 1))
    with LargestTensor() as largest:
        for some in (q, q[:, :1]):
            fused_attention(some, k, v, scale=0.3, sight=Sight(causal=False))
            softmax_rows(some, k, scale=0.3, sight=Sight(causal=False))
    assert largest.numbers < 2 * k.numel()  # 8 copies of one key head would be 8


@pytest.mark.slow
def test_thirty_thousand_tokens_fit_in_1500_megabytes() -> None:
    code = """
import resource
import torch
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT

torch.set_num_threads(2)
n = 32_768
model = HookedGPT(ModelConfig(n_layers=4, n_heads=8, d_model=256, d_vocab=512, n_ctx=n))
tokens = torch.randint(0, 512, (1, n), generator=torch.Generator().manual_seed(0))
rows, found = torch.arange(1, n), []

def observe(layer, reads):
    found.append(reads.entropy())
    found.append(reads.cells(rows, rows - 1).mean(dim=-1))
    found.append(reads.cells(rows, torch.zeros_like(rows)).mean(dim=-1))

with torch.no_grad():
    model(tokens, return_type=None, observe=observe)
assert len(found) == 12 and all(t.isfinite().all() for t in found)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.5e9


# GPU ---------------------------------------------------------------------------------------------


def efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, with_lse: bool, dropout: float,
    causal: bool, *, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What CUDA's operator promises, in plain products: no shared heads, lse padded to 32 rows."""
    assert q.shape[1] == k.shape[1]
    assert bias is None or (bias.stride(2) % 16 == 0 and bias.shape[:2] == q.shape[:2])
    scores = (q @ k.mT) * scale if bias is None else (q @ k.mT) * scale + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    lse = torch.nn.functional.pad(scores.logsumexp(-1), (0, -q.shape[2] % 32), value=math.inf)
    return scores.softmax(-1) @ v, lse, torch.empty(0), torch.empty(0)


@pytest.mark.parametrize("pad", ["none", "holes"])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_what_cuda_is_asked_adds_up(
    heads: tuple[int, int], pad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, _ = draw(37, 37, *heads)
    for causal in (True, False):
        sight = Sight(causal=causal, real=padding(pad, 37))
        want = softmax_rows(q, k, scale=0.3, sight=sight)
        with monkeypatch.context() as patch:
            name = "_scaled_dot_product_efficient_attention"
            patch.setattr(torch.ops.aten, name, efficient_attention, raising=False)
            got = softmax_rows(q, k, scale=0.3, sight=sight, kernel=cuda_kernel)
        near = {"atol": 1e-12, "rtol": 0, "equal_nan": True}
        torch.testing.assert_close(got.lse, want.lse, **near)
        torch.testing.assert_close(got.mean_key, want.mean_key, **near)


def test_cudas_operator_takes_what_it_is_given() -> None:
    """Signature and shapes, by PyTorch's own description of the operator: no GPU is needed."""
    q, k = (torch.empty(2, heads, 37, 8, device="meta") for heads in (6, 2))
    shown = torch.ones(2, 1, 37, 37, dtype=torch.bool, device="meta")
    for causal, mask in ((True, None), (False, shown)):
        lse, mean_key = cuda_kernel(q, k, 0.3, causal, mask)
        assert (lse.shape, mean_key.shape) == ((2, 6, 37), q.shape)


@pytest.mark.gpu
@pytest.mark.parametrize("first_key", [0, 1])
@pytest.mark.parametrize("pad", ["none", "left", "holes"])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("n_query", "n_key"), [(77, 77), (1, 77), (20, 77)])
def test_cuda_kernels(
    n_query: int, n_key: int, dtype: torch.dtype, heads: tuple, pad: str, first_key: int
) -> None:
    q, k, v = (t.to("cuda", dtype) for t in draw(n_query, n_key, *heads))
    real = padding(pad, n_key)
    for causal in (True, False) if n_query == n_key else (True,):
        sight = Sight(causal=causal, real=None if real is None else real.cuda())
        reads = AttentionReads(q, k, v, scale=0.3, sight=sight, first_key=first_key)
        pattern = matrix(q.cpu(), k.cpu(), 0.3, causal, real, first_key)
        near = {"atol": 1e-11 if dtype == torch.float64 else 1e-4, "rtol": 0, "equal_nan": True}
        torch.testing.assert_close(reads.entropy().cpu().double(), entropy_of(pattern), **near)
        lse, _ = exact_rows(q.cpu(), k.cpu(), 0.3, pattern)
        torch.testing.assert_close(reads.lse.cpu().double(), lse, **near)
        if first_key == 0:
            shared = v.cpu().double().repeat_interleave(heads[0] // heads[1], dim=2)
            want = mix_values(pattern.nan_to_num(), shared)
            z = fused_attention(q, k, v, scale=0.3, sight=sight).cpu().double()
            limit = 0.1 if dtype == torch.bfloat16 else near["atol"]
            torch.testing.assert_close(z, want, atol=limit, rtol=0)


@pytest.mark.gpu
def test_cuda_takes_its_kernel_for_float32_only() -> None:
    assert kernel_for(torch.zeros(1, device="cuda")).__name__ == "cuda_kernel"
    assert kernel_for(torch.zeros(1, device="cuda").double()) is tiled_kernel
