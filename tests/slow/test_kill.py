"""`kill -9` at random moments of real training processes: nothing is lost, no bit differs."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.config import ModelConfig, TrainConfig
from lab.run_folders import METRICS, WEIGHTS, list_runs, open_run
from lab.training import train

KILLS = 20
STEPS = 60
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from lab.config import TrainConfig
from lab.training import train
torch.set_num_threads(1)
print("ready", flush=True)
for record in train(TrainConfig.from_dict(json.loads(sys.argv[1])), run_dir=Path(sys.argv[2])):
    print(record.step, flush=True)
"""


def trained_until(config: TrainConfig, run_dir: Path, step: int, delay: float) -> None:
    """Train in a process of its own and kill it some seconds after it has done a step."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(config.to_dict()), str(run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == (str(step) if step else "ready"):
            break
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def numbers(run_dir: Path) -> list[str]:
    """Return the metrics as they stand in the file, without the speed of the steps."""
    lines = (run_dir / METRICS).read_text().splitlines()
    return [",".join(cell for i, cell in enumerate(line.split(",")) if i != 4) for line in lines]


@pytest.mark.slow
def test_killed_at_random_moments_training_resumes_to_the_same_bits(tmp_path):
    model = ModelConfig(n_layers=1, n_heads=2, d_model=16, d_vocab=12, n_ctx=16)
    config = TrainConfig(
        task="reversal",
        length=5,
        n_symbols=10,
        model=model,
        steps=STEPS,
        batch_size=16,
        warmup_steps=10,
        eval_every=10,
        eval_sequences=64,
        checkpoint_every=2,
        device="cpu",
        precision="fp32",
    )
    whole = tmp_path / "whole" / "run"
    for _ in train(config, run_dir=whole):
        pass
    draw = random.Random(0)
    resumed_from = []
    for kill in range(KILLS):
        run_dir = tmp_path / str(kill) / "run"
        # A step and its checkpoint take some milliseconds: the delay spreads kills over both.
        trained_until(config, run_dir, draw.randrange(STEPS), draw.uniform(0, 0.03))
        listed = list_runs(run_dir.parent)
        assert bool(listed) <= (run_dir / WEIGHTS).exists()
        for run in listed:
            assert all(run.file(name).is_file() for name in run.files)
        if run_dir.exists() and not listed:
            resumed_from.append(open_run(run_dir, unfinished=True).steps[-1])
        *_, record = train(config, run_dir=run_dir, resume=True)
        assert record.final
        assert (run_dir / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
        assert numbers(run_dir) == numbers(whole)
        assert [run.name for run in list_runs(run_dir.parent)] == ["run"]
        assert [path.name for path in run_dir.parent.iterdir()] == ["run"]
        assert open_run(run_dir).steps == open_run(whole).steps
    # The moments were spread over the training, else the test says little.
    assert len(set(resumed_from)) >= KILLS // 2, resumed_from
