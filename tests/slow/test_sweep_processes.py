"""Sweeps of real processes: shared by two, and killed at random moments."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
import torch
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.runtime import Processes, join_processes
from probes.ablation.sweep import sweep_sets
from probes.execution import Execution
torch.set_num_threads(1)
config = ModelConfig(
    n_layers=3, n_heads=4, d_model=32, d_vocab=20, n_ctx=32, initializer_range=0.5
)
model = HookedGPT(config)
tokens = torch.randint(20, (8, 32), generator=torch.Generator().manual_seed(1))
sets = [((layer, head),) for layer in range(3) for head in range(4)]
sets += [((0, head), (2, head)) for head in range(4)]
print("ready", flush=True)
swept = sweep_sets(
    model,
    tokens,
    sets,
    metrics=["loss", "exact_match", "kl"],
    execution=Execution(
        memory=2**21,
        ledger=None if sys.argv[2] == "-" else Path(sys.argv[2]),
        processes=join_processes(torch.device("cpu")) if "RANK" in os.environ else Processes(),
        progress=lambda done, total: print(done, total, flush=True),
    ),
)
np.save(sys.argv[1] + os.environ.get("RANK", ""), swept.totals)
"""


def run(*arguments: object, processes: int = 1) -> list[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    script = Path(str(arguments[0])).parent / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *(launch if processes > 1 else []), script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_two_processes_share_a_sweep_and_its_ledger(tmp_path):
    told = run(tmp_path / "one", "-")
    whole = np.load(tmp_path / "one.npy")
    run(tmp_path / "two", tmp_path / "ledger", processes=2)
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"two{rank}.npy"), whole, atol=1e-6)
    chunks = sorted((tmp_path / "ledger").glob("chunk-*.npz"))
    assert len(chunks) == len(told) - 1 >= 8
    written = {path: path.stat().st_mtime_ns for path in chunks}
    run(tmp_path / "again", tmp_path / "ledger")  # another number of processes goes on with it
    np.testing.assert_allclose(np.load(tmp_path / "again.npy"), whole, atol=1e-6)
    assert {path: path.stat().st_mtime_ns for path in chunks} == written


@pytest.mark.slow
def test_killed_at_random_moments_a_sweep_resumes_to_the_same_bits(tmp_path):
    n_chunks = len(run(tmp_path / "whole", "-")) - 1
    whole, ledger = (tmp_path / "whole.npy").read_bytes(), tmp_path / "ledger"
    draw, kept = random.Random(0), 0
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "killed"), str(ledger)]
    while kept < n_chunks - 1:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(1 + kept + draw.randrange(3, 7)):
            process.stdout.readline()
        time.sleep(draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = len(list(ledger.glob("chunk-*.npz")))
        assert found > kept
        kept = found
    run(tmp_path / "resumed", ledger)
    assert (tmp_path / "resumed.npy").read_bytes() == whole
    assert {path.suffix for path in ledger.iterdir()} == {".npz", ".json"}
