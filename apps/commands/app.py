"""`headlab app`: the studio, served to this machine only."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from apps.commands.arguments import fill_in, flag
from apps.console import remark, say_facts
from apps.studio.launch import HOST, page_address, server_command
from lab.checks import require
from lab.run_folders import open_run, runs_home

FIRST_PORT = 8501
PORTS_TO_TRY = 100
START_SECONDS = 60.0


ABOUT = """
Open the app: click a head, see what it attends to, ablate it, watch the
answers change.

  headlab app --run reversal

Only this machine can reach it, and it makes no network requests. Press Ctrl-C
to stop it.
"""


@dataclass(frozen=True, kw_only=True)
class AppForm:
    """Arguments of `headlab app`."""

    port: Annotated[
        int | None,
        flag("PORT", "Port on 127.0.0.1.", f"(default: the first free one from {FIRST_PORT})"),
    ] = None
    run: Annotated[
        str | None,
        flag("RUN", "Run to show first.", "(default: first by name)"),
    ] = None


def run_app(arguments: list[str]) -> int:
    """Serve the app until Ctrl-C."""
    form = fill_in(AppForm, arguments, command="app", about=ABOUT)
    run = None if form.run is None else name_in_home(form.run)
    return serve(free_port(form.port), run)


def name_in_home(name: str) -> str:
    """Return the name of a complete run in the home of runs, where the app looks for it.

    Raises:
        ValueError: There is no such run, or its folder is elsewhere.
    """
    run = open_run(name)
    folder = run.path.resolve()
    if folder.parent != runs_home().resolve():
        raise ValueError(
            f"--run must be a run in {runs_home()}, got {name!r}; "
            f"HEADLAB_HOME={shlex.quote(str(folder.parent))} makes its folder the home"
        )
    return folder.name


def free_port(asked: int | None = None) -> int:
    """Return a free port: the requested one, or else the first free one.

    Raises:
        ValueError: The requested port is invalid or taken.
    """
    if asked is None:
        for port in range(FIRST_PORT, FIRST_PORT + PORTS_TO_TRY):
            if is_free(port):
                return port
        last = FIRST_PORT + PORTS_TO_TRY - 1
        raise ValueError(
            f"a port from {FIRST_PORT} to {last} must be free, got none; give another with --port"
        )
    require(1 <= asked <= 65_535, "--port", "from 1 to 65535", asked)
    if not is_free(asked):
        raise ValueError(
            f"--port must be free, got {asked}, which is taken or not allowed; "
            "leave --port out to take the next free one"
        )
    return asked


def is_free(port: int) -> bool:
    """Return whether this process could listen on a port of this machine."""
    with socket.socket() as probe:
        # As the server will: a port whose last connections are still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def serve(port: int, run: str | None) -> int:
    """Start the app, say where it is once it answers, and wait until Ctrl-C or SIGTERM ends it.

    Raises:
        OSError: If the app ends by itself.
    """
    remark("starting the app ...")
    # On stdout the server tells addresses too, and without the run.
    quiet = {**os.environ, "STREAMLIT_LOGGER_LEVEL": "warning"}
    server = subprocess.Popen(server_command(port, run), stdout=subprocess.DEVNULL, env=quiet)
    try:
        with sigterm_like_ctrl_c():
            wait_until_up(server, port)
            say_facts([("app", page_address(port, run)), ("", "Ctrl-C ends it")])
            sys.stdout.flush()
            code = server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        end(server)
    raise OSError(f"the app must keep running, got its end with code {code}; start it again")


@contextlib.contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM too, so that the server is ended and not left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_until_up(server: "subprocess.Popen[bytes]", port: int) -> None:
    """Return once the server answers.

    Raises:
        OSError: If it ends before, or takes longer than a minute.
    """
    address = f"http://{HOST}:{port}/_stcore/health"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise OSError(
                f"the app must start, got its end with code {server.returncode}; see above, "
                "or try another --port"
            )
        with contextlib.suppress(OSError), opener.open(address, timeout=2.0):
            return
        time.sleep(0.1)
    raise OSError(f"the app must answer within {START_SECONDS:.0f} s, got nothing; start it again")


def end(server: "subprocess.Popen[bytes]") -> None:
    """End the server and wait for it."""
    server.terminate()
    try:
        server.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
