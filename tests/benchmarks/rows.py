"""The rows of the table: what is done, against whom, and what it must reach.

Ratios compare contestants of one run on one machine; absolute numbers have twice the stated room,
because machines differ.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.model_bridge import TransformerBridge

from lab.attention_reads import AttentionReads
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from tests.benchmarks.measuring import (
    Times,
    largest_difference,
    peak_memory,
    take_turns,
)
from tests.benchmarks.peers import PlainGPT, bridge, copy_into_bridge, gpt2

LONG = ModelConfig(n_layers=4, n_heads=8, d_model=256, d_vocab=512, n_ctx=4_097, d_mlp=1_024)
LONGEST = ModelConfig(n_layers=4, n_heads=8, d_model=256, d_vocab=512, n_ctx=32_768)
SMALL = ModelConfig(n_layers=2, n_heads=4, d_model=128, d_vocab=30, n_ctx=64)
WRITER = ModelConfig(n_layers=6, n_heads=8, d_model=256, d_vocab=1_000, n_ctx=640)
SAME = 1e-4
"""Contestants must agree so far, in float32, before their times are worth comparing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    work: str
    against: str
    floor: str
    found: str
    holds: bool
    times: str


def faster(
    work: str, against: str, ours: Callable[[], object], theirs: Callable[[], object], floor: float
) -> Row:
    """Let two contestants take turns, and return their row."""
    times = take_turns({"ours": ours, "theirs": theirs})
    return compared(work, against, times["ours"], times["theirs"], floor)


def compared(work: str, against: str, ours: Times, theirs: Times, floor: float | None) -> Row:
    """Return the row of two contestants: theirs / ours must reach the floor, if there is one."""
    ratio = theirs.median / ours.median
    return Row(
        work=work,
        against=against,
        floor="" if floor is None else f"{floor:.3g}x",
        found=f"{ratio:.2f}x",
        holds=floor is None or ratio >= floor,
        times=f"{ours}; {theirs}",
    )


def at_most(work: str, unit: str, stated: float, found: float) -> Row:
    """Return the row of an absolute number, which may be twice the stated one."""
    return Row(
        work=work,
        against="",
        floor=f"{stated:g} {unit}",
        found=f"{found:.3g} {unit}",
        holds=found <= 2 * stated,
        times="",
    )


def require_same(a: Tensor, b: Tensor) -> None:
    """Stop the benchmark when two contestants do not compute the same thing."""
    difference = largest_difference(a, b)
    if not difference <= SAME:
        raise SystemExit(f"contestants must agree to {SAME}, got a difference of {difference:.1e}")


def tokens_of(config: ModelConfig, batch: int, n_pos: int) -> Tensor:
    """Return random tokens."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.d_vocab, (batch, n_pos), generator=generator)


def a_model(config: ModelConfig) -> HookedGPT:
    """Return a model whose heads are sharp enough to have something to read."""
    model = HookedGPT(config).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.mul_(4.0)
            block.attn.W_K.mul_(4.0)
    return model


# Forward -----------------------------------------------------------------------------------------


def forward_rows() -> Iterator[Row]:
    """A plain forward pass: long, where the matrix costs, and short, where Python does."""
    for config, batch, n_pos, floor in ((LONG, 1, 4_096, 10.0), (SMALL, 8, 22, 1.0)):
        model, peer, plain = a_model(config), bridge(config), PlainGPT(config).eval()
        copy_into_bridge(model, peer, config)
        tokens = tokens_of(config, batch, n_pos)
        work = f"plain forward, {batch} x {n_pos:,} tokens"
        with torch.no_grad():
            require_same(model(tokens), peer(tokens))
            yield faster(work, "boot_native", *calls(tokens, model, peer), floor)
            yield faster(work, "an unhooked GPT", *calls(tokens, model, plain), 1 / 1.1)


def cache_rows() -> Iterator[Row]:
    """Every activation of a small model cached."""
    model, peer = a_model(SMALL), bridge(SMALL)
    tokens = tokens_of(SMALL, 8, 22)
    with torch.no_grad():
        ours, theirs = calls(tokens, model.run_with_cache, peer.run_with_cache)
        yield faster("run_with_cache, 8 x 22 tokens", "boot_native", ours, theirs, 1.0)


def calls(
    tokens: Tensor, *models: Callable[[Tensor], object]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return two calls with the same tokens, without gradients."""
    ours, theirs = models
    return lambda: ours(tokens), lambda: theirs(tokens)


# Reads -------------------------------------------------------------------------------------------


def read_heads(model: HookedGPT, tokens: Tensor) -> list[Tensor]:
    """Return entropy, previous-token and first-token score of all heads from AttentionReads."""
    rows = torch.arange(1, tokens.shape[1])
    found: list[Tensor] = []

    def observe(_: int, reads: AttentionReads) -> None:
        found.append(reads.entropy())
        found.append(reads.cells(rows, rows - 1).mean(dim=-1))
        found.append(reads.cells(rows, torch.zeros_like(rows)).mean(dim=-1))

    with torch.no_grad():
        model(tokens, return_type=None, observe=observe)
    return found


def read_patterns(peer: TransformerBridge, tokens: Tensor) -> list[Tensor]:
    """Return the same numbers from the patterns that a TransformerLens model caches."""
    with torch.no_grad():
        _, cache = peer.run_with_cache(tokens, names_filter=is_pattern)
        layers = range(len(cache))
        return [number for layer in layers for number in numbers_of(cache["pattern", layer])]


def is_pattern(name: str) -> bool:
    """Tell whether a hook stands on a pattern."""
    return name.endswith("attn.hook_pattern")


def numbers_of(pattern: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return entropy, previous-token and first-token score of one layer's heads."""
    return (
        torch.special.entr(pattern).sum(dim=-1),
        pattern.diagonal(-1, dim1=2, dim2=3).mean(dim=-1),
        pattern[:, :, 1:, 0].mean(dim=-1),
    )


def prepared_reads(n_pos: int) -> Callable[[], object]:
    """Return the work of reading at one length, its model already built."""
    model = a_model(LONG if n_pos < LONG.n_ctx else LONGEST)
    tokens = tokens_of(model.config, 1, n_pos)
    read_heads(model, tokens[:, :64])
    return lambda: read_heads(model, tokens)


def reads_long() -> Callable[[], object]:
    """Return our reading at 4,096 tokens."""
    return prepared_reads(4_096)


def reads_longest() -> Callable[[], object]:
    """Return our reading at 32,768 tokens."""
    return prepared_reads(32_768)


def patterns_long() -> Callable[[], object]:
    """Return TransformerLens's reading at 4,096 tokens."""
    peer, tokens = bridge(LONG), tokens_of(LONG, 1, 4_096)
    read_patterns(peer, tokens[:, :64])
    return lambda: read_patterns(peer, tokens)


def read_rows() -> Iterator[Row]:
    """Entropy, previous-token and first-token score of 32 heads."""
    work = "entropy + previous + first of 32 heads, 4,096 tokens"
    model, peer, tokens = a_model(LONG), bridge(LONG), tokens_of(LONG, 1, 4_096)
    copy_into_bridge(model, peer, LONG)
    for ours, theirs in zip(read_heads(model, tokens), read_patterns(peer, tokens), strict=True):
        require_same(ours, theirs)
    yield faster(
        work,
        "boot_native's patterns",
        lambda: read_heads(model, tokens),
        lambda: read_patterns(peer, tokens),
        10.0,
    )
    ours, _ = peak_memory(reads_long)
    theirs, _ = peak_memory(patterns_long)
    yield Row(
        work=f"{work}: peak memory",
        against="boot_native's patterns",
        floor="8x",
        found=f"{theirs / ours:.1f}x",
        holds=theirs >= 8 * ours,
        times=f"{ours / 1e6:.0f} MB; {theirs / 1e6:.0f} MB",
    )
    _, whole = peak_memory(reads_longest)
    limit = 1.5e9
    yield Row(
        work="the same, 32,768 tokens: memory of the process",
        against="",
        floor=f"{limit / 1e9:g} GB",
        found=f"{whole / 1e9:.2f} GB",
        holds=whole <= limit,
        times="",
    )


# Training ----------------------------------------------------------------------------------------


def train_rows() -> Iterator[Row]:
    """One optimiser step: forward, loss, backward, clipping, AdamW."""
    tokens = tokens_of(SMALL, 128, 22)
    contestants = {
        "ours": HookedGPT(SMALL),
        "boot_native": bridge(SMALL),
        "an unhooked GPT": PlainGPT(SMALL),
    }
    steps = {name: train_step(model, tokens) for name, model in contestants.items()}
    times = take_turns(steps, rounds=35, warm_up=5)
    ours = times.pop("ours")
    for name, theirs in times.items():
        yield compared(
            "train step, 2 layers x 4 heads, 128 x 22 tokens", name, ours, theirs, 1 / 1.05
        )


def train_step(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    """Return one step of the same recipe for any model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        logits = model(tokens)
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


# Generation --------------------------------------------------------------------------------------


def generation_rows() -> Iterator[Row]:
    """512 new tokens, 6 layers, d_model 256, greedy."""
    new, prompt = 512, tokens_of(WRITER, 1, 8)
    model, peer, hugging = a_model(WRITER), bridge(WRITER), gpt2(WRITER)

    def ours() -> object:
        return model.generate(prompt, max_new_tokens=new, temperature=0.0)

    def lens() -> object:
        return peer.generate(
            prompt, max_new_tokens=new, stop_at_eos=False, do_sample=False, verbose=False
        )

    def transformers() -> object:
        return hugging.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )

    work = f"generate {new} tokens, 6 layers, d_model 256"
    yield faster(work, "transformers' generate", ours, transformers, 1.1)
    # Once: without a cache of keys it takes minutes.
    times = take_turns({"ours": ours, "lens": lens}, rounds=1, warm_up=0)
    yield compared(work, "TransformerBridge.generate", times["ours"], times["lens"], 20.0)


# Starting ----------------------------------------------------------------------------------------


def start_rows() -> Iterator[Row]:
    """Processes from nothing."""
    python = sys.executable
    times = take_turns(
        {
            "lab": lambda: subprocess.run([python, "-c", "import lab"], check=True),
            "help": lambda: quiet(python, "-m", "apps.cli", "--help"),
        }
    )
    yield at_most("import lab", "s", 0.2, times["lab"].median)
    yield at_most("headlab --help", "s", 0.5, times["help"].median)
    with tempfile.TemporaryDirectory() as home:
        started = take_turns(
            {"train": lambda: quiet(python, "-m", "apps.cli", "train", "reversal", home=home)},
            rounds=1,
            warm_up=0,
        )
    yield at_most("headlab train reversal, from a cold start", "s", 60.0, started["train"].median)


def quiet(*command: str, home: str | None = None) -> None:
    """Run a command to its end, its output thrown away."""
    environment = dict(os.environ) if home is None else {**os.environ, "HEADLAB_HOME": home}
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=Path(__file__).parents[2],
    )


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "forward": forward_rows,
    "train": train_rows,
    "cache": cache_rows,
    "start": start_rows,
    "reads": read_rows,
    "generate": generation_rows,
}
"""The groups of rows, in the order of the table."""
