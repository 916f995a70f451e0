"""A run small enough to train in a test, and the disk as a test wants it."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lab.config import TrainConfig


@pytest.fixture(scope="session")
def tiny_config() -> "TrainConfig":
    """Six steps of a model of 500 numbers, a checkpoint every second step."""
    from lab.config import ModelConfig, TrainConfig

    model = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=6, n_ctx=8)
    return TrainConfig(
        task="reversal",
        length=3,
        n_symbols=4,
        model=model,
        steps=6,
        batch_size=8,
        warmup_steps=2,
        eval_every=3,
        eval_sequences=16,
        checkpoint_every=2,
        device="cpu",
        precision="fp32",
    )


@pytest.fixture(scope="session")
def finished_run(tiny_config: "TrainConfig", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run; tests copy it before they change it."""
    from lab.training import train

    run_dir = tmp_path_factory.mktemp("home") / "tiny"
    for _ in train(tiny_config, run_dir=run_dir):
        pass
    return run_dir


@pytest.fixture
def full_disk() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """A context in which no file can grow beyond some bytes, as on a disk that fills up."""

    @contextlib.contextmanager
    def limited(bytes_: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def dies_at_sync() -> Callable[[Callable[[], object], int], bool]:
    """Run work in a child that dies at its n-th fsync, as by `kill -9`; tell whether it did."""

    def run(work: Callable[[], object], n: int) -> bool:
        child = os.fork()
        if child == 0:
            left = n
            fsync = os.fsync

            def dying(descriptor: int) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(9)
                fsync(descriptor)

            os.fsync = dying
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9), "the child failed by itself"
        return code == 9

    return run
