"""Two trees side by side: `python -m tests.benchmarks.pairs OLD_TREE [NEW_TREE] [--pairs 15]`.

Each tree gets a process of its own, which builds its models once. The two then take turns, so that
a busy machine slows both; printed is the median of new / old with a 95 % interval of the median
(order statistics), and each process's peak memory. Speed claims of a refactor rest on this table.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from scipy.stats import binom

CASES = ("forward", "train step", "cache", "reads", "generate", "generate small", "sweep")


def cases() -> dict[str, Callable[[], object]]:
    """Return what is timed, by name, on small models with fixed weights."""
    import torch

    from lab import HookedGPT, ModelConfig, get_task
    from probes import ablation_sweep, score_heads

    torch.set_num_threads(1)
    model = HookedGPT(
        ModelConfig(n_layers=6, n_heads=8, d_model=256, d_vocab=100, n_ctx=512)
    ).eval()
    rotary = HookedGPT(
        ModelConfig(
            n_layers=8,
            n_heads=9,
            n_key_value_heads=3,
            d_head=64,
            d_model=576,
            d_mlp=1536,
            d_vocab=4000,
            n_ctx=256,
            gated_mlp=True,
            act_fn="silu",
            normalization_type="RMS",
            positional_embedding_type="rotary",
            rotary_dim=64,
        )
    ).eval()
    small = HookedGPT(ModelConfig(n_layers=2, n_heads=4, d_model=64, d_vocab=30, n_ctx=64)).eval()
    tokens = torch.randint(100, (4, 256), generator=torch.Generator().manual_seed(0))
    batch = get_task("reversal", length=10).sample(64, seed=0)
    learner = HookedGPT(ModelConfig(n_layers=2, n_heads=4, d_model=64, d_vocab=30, n_ctx=64))
    optimizer = torch.optim.AdamW(learner.parameters())

    def forward() -> object:
        with torch.no_grad():
            return model(tokens)

    def train_step() -> object:
        for _ in range(10):
            learner(batch.tokens, return_type="loss").backward()
            optimizer.step()
            optimizer.zero_grad()
        return None

    return {
        "forward": forward,
        "train step": train_step,
        "cache": lambda: model.run_with_cache(tokens[:1]),
        "reads": lambda: score_heads(model, tokens),
        "generate": lambda: rotary.generate(tokens[:1, :16], max_new_tokens=48),
        "generate small": lambda: small.generate(batch.tokens[:1, :12], max_new_tokens=40),
        "sweep": lambda: ablation_sweep(small, batch),
    }


def serve() -> None:
    """Time the case that each line of standard input names, and print the seconds."""
    found = cases()
    for run in found.values():
        run()
    for line in sys.stdin:
        name = line.strip()
        start = time.perf_counter()
        found[name]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sys.stdout.write(json.dumps([time.perf_counter() - start, peak]) + "\n")
        sys.stdout.flush()


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median between order statistics."""
    ranked, n = sorted(values), len(values)
    low = max(0, int(binom.ppf(0.025, n, 0.5)) - 1)
    return ranked[low], ranked[n - 1 - low]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=Path.cwd())
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    given = parser.parse_args()
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            cwd=tree,
            env={"PYTHONPATH": str(tree.resolve()), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for tree in (given.old, given.new)
    ]

    def ask(worker: subprocess.Popen[str], name: str) -> list[float]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(name + "\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())

    peaks = [0.0, 0.0]
    for name in given.cases:
        ratios: list[float] = []
        seconds = [math.nan, math.nan]
        for pair in range(given.pairs):
            order = (0, 1) if pair % 2 else (1, 0)
            for which in order:
                seconds[which], peaks[which] = ask(workers[which], name)
            ratios.append(seconds[1] / seconds[0])
        low, high = median_interval(ratios)
        here = f"new {seconds[1] * 1e3:.1f} ms"
        print(f"{name:15} {median(ratios):.3f}  {low:.3f} to {high:.3f}  {here}")
    print(f"peak memory     {peaks[1] / peaks[0]:.3f}")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
