"""probe, generate, report and runs: what they print is what lab and probes measured."""

import csv
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from lab.hooked_gpt import HookedGPT
from lab.run_folders import Run, open_run
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.attention.heads import score_heads

pytestmark = pytest.mark.usefixtures("tiny_home")
Headlab = Callable[..., tuple[int, str, str]]


def unseen(home: Path, n: int) -> Batch:
    config = open_run(home / "tiny").config
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    return task.sample(n, seed=config.seed, split="test")


def table(out: str) -> dict[str, list[str]]:
    """Return the rows of a printed table by their first cell; cells are two spaces apart."""
    lines = out.split("\u2500\n", 1)[1].split("\n\n")[0].splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_probe_prints_the_scores_of_the_trained_model(headlab: Headlab, tiny_home: Path) -> None:
    code, out, err = headlab("probe", "tiny", "--sequences", "30", "--probes", "sources", "first")
    assert (code, err) == (0, "")
    assert out.startswith("tiny: reversal of length 4, step 60; mean attention")
    assert "30 sequences\n" in out
    frame = score_heads(
        HookedGPT.load(tiny_home / "tiny"), unseen(tiny_home, 30), ["sources", "first"]
    )
    shown = table(out)
    for (layer, head), rows in frame.groupby(["layer", "head"]):
        assert shown[f"L{layer}H{head}"] == [f"{score:.2f}" for score in rows["score"]]
    assert shown["chance"] == [f"{x:.2f}" for x in frame["chance"][:2]]


def test_probe_looks_at_the_checkpoint_that_was_asked_for(headlab: Headlab) -> None:
    first = headlab(
        "probe", "tiny", "--checkpoint", "0", "--sequences", "30", "--probes", "sources"
    )[1]
    last = headlab(
        "probe", "tiny", "--checkpoint", "60", "--sequences", "30", "--probes", "sources"
    )[1]
    assert "step 0;" in first
    assert table(first)["L0H0"] != table(last)["L0H0"]
    trained = headlab("probe", "tiny", "--sequences", "30", "--probes", "sources")[1]
    assert trained == last


def test_probe_writes_what_it_prints(headlab: Headlab, tiny_home: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "deep" / "scores"
    code, out, _ = headlab(
        "probe", "tiny", "--sequences", "30", "--probes", "sources", "--out", str(out_dir)
    )
    assert code == 0
    frame = pd.read_parquet(out_dir / "heads.parquet")
    assert frame.attrs["run"] == "tiny"
    assert frame.attrs["step"] == 60
    weights = (tiny_home / "tiny" / "model.safetensors").read_bytes()
    assert frame.attrs["checkpoint_sha256"] == hashlib.sha256(weights).hexdigest()
    with (out_dir / "heads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == pytest.approx(list(frame["score"]), rel=1e-5)
    assert table(out)["L0H0"][0] == f"{frame['score'][0]:.2f}"


def test_probe_takes_a_folder_for_a_run(headlab: Headlab, tiny_home: Path) -> None:
    named = headlab("probe", "tiny", "--sequences", "30", "--probes", "sources")
    assert (
        headlab("probe", str(tiny_home / "tiny"), "--sequences", "30", "--probes", "sources")
        == named
    )


def test_generate_shows_prompt_answer_and_what_is_right(headlab: Headlab) -> None:
    code, out, err = headlab("generate", "tiny", "abcd", "--ablate", "L0H0,L0H1")
    assert (code, err) == (0, "")
    prompt, expected, answer, without = out.splitlines()
    assert prompt.split() == ["prompt", "abcd"]
    assert expected.split() == ["expected", "dcba"]
    assert answer.split() == ["answer", "dcba", "(right)"]
    assert re.fullmatch(r"without L0H0,L0H1  \S+ \([0-3] of 4 right\)", without)


def test_generate_says_that_a_short_prompt_is_new_ground(headlab: Headlab) -> None:
    out = headlab("generate", "tiny", "ab")[1]
    assert out.endswith("note      trained on 4 symbols only; it never saw inputs of 2\n")


def test_generate_draws_by_seed_and_temperature(headlab: Headlab) -> None:
    hot = ("generate", "tiny", "abcd", "--temperature", "50")
    draws = [headlab(*hot, "--seed", str(seed))[1] for seed in range(4)]
    assert headlab(*hot, "--seed", "0")[1] == draws[0]
    assert len(set(draws)) > 1
    assert "(right)" in headlab(*hot, "--top-k", "1")[1]


def test_report_goes_into_the_run_or_where_it_is_told(
    headlab: Headlab, tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def write_report(run: Run, out_dir: Path | None) -> Path:
        asked.append((run.name, out_dir))
        return run.path if out_dir is None else out_dir

    monkeypatch.setattr("probes.report.folder.write_report", write_report)
    code, out, _ = headlab("report", "raw", "--out", str(tmp_path / "new"))
    assert (code, out) == (0, f"report    {tmp_path}/new/report.html\n")
    code, out, _ = headlab("report", "raw")
    assert (code, out) == (0, f"report    {tiny_home}/raw/report.html\n")
    assert asked == [("raw", tmp_path / "new"), ("raw", None)]


def test_runs_lists_what_a_person_chooses_by(headlab: Headlab) -> None:
    code, out, err = headlab("runs")
    assert (code, err) == (0, "")
    shown = table(out)
    assert list(shown) == ["raw", "tiny"]
    task, steps, exact, size, checkpoints, resumable = shown["tiny"]
    assert (task, steps, checkpoints, resumable) == ("reversal 4", "60", "4", "yes")
    assert float(exact) > 0.9
    assert re.fullmatch(r"\d+\.\d (kB|MB)", size)


def test_runs_tells_stripped_unfinished_and_damaged_runs_apart(
    headlab: Headlab,
    tiny_home: Path,
    tmp_path: Path,
    weights_only: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("bare", "half", "torn"):
        shutil.copytree(tiny_home / "raw", tmp_path / name)
    weights_only(tmp_path / "bare")
    (tmp_path / "half" / "manifest.json").unlink()
    text = (tmp_path / "torn" / "metrics.csv").read_text()
    (tmp_path / "torn" / "metrics.csv").write_text(text.replace("1", "2"))
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path))
    code, out, _ = headlab("runs")
    assert code == 0
    shown = table(out.split("half stopped")[0])
    assert shown["bare"][-1] == "no, weights only"
    assert shown["torn"][2] == "damaged"
    assert out.endswith("half stopped at step 1: headlab train --resume half\n")


def test_runs_says_how_to_make_the_first(headlab: Headlab, new_home: Path) -> None:
    code, out, _ = headlab("runs")
    assert code == 0
    assert out == f"no runs in {new_home} yet; `headlab demo` makes one in about a minute\n"
