"""What `import lab` and `headlab --help` may load: nothing that takes long."""

import subprocess
import sys

import pytest

LAB = "import lab"
HELP = """
from apps.cli import main
assert main(["--help"]) == 0
"""
LOADED = """
import sys
before = set(sys.modules)
{code}
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
light = sys.stdlib_module_names | {{"lab", "probes", "apps", "lazy_loader"}}
sys.exit(" ".join(sorted(new - light)) or 0)
"""


@pytest.mark.parametrize("code", [LAB, HELP], ids=["import lab", "headlab --help"])
def test_no_package_is_loaded(code):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(code=code)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
