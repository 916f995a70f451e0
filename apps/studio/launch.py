"""How to start the studio: its command line, flags and address. Standard library only."""

import sys
from pathlib import Path
from urllib.parse import urlencode

ENTRY = Path(__file__).resolve().with_name("app.py")
HOST = "127.0.0.1"
RUN_ARGUMENT = "--run="

# Streamlit listens on every interface and reports usage by default. A user's own files or
# environment can override a config.toml beside the entry script, but not flags.
FLAGS: tuple[tuple[str, str], ...] = (
    ("server.address", HOST),
    ("server.allowedHosts", HOST),  # rejects a foreign Host, as a rebound DNS name sends it
    ("server.allowedHosts", "localhost"),
    ("server.enableCORS", "true"),
    ("server.enableXsrfProtection", "true"),
    ("server.enableStaticServing", "false"),
    ("server.fileWatcherType", "none"),  # no hot reload: a cached model would lose its class
    ("server.headless", "true"),
    ("server.maxUploadSize", "50"),
    ("browser.gatherUsageStats", "false"),
    ("client.toolbarMode", "viewer"),
    ("client.showErrorDetails", "none"),
    ("client.showErrorLinks", "false"),
)
"""Options of every launch, in Streamlit's names; a repeated name makes a list."""


def server_command(port: int, run: str | None = None) -> list[str]:
    """Return the command line that serves the studio on this machine only.

    Args:
        port: Port on 127.0.0.1.
        run: Name of the run to show if the address names none; None: the first by name.
    """
    options = [text for name, value in FLAGS for text in (f"--{name}", value)]
    command = [sys.executable, "-m", "streamlit", "run", str(ENTRY)]
    command += [*options, "--server.port", str(port)]
    return command if run is None else [*command, "--", f"{RUN_ARGUMENT}{run}"]


def page_address(port: int, run: str | None = None) -> str:
    """Return the address to open in a browser.

    >>> page_address(8501, "reversal")
    'http://127.0.0.1:8501/?run=reversal'
    """
    query = "" if run is None else f"?{urlencode({'run': run})}"
    return f"http://{HOST}:{port}/{query}"


def run_argument(arguments: list[str]) -> str | None:
    """Return the run that server_command put after the entry script, if any."""
    names = [a.removeprefix(RUN_ARGUMENT) for a in arguments if a.startswith(RUN_ARGUMENT)]
    return names[-1] if names else None
