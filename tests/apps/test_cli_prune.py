"""`headlab prune`: what it writes, what it prints, what it refuses."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from apps.cli import main
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.run_folders import open_run
from probes.pruning import curve_points as points

SHIPPED = Path(__file__).resolve().parents[2] / "artifacts" / "reversal"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the shipped run, cut to what pruning reads, and a cache of its own."""
    shutil.copytree(SHIPPED, tmp_path / "home" / "reversal")
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "home"


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
    assert re.findall(r"^(whole model|heads \w+) ", printed, re.M) == [
        "whole model", "heads ablated", "heads removed",
    ]  # fmt: skip
    assert "forward pass of 40 sequences, median of 7" in printed
    assert "labels of the 4 remaining heads, before and now; 0 changed" in printed
    left = cells(printed, 2)
    assert [row[0] for row in left] == ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert all(row[1] == row[3] == "reversal (strong)" for row in left)
    labels = pd.read_parquet(run.file("pruning/survivors.parquet"))
    assert [f"{score:.2f}" for score in labels["before_score"]] == [row[2] for row in left]
    assert labels.attrs["run"] == "reversal"
    assert main(["generate", "reversal-pruned", "abcdefghij"]) == 0
    assert "jihgfedcba (right)" in capsys.readouterr().out
    # Again, by the original ids, with the mean as a constant, and under a name of its own.
    again = ["prune", "reversal-pruned", "--heads", "L0H1", "--mode", "mean", "--sequences", "40"]
    assert main([*again, "--out", "small"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^removed +L0H1\ngone before +L1H0,L1H1,L1H2,L1H3\n", printed, re.M)
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
        (["reversal", "--heads", "L0H0", "--out", "reversal"], "--out must be new, got 'rev"),
        (["reversal", "--heads", "L0H0", "--out", "x y"], "run name must be 1 to 100 letters"),
        (
            ["reversal", "--heads", "L0H0", "--checkpoint", "7"],
            "step must be one with a checkpoint",
        ),
        (["reversal", "--heads"], "--heads needs at least one value, got none"),
        (["reversal"], "one of --heads, --keep and --curve must be given, got none"),
        (["reversal", "--keep", "8"], "--keep must be a whole number of at most 7, got 8"),
        (["reversal", "--heads", "L0H0", "--keep", "3"], "--keep must be left out with --heads"),
        (["reversal", "--keep", "3", "--order", "greedi"], "unknown --order 'greedi'; choose from"),
        (
            ["reversal", "--curve", "--random-orders", "-1"],
            "--random-orders must be a whole number",
        ),
        (
            ["reversal", "--curve", "--order", "random", "--random-orders", "0"],
            "--random-orders must be a whole number of at least 1, got 0",
        ),
        (["reversal", "--keep", "3", "--random-orders", "2"], "must be left out without --curve"),
        (["reversal", "--keep", "3", "--normalise", "layer"], "no effect with --order greedy"),
        (
            ["reversal", "--heads", "L0H0", "--metric", "loss"],
            "--metric must be left out with --he",
        ),
        (
            ["reversal", "--keep", "3", "--out", "/proc/zz/small"],
            "place for output must be writable",
        ),
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


def test_a_place_in_a_sealed_run_and_a_model_without_heads(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = home / "reversal" / "inside"
    few = ("--sequences", "10")
    assert main(["prune", "reversal", "--heads", "L0H0", "--out", str(inside), *few]) == 2
    assert "--out must not lie in a run or a saved model" in capsys.readouterr().err
    assert not inside.exists()
    heads = [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    assert main(["prune", "reversal", "--heads", *heads, "--out", "none", *few]) == 0
    assert "headlab probe" not in capsys.readouterr().out
    assert main(["prune", "none", "--keep", "0", *few]) == 2
    assert "got 'none', whose heads were all pruned" in capsys.readouterr().err


def cells(printed: str, nth: int) -> list[list[str]]:
    """Return the cells of a printed table; they are two spaces apart."""
    lines = printed.split("\u2500\n")[1 + nth].split("\n\n")[0].splitlines()
    return [re.split(r"\s{2,}", line.strip()) for line in lines]


def test_an_order_is_followed_until_so_many_heads_are_left(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--sequences", "40", "--random-orders", "3")
    asked = ["prune", "reversal", "--order", "greedy", "--keep", "4", "--curve", *few]
    assert main([*asked, "--out", "small"]) == 0
    printed = capsys.readouterr().out
    run = open_run("small")
    # Layer 1 is free: an order that tries every head finds that.
    assert run.config.model.kept_heads == ((0, 1, 2, 3), ())
    curve = pd.read_parquet(run.path / "pruning" / "pruning.parquet")
    assert curve.attrs["chosen_by"] == "margin"
    assert re.search(r" median +least +largest$", printed, re.M)
    assert "if held out worsens by at most (random: median, range)" in printed
    assert set(curve["order"]) == {"greedy", "random"}
    assert curve["seed"].dropna().nunique() == 3
    own = curve[(curve["order"] == "greedy") & (curve["metric"] == "margin")]
    shown = cells(printed, 0)
    assert [row[0] for row in shown] == [str(n) for n in range(8, -1, -1)]
    held_out = [row[3] if len(row) == 9 else row[2] for row in shown]
    assert held_out == [f"{value:.4f}" for value in own["held_out"]]
    spare = {(row[0], row[1]): row[2:] for row in cells(printed, 1)}
    left = own.set_index("n_removed")["delta"] / own["held_out"].iloc[0]
    assert int(spare["margin", "greedy"][1]) == left[left >= -0.01].index.max()
    # The run vouches for the tables that were put into it.
    assert run.file("pruning/pruning.csv").exists()
    assert json.loads((run.path / "pruning" / "removable.json").read_text())["rows"]


def test_a_curve_alone_leaves_no_model(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["prune", "reversal", "--order", "one-shot", "--normalise", "layer", "--curve"]
    few = ["--sequences", "40", "--random-orders", "0", "--metric", "exact_match"]
    assert main([*asked, *few, "--out", str(tmp_path / "deep" / "tables")]) == 0
    printed = capsys.readouterr().out
    assert "order one-shot, by layer" in printed
    assert "parity" not in printed
    curve = pd.read_parquet(tmp_path / "deep" / "tables" / "pruning.parquet")
    assert curve["order"].unique().tolist() == ["one-shot"]
    assert curve.attrs["selection"] == "256 other sequences of reversal"


def test_a_model_that_is_no_run_becomes_a_folder(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ModelConfig(n_layers=2, n_heads=3, d_model=12, d_vocab=40, n_ctx=30)
    HookedGPT(config).save(tmp_path / "random")
    asked = ["prune", str(tmp_path / "random"), "--order", "random", "--keep", "2", "--seed", "3"]
    assert main(asked) == 2
    assert "--out must be given because WHAT is not a run" in capsys.readouterr().err
    assert main([*asked, "--out", str(tmp_path / "smaller")]) == 0
    printed = capsys.readouterr().out
    assert "8 repeated sequences of seed 4" in printed
    pruned = HookedGPT.load(tmp_path / "smaller")
    assert sum(pruned.config.n_heads_of(layer) for layer in range(2)) == 2
    assert json.loads((tmp_path / "smaller" / "parity.json").read_text())["holds"]
    assert "labels of the 2 remaining heads, before and now" in printed
    assert len(pd.read_csv(tmp_path / "smaller" / "pruning" / "survivors.csv")) == 2
    monkeypatch.setattr("apps.pruned_model.MOST_LABELLED", 5)
    curve = ("--curve", "--random-orders", "2")
    assert main([*asked, *curve, "--out", str(tmp_path / "large")]) == 0
    printed = capsys.readouterr().out
    assert "/large shows what the remaining heads do\n" in printed
    assert not (tmp_path / "large" / "pruning" / "survivors.csv").exists()
    # What a model without a task loses is read as perplexity, and kept in nats.
    assert "perplexity, exp(loss), after each removal, order random, seed 3\n" in printed
    frame = pd.read_parquet(tmp_path / "large" / "pruning" / "pruning.parquet")
    own = frame[(frame["metric"] == "loss") & (frame["seed"] == 3)]
    row = cells(printed, 0)[-1]
    last = own.iloc[-1]
    assert [row[0], *row[2:4]] == [str(last["n_kept"]), f"{last['held_out']:.4f}", "-"]
    assert float(row[4]) == pytest.approx(math.exp(last["held_out"]), abs=0.05)
    assert main(["probe", str(tmp_path / "smaller"), "--sequences", "20"]) == 0


def test_a_pruned_run_can_be_trained_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["prune", "reversal", "--heads", "L0H0", "L0H1", "--fine-tune", "3"]
    assert main([*asked, "--sequences", "40"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^parity .*, of the weights before training$", printed, re.M)
    assert re.search(r"^weights +those after 3 steps of training, read back bit", printed, re.M)
    shown = {row[0]: row[1:] for row in cells(printed, 1)}
    assert shown["heads ablated"] == shown["heads removed"] != shown["trained further"]
    run = open_run("reversal-pruned")
    assert run.info["pruned_from"]["fine_tuned_steps"] == 3
    # Its weights are of step 403, which its recipe of 400 steps does not know.
    assert run.last_step == run.steps[0] == run.config.steps + 3
    assert main(["ablate", "reversal-pruned", "--sequences", "10"]) == 0
    assert f"step {run.last_step}" in capsys.readouterr().out
    assert main(["prune", "reversal-pruned", "--heads", "L1H0", "--sequences", "10"]) == 0
    assert open_run("reversal-pruned-pruned").info["pruned_from"]["step"] == run.last_step
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^reversal-pruned +reversal \d+ +{run.last_step} ", shown, re.M)


def test_an_interrupted_search_goes_on_and_is_kept_until_all_is_written(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = home.parent / "cache" / "headlab" / "sweeps"
    few = ("--sequences", "20", "--random-orders", "0", "--order", "one-shot")
    asked = ["prune", "reversal", "--curve", "--keep", "4", *few, "--out", "small"]
    measured: list[int] = []
    point = points.measured_point

    def interrupted(*given: Any) -> Any:
        if len(measured) == 4:
            raise KeyboardInterrupt
        measured.append(1)
        return point(*given)

    with monkeypatch.context() as patch:
        patch.setattr(points, "measured_point", interrupted)
        assert main(asked) == 130
    (folder,) = kept.iterdir()
    assert capsys.readouterr().err == (
        f"headlab: stopped; progress is saved; run the same command to resume ({folder})\n"
    )
    before = sorted(folder.glob("*-*.npz"))
    assert len(before) > 4
    times = [path.stat().st_mtime_ns for path in before]

    def full(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("probes.pruning.pruned_run.write_run", full)
        assert main(asked) == 2
    assert [path.stat().st_mtime_ns for path in before] == times
    assert main(asked) == 0
    assert list(kept.iterdir()) == []
