"""A run folder to break, and a watch on every file and on the memory that reading it takes."""

import contextlib
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest

if TYPE_CHECKING:
    from lab.config import TrainConfig

ROOM = 2**30
"""Bytes of address space that an example may take: far more than a model of 500 numbers does."""
FOLLOWS_LINKS = ("open", "os.listdir", "os.scandir", "os.truncate", "os.chmod", "os.utime")
CHANGES_NAMES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink")

watched: list[Path] = []
"""The folder in which files may be touched now, and those that may be read; empty: no watch."""
strays: list[str] = []
"""What was touched elsewhere."""


def look(event: str, arguments: tuple[Any, ...]) -> None:
    """Note every path outside the watched folder; Python calls this before it touches a file."""
    if not watched or event not in FOLLOWS_LINKS + CHANGES_NAMES:
        return
    count = 2 if event in ("os.rename", "os.link", "os.symlink") else 1
    for path in arguments[:count]:
        if not isinstance(path, str | bytes) or b"\0" in os.fsencode(path):
            continue
        real = os.path.realpath(path)
        if event in CHANGES_NAMES:  # they change a link itself, not what it leads to
            folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100  no links followed
            real = str(Path(os.path.realpath(folder)) / name)
        reads = (event == "open" and arguments[1] in ("r", "rb")) or event == "os.listdir"
        if not any(Path(real).is_relative_to(p) for p in (watched if reads else watched[:1])):
            strays.append(f"{event} {os.fsdecode(path)} -> {real}")


@pytest.fixture(scope="session")
def audit() -> None:
    """Install the watch; a hook can never be removed, so it sleeps between tests."""
    sys.addaudithook(look)


@pytest.fixture(scope="session")
def only_in(audit: None) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """A context in which no file outside a folder is touched and little memory is taken."""

    @contextlib.contextmanager
    def only(folder: Path, *reads: Path) -> Iterator[None]:
        strays.clear()
        before, limits = Path.cwd(), resource.getrlimit(resource.RLIMIT_AS)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        os.chdir(folder)  # what shutil.rmtree opens by bare names is in the folder then
        resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, limits[1]))
        watched.extend(path.resolve() for path in (folder, *reads))
        try:
            yield
        finally:
            watched.clear()
            resource.setrlimit(resource.RLIMIT_AS, limits)
            os.chdir(before)
        assert strays == []

    return only


@pytest.fixture(scope="module", autouse=True)
def as_users_on_a_quick_disk() -> Iterator[None]:
    """Switch jaxtyping's checks off, as `as_a_user` does for one test, and forcing to the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def small_config() -> "TrainConfig":
    """One step of a model of 500 numbers."""
    from lab.config import ModelConfig, TrainConfig

    model = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=6, n_ctx=8)
    sizes = {"length": 3, "n_symbols": 4, "steps": 1, "batch_size": 4, "warmup_steps": 0}
    return TrainConfig(
        task="reversal", model=model, eval_sequences=4, device="cpu", precision="fp32", **sizes
    )


@pytest.fixture(scope="session")
def whole_run(small_config: "TrainConfig", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run; examples copy it before they break it."""
    from lab.run_folders import update_derived
    from lab.training import train

    run_dir = tmp_path_factory.mktemp("whole") / "tiny"
    for _ in train(small_config, run_dir=run_dir):
        pass
    update_derived(run_dir, {"heads.csv": b"layer,head\n0,0\n", "figures/heads.png": b"png"})
    return run_dir
