"""A film of the reversal preset: what it costs, what it shows, and `kill -9` while it is taken."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.presets import get_preset
from lab.run_folders import METRICS, WEIGHTS, open_run
from lab.training import train
from probes.film.frames import find_onsets
from probes.film.writer import FILM, FRAMES, SETTINGS, FilmSettings, FilmWriter

pytestmark = pytest.mark.slow

KILLS = 8
SCRIPT = "import torch, sys; torch.set_num_threads(1); from apps.cli import main; sys.exit(main())"
TRAINED = """
    reversal --length 5 --n-symbols 10 --model.n-layers 1 --model.n-heads 2 --model.d-model 16
    --steps 60 --batch-size 16 --warmup-steps 10 --eval-every 60 --eval-sequences 64
    --checkpoint-every 7 --device cpu --no-report --name run --probe-every 4
"""
"""Frames and checkpoints fall together at step 28 and 56 only."""


def test_filming_every_tenth_step_costs_less_than_a_tenth(tmp_path: Path) -> None:
    config = get_preset("reversal")
    run_dir = tmp_path / "run"
    filming = 0.0
    with FilmWriter(config, FilmSettings(every=10), run_dir) as film:
        began = time.process_time()
        for record in train(config, run_dir=run_dir, files=film.files):
            since = time.process_time()
            film.see(record)
            filming += time.process_time() - since
        since = time.process_time()
        film.finish()
        filming += time.process_time() - since
        whole = time.process_time() - began
    share = filming / (whole - filming)
    assert share < 0.10, f"{filming:.2f} s of {whole:.2f} s"
    assert film.lost == []
    # The heads of layer 0 find the anti-diagonal between two frames; layer 1 never does.
    onsets = find_onsets(film.table()).query("probe == 'sources'")
    assert onsets[["layer", "head"]].to_numpy().tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert onsets["step"].between(20, 120).all()
    assert (onsets["step"] - onsets["step_before"] == 10).all()
    assert (onsets["last"] > 0.9).all()


def headlab(home: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words],
        env={"PATH": "", "HEADLAB_HOME": str(home), "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(home: Path, *words: str) -> Path:
    process = headlab(home, *words)
    _, told = process.communicate()
    assert process.returncode == 0, told
    return home / "run"


def test_killed_at_random_moments_the_film_is_the_same(tmp_path: Path) -> None:
    whole = finish(tmp_path / "whole", "train", *TRAINED.split())
    draw = random.Random(0)
    resumed_from = set()
    for kill in range(KILLS):
        home = tmp_path / str(kill)
        process = headlab(home, "train", *TRAINED.split())
        frames, wanted = home / "run" / FRAMES, draw.randrange(0, 16)
        # So many frames later, and some milliseconds: the kills fall on frames, steps, checkpoints.
        while process.poll() is None:
            if frames.exists() and frames.read_bytes().count(b"\n") > wanted * 2 * 9:
                time.sleep(draw.uniform(0.0, 0.05))
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        run = open_run(home / "run", unfinished=True)
        resumed_from.add(run.steps[-1])
        finish(home, "train", "--resume", "run", "--no-report")
        run = open_run(home / "run")
        for name in (FRAMES, FILM, SETTINGS, WEIGHTS):
            assert run.file(name).read_bytes() == (whole / name).read_bytes(), (kill, name)
        assert run.file(METRICS).is_file()
    # The moments were spread over the training, else the test says little.
    assert len(resumed_from) >= 3, resumed_from
