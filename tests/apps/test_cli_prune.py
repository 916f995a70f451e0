"""`headlab prune`: what it writes, what it prints, what it refuses."""

import json
import re
import shutil
from pathlib import Path

import pytest

from apps.cli import main
from lab.runs import open_run

SHIPPED = Path(__file__).resolve().parents[2] / "artifacts" / "reversal"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the shipped run, cut to what pruning reads."""
    shutil.copytree(SHIPPED, tmp_path / "reversal")
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path))
    return tmp_path


def test_removes_a_layer_and_prints_the_proof(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert main(["prune", "reversal", "--heads", *heads, "--sequences", "40"]) == 0
    printed = capsys.readouterr().out
    run = open_run("reversal-pruned")
    proof = json.loads(run.file("parity.json").read_text())
    assert proof["holds"]
    assert proof["heads"] == "L1H0,L1H1,L1H2,L1H3"
    # 4 heads x (4 x 64 x 16 weights + 3 x 16 biases) go.
    assert proof["parameters_before"] - proof["parameters_after"] == 4 * (4 * 64 * 16 + 3 * 16)
    assert re.search(r"^parameters +105,756 +89,180$", printed, re.M)
    assert "heads removed" in printed
    assert main(["generate", "reversal-pruned", "abcdefghij"]) == 0
    assert "jihgfedcba (right)" in capsys.readouterr().out
    # Again, by the original ids, with the mean as a constant, and under a name of its own.
    again = ["prune", "reversal-pruned", "--heads", "L0H1", "--mode", "mean", "--sequences", "40"]
    assert main([*again, "--name", "small"]) == 0
    assert open_run("small").config.model.kept_heads == ((0, 2, 3), ())
    assert main(again) == 0
    assert open_run("reversal-pruned-pruned").config.model.kept_heads == ((0, 2, 3), ())
    capsys.readouterr()
    assert main(["probe", "small", "--sequences", "20"]) == 0
    table = capsys.readouterr().out
    assert "L0H3" in table
    assert "L0H1" not in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reversal", "--heads", "L0H9"], "unknown head 'L0H9'; choose from L0H0, L0H1"),
        (["reversal", "--heads", "0.1"], "a head must be written like L0H3, got '0.1'"),
        (["reversl", "--heads", "L0H0"], "(did you mean 'reversal'?)"),
        (["reversal", "--heads", "L0H0", "--name", "reversal"], "--name must be new, got 'rev"),
        (["reversal", "--heads", "L0H0", "--name", "../x"], "run name must be 1 to 100 letters"),
        (
            ["reversal", "--heads", "L0H0", "--checkpoint", "7"],
            "step must be one with a checkpoint",
        ),
        (["reversal", "--heads"], "--heads must name at least one head, got none"),
    ],
)
def test_refusals(
    arguments: list[str], message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("headlab: error: ")
    assert message in lines[-1]
    assert [path.name for path in home.iterdir()] == ["reversal"]
