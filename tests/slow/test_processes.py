"""Two processes under torchrun train what one with two micro-batches trains."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.config import ModelConfig, TrainConfig
from lab.hooked_gpt import HookedGPT
from lab.run_folders import WEIGHTS, list_runs, open_run
from lab.training import train

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from lab.config import TrainConfig
from lab.training import train
torch.set_num_threads(1)
config, run_dir, stop, resume = json.loads(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
records = train(TrainConfig.from_dict(config), run_dir=run_dir, resume=bool(int(resume)))
is_main = os.environ["RANK"] == "0"
for record in records:
    assert (record.evaluation is not None) == (is_main and record.step % 3 == 0), record
    assert (record.checkpoint is not None) == (is_main and record.step % 2 == 0), record
    if record.step == int(stop):
        records.close()
"""


def config_of(accumulate: int) -> TrainConfig:
    model = ModelConfig(n_layers=2, n_heads=2, d_model=16, d_vocab=12, n_ctx=16)
    return TrainConfig(
        task="reversal",
        length=5,
        n_symbols=10,
        model=model,
        steps=6,
        batch_size=16,
        accumulate=accumulate,
        warmup_steps=2,
        eval_every=3,
        eval_sequences=64,
        checkpoint_every=2,
        device="cpu",
        precision="fp32",
    )


def two_processes(
    config: TrainConfig, run_dir: Path, stop: int = 0, resume: bool = False
) -> "subprocess.CompletedProcess[str]":
    script = run_dir.parent / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
    arguments = [json.dumps(config.to_dict()), str(run_dir), str(stop), str(int(resume))]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_train_what_one_with_accumulation_trains(tmp_path):
    for accumulate in (1, 2):
        two = tmp_path / f"two-{accumulate}"
        done = two_processes(config_of(accumulate), two)
        assert done.returncode == 0, done.stderr
        one = tmp_path / f"one-{accumulate}"
        for _ in train(config_of(2 * accumulate), run_dir=one):
            pass
        if accumulate == 1:
            # Halving is exact and the sum has two terms, so there is nothing to round differently.
            assert (two / WEIGHTS).read_bytes() == (one / WEIGHTS).read_bytes()
        both = zip(
            HookedGPT.load(two).named_parameters(), HookedGPT.load(one).parameters(), strict=True
        )
        for (name, got), wanted in both:
            # A softmax does not see b_K: its gradient is rounding noise, which Adam scales up.
            if not name.endswith("b_K"):
                difference = (got - wanted).abs().max().item()
                assert difference <= 1e-6, f"{name} differs by {difference}"
        for got, wanted in zip(open_run(two).metrics(), open_run(one).metrics(), strict=True):
            assert got["step"] == wanted["step"]
            assert got["loss"] == pytest.approx(wanted["loss"], abs=1e-6)
            assert got["grad_norm"] == pytest.approx(wanted["grad_norm"], abs=1e-5)
    assert open_run(two).info["processes"] == 2


@pytest.mark.slow
def test_two_processes_resume_and_stop_together(tmp_path):
    config = config_of(1)
    assert two_processes(config, tmp_path / "whole").returncode == 0
    stopped = two_processes(config, tmp_path / "run", stop=3)
    assert stopped.returncode == 0, stopped.stderr
    assert open_run(tmp_path / "run", unfinished=True).steps == (0, 2, 3)
    again = two_processes(config, tmp_path / "run")
    assert again.returncode != 0
    assert "run folder must be new, got" in again.stderr
    assert "process 0 must not fail, got an error there" in again.stderr
    resumed = two_processes(config, tmp_path / "run", resume=True)
    assert resumed.returncode == 0, resumed.stderr
    weights = [(tmp_path / name / WEIGHTS).read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]
    odd = two_processes(dataclasses.replace(config, batch_size=15), tmp_path / "odd")
    assert "batch_size must be a multiple of accumulate x processes, got 15 and 1 x 2" in odd.stderr
    assert {run.name for run in list_runs(tmp_path)} == {"run", "whole"}
    assert torch.isfinite(HookedGPT.load(tmp_path / "run").W_E).all()
