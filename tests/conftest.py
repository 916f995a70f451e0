"""What every test runs under: one thread, no screen, no network.

Nothing of lab or probes may be imported here at module level: the shape-checking import hook is
installed only after this file has been read, and it refuses modules that are loaded already.
"""

import dataclasses
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch is imported, and inherited by every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import jaxtyping
import pytest
import torch
from filelock import FileLock

from tests import shape_checks

torch.set_num_threads(1)
# Under nohup, or in the background of a script, SIGINT is ignored, and every process started from
# here would inherit that: tests that press Ctrl-C are about a person at a terminal.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A shared machine makes any deadline on a single example meaningless.
hypothesis.settings.register_profile("headlab", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("headlab")


def pytest_runtest_setup(item: pytest.Item) -> None:
    shape_checks.check_again()
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; there is none here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the browser's tests first: they wait much, and another process's tests run meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Refuse to connect anywhere but to this machine."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else None
        if host is not None and host != "localhost" and not str(host).startswith(("127.", "::1")):
            raise AssertionError(f"a test must not use the network, but connects to {host}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        yield


@pytest.fixture
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch jaxtyping's test-time checks off: users have none before our own checks speak."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def weights_only() -> Callable[[Path], None]:
    """Take the training state out of a run, as it is out of the shipped one."""
    from lab.checkpoint import TRAINING
    from lab.manifest import seal_folder
    from lab.run_folders import CHECKPOINTS, OPTIMIZER

    def strip(run_dir: Path) -> None:
        for folder in (run_dir / CHECKPOINTS).iterdir():
            for name in (OPTIMIZER, TRAINING):
                (folder / name).unlink(missing_ok=True)
            seal_folder(folder)
        seal_folder(run_dir)

    return strip


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """The function that makes a file or folder once for all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], None]) -> Path:
        place = shared / name
        with FileLock(f"{place}.lock"):
            if not place.exists():
                half = tmp_path_factory.mktemp("made") / name
                make(half)
                half.rename(place)
        return place

    return made


@pytest.fixture(scope="session")
def studio_home(once: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two runs: `tiny`, trained until solved and reported on, and `raw`, neither.

    In `tiny` the two heads of layer 0 say four letters backwards, and layer 1 does nothing. The
    runs are trained once; every process of a test run works on a copy of its own.
    """
    trained = once("trained-runs", train_studio_runs)
    return shutil.copytree(trained, tmp_path_factory.mktemp("studio") / "runs")


def train_studio_runs(home: Path) -> None:
    """Train the runs of `studio_home` into a folder."""
    from lab.config import ModelConfig, TrainConfig
    from lab.run_folders import open_run
    from lab.training import train
    from probes.report.folder import write_report

    model = ModelConfig(n_layers=2, n_heads=2, d_model=32, d_vocab=10, n_ctx=12)
    config = TrainConfig(
        task="reversal",
        length=4,
        n_symbols=8,
        model=model,
        steps=60,
        warmup_steps=10,
        batch_size=64,
        learning_rate=1e-2,
        eval_every=60,
        eval_sequences=200,
        checkpoint_every=20,
        device="cpu",
    )
    short = dataclasses.replace(config, steps=1, seed=1)
    for name, described in (("tiny", config), ("raw", short)):
        for _ in train(described, run_dir=home / name):
            pass
    write_report(open_run(home / "tiny"), n_sequences=40)
