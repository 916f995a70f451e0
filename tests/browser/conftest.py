"""One Chromium, and one server of the studio as `headlab app` starts it, for all tests here."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from apps.studio.launch import server_command

START_SECONDS = 90.0

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        reason = "needs Debian's chromium; none is installed"
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def served(home: Path, log: Path) -> Iterator[int]:
    """Serve the studio over the runs of a home; give its port."""
    port = free_port()
    settings = {**os.environ, "HEADLAB_HOME": str(home)}
    with log.open("wb") as output:
        server = subprocess.Popen(
            server_command(port, "tiny"), env=settings, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            try:
                with opener.open(f"http://127.0.0.1:{port}/_stcore/health", timeout=2):
                    break
            except OSError:
                late = time.monotonic() > deadline
                if server.poll() is not None or late:
                    pytest.fail(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture(scope="session")
def home(studio_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the runs of studio_home, which the servers of this folder may write to."""
    home = tmp_path_factory.mktemp("served") / "runs"
    shutil.copytree(studio_home, home)
    return home


@pytest.fixture(scope="session")
def port(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of the server that most tests share."""
    with served(home, tmp_path_factory.mktemp("server") / "log.txt") as port:
        yield port


@pytest.fixture
def restart(home: Path, tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Return a function that starts another server over the same runs and gives its port."""
    with contextlib.ExitStack() as servers:
        yield lambda: servers.enter_context(served(home, tmp_path / "log.txt"))
