"""artifacts/reversal is what README and lecture say it is, and README's code runs on it."""

import re
from pathlib import Path

import pytest
import torch

from lab.checkpoint import can_resume
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.run_folders import Run, open_run
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.ablation.table import ablation_sweep
from probes.attention.heads import score_heads
from probes.film.frames import film_checkpoints, find_onsets
from probes.labels.head_labels import label_study
from probes.schemas.heads import HEADS
from probes.schemas.labels import EVIDENCE, LABELS
from probes.tables import read_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run() -> Run:
    return open_run(ROOT / "artifacts" / "reversal")


@pytest.fixture(scope="module")
def model(run: Run) -> HookedGPT:
    return HookedGPT.load(run.path)


@pytest.fixture(scope="module")
def unseen() -> Batch:
    return get_task("reversal", length=10).sample(500, seed=0, split="test")


def test_files(run: Run) -> None:
    assert len(run.steps) >= 8
    assert not can_resume(run)
    assert sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file()) < 5_000_000
    for name in run.files:
        run.file(name)


def test_layer_0_reads_the_anti_diagonal_and_layer_1_does_not(run: Run) -> None:
    table = read_table(run.file("heads.parquet"), HEADS)
    scores = table[table["probe"] == "sources"]
    assert (scores[scores["layer"] == 0]["score"] >= 0.7).all()
    assert (scores[scores["layer"] == 1]["score"] <= 0.15).all()
    assert len(scores) == 8


def test_its_heads_are_labelled_by_what_they_do(run: Run, model: HookedGPT, unseen: Batch) -> None:
    """Layer 0 reverses, by position and with every head alike; layer 1 looks nowhere."""
    table = read_table(run.file("labels.parquet"), LABELS)
    first, second = table[table["layer"] == 0], table[table["layer"] == 1]
    assert set(first["label"]) == {"sources"} and set(first["strength"]) == {"strong"}
    assert (first["control"] > 0.9).all()  # with other answers they look there still
    assert first["redundant_with"].tolist() == [
        ",".join(f"L0H{other}" for other in range(4) if other != head) for head in range(4)
    ]
    assert set(second["label"]) <= {"uniform", "broad", "none"}
    again = label_study(model, unseen)
    assert table["label"].tolist() == again.labels["label"].tolist()
    shipped = read_table(run.file("evidence.parquet"), EVIDENCE)
    known = again.evidence["probe"].isin(shipped["probe"])  # there may be newer classes
    effects = again.evidence.loc[known, "effect"]
    assert shipped["effect"].to_numpy() == pytest.approx(effects.to_numpy(), abs=1e-5)


def test_the_film_of_its_training_shows_the_onset(run: Run) -> None:
    onsets = find_onsets(film_checkpoints(run, probes=["sources"]))
    assert onsets[["layer", "head"]].to_numpy().tolist() == [[0, head] for head in range(4)]
    assert onsets["step_before"].unique().tolist() == [40]
    assert onsets["step"].unique().tolist() == [80]
    assert (onsets["score_before"] < 0.15).all() and (onsets["score"] > 0.85).all()


def test_its_table_is_what_its_weights_give(run: Run, model: HookedGPT, unseen: Batch) -> None:
    table = read_table(run.file("heads.parquet"), HEADS)
    again = score_heads(model, unseen, table["probe"].unique())
    assert table["score"].to_numpy() == pytest.approx(again["score"].to_numpy(), abs=1e-5)


def test_layer_0_is_indispensable_and_layer_1_is_free(model: HookedGPT, unseen: Batch) -> None:
    sweep = ablation_sweep(model, unseen, "zero", metrics=["exact_match"])
    whole_layers = sweep[sweep["head"].isna()].set_index("layer")
    assert whole_layers["baseline"].tolist() == [1.0, 1.0]
    assert whole_layers["ablated"].tolist() == [0.0, 1.0]


def test_the_film_of_its_training_starts_blind(run: Run, unseen: Batch) -> None:
    first = HookedGPT.load(run.path, step=0)
    scores = score_heads(first, unseen[:50], ["sources"])
    assert scores["kappa"].abs().max() < 0.05


def test_code_in_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert code is not None
    names: dict = {}
    exec(code[1], names)
    assert names["cache"]["pattern", 0].shape == (64, 4, 22, 22)
    gated = names["model"](names["batch"].tokens, gates=names["without"])
    expected = HeadGates.ablate([(0, 1)], like=names["model"])
    assert torch.equal(gated, names["model"](names["batch"].tokens, gates=expected))
