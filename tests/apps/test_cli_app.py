"""headlab app: a free port, an address that answers, and nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.commands import app

Headlab = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Give a port that somebody listens on."""
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", 0))
        somebody.listen()
        yield somebody.getsockname()[1]


def test_a_taken_port_is_refused(taken_port: int, headlab: Headlab) -> None:
    assert headlab("app", "--port", str(taken_port)) == (
        2,
        "",
        f"headlab: error: --port must be free, got {taken_port}, which is taken or not allowed; "
        "leave --port out to take the next free one\n",
    )


def test_without_a_port_the_next_free_one_is_taken(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "FIRST_PORT", taken_port)
    assert taken_port < app.free_port() < taken_port + app.PORTS_TO_TRY
    monkeypatch.setattr(app, "PORTS_TO_TRY", 1)
    with pytest.raises(ValueError, match=rf"from {taken_port} to {taken_port} must be free"):
        app.free_port()


def test_a_run_elsewhere_is_refused_with_the_way_to_see_it(
    headlab: Headlab, studio_home: Path, new_home: Path
) -> None:
    code, _, err = headlab("app", "--run", str(studio_home / "tiny"))
    assert code == 2
    assert f"--run must be a run in {new_home}" in err
    assert f"HEADLAB_HOME={studio_home} makes its folder the home" in err


def test_a_server_that_does_not_start_is_one_line(
    headlab: Headlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(app, "server_command", lambda port, run: command)
    code, out, err = headlab("app")
    assert (code, out) == (2, "")
    assert err.endswith(
        "headlab: error: the app must start, got its end with code 3; see above, "
        "or try another --port\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_app_answers_at_the_address_and_ends_with_the_command(
    number: signal.Signals, studio_home: Path
) -> None:
    # A signal to the command alone, not to its group as a terminal sends it.
    command = subprocess.Popen(
        [sys.executable, "-m", "apps.cli", "app", "--run", "tiny"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HEADLAB_HOME": str(studio_home)},
        start_new_session=True,
    )
    try:
        assert command.stdout is not None
        label, address = command.stdout.readline().split()
        assert label == "app"
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/?run=tiny")
        with urllib.request.urlopen(address, timeout=300.0) as page:
            assert page.status == 200
        assert command.stdout.readline() == "          Ctrl-C ends it\n"
        command.send_signal(number)
        _, err = command.communicate(timeout=300.0)
    finally:  # whatever failed, also at a time limit: no server is left behind
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
            command.communicate()
    assert (command.returncode, err) == (0, "starting the app ...\n")
    port = int(address.split(":")[2].split("/")[0])
    assert app.is_free(port)
