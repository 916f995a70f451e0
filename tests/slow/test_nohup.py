"""The suite under nohup, where SIGINT is ignored and every child would inherit that."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

WITHOUT_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""


def test_tests_that_press_ctrl_c_pass_where_it_is_ignored() -> None:
    tests = [
        "tests/apps/test_cli_app.py",
        "tests/apps/test_cli_train.py",
        "tests/lab/test_training.py",
    ]
    assert signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CTRL_C, "-q", "-k", "stop or ends or ctrl_c", *tests],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
