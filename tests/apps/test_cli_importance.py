"""`headlab importance`: what it prints is what `probes` measures, beside exact ablations."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from lab.hooked_gpt import HookedGPT
from lab.tasks.registry import get_task
from probes.first_order.agreement import first_order_study
from probes.first_order.importance import head_importance
from probes.tables import json_rows

pytestmark = pytest.mark.usefixtures("tiny_home")
Headlab = Callable[..., tuple[int, str, str]]

FEW = ("--sequences", "50")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is interrupted out of the cache of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def table(out: str, nth: int = 0) -> list[list[str]]:
    """Return the cells of a printed table; they are two spaces apart."""
    lines = out.split("\u2500\n")[1 + nth].split("\n\n")[0].splitlines()
    return [re.split(r"\s{2,}", line.strip()) for line in lines]


def test_estimates_stand_beside_exact_ablations(
    headlab: Headlab, tiny_home: Path, tmp_path: Path
) -> None:
    asked = ("importance", "tiny", *FEW, "--metric", "loss", "--out", str(tmp_path / "out"))
    code, out, err = headlab(*asked)
    assert (code, err) == (0, "")
    model = HookedGPT.load(tiny_home / "tiny")
    batch = get_task("reversal", length=4, n_symbols=8).sample(50, seed=0, split="test")
    study = first_order_study(model, batch)
    rows, shown = json_rows(study.heads), table(out)
    assert [cells[0] for cells in shown] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    for row, cells in zip(rows, shown, strict=True):
        assert cells[1][0] == ("-" if row["delta"] < 0 else "+")
        assert float(cells[1]) == pytest.approx(row["delta"], rel=0.05)
        assert cells[3:5] == [f"{row['estimate']:.3g}", f"{row['importance']:.3g}"]
    for row, cells in zip(json_rows(study.agreement), table(out, 1), strict=True):
        assert cells[0] == row["estimator"]
        assert cells[2] == f"{row['spearman']:+.2f}"
        assert cells[4] == f"{row['shared']} of {row['top']}"
    for name in ("importance", "first_order", "agreement"):
        kept = pd.read_parquet(tmp_path / "out" / f"{name}.parquet")
        assert kept.attrs["run"] == "tiny"
        told = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert told["rows"] == json_rows(kept)


def test_a_preview_takes_no_ablation_and_what_it_was_asked_for(
    headlab: Headlab, tiny_home: Path
) -> None:
    asked = ("--no-exact", "--reduce", "token", "--normalise", "layer")
    code, out, err = headlab("importance", "tiny", *FEW, *asked)
    assert (code, err) == (0, "")
    assert "exact" not in out
    metric = re.search(r"^metric +(\w+)$", out, re.M)
    assert metric is not None
    model = HookedGPT.load(tiny_home / "tiny")
    batch = get_task("reversal", length=4, n_symbols=8).sample(50, seed=0, split="test")
    frame = head_importance(model, batch, "token", "layer", metric[1])
    assert [cells[1] for cells in table(out)] == [f"{x:.3g}" for x in frame["importance"]]


def test_one_sequence_has_no_interval_and_what_was_asked_for_is_compared(headlab: Headlab) -> None:
    asked = ("--sequences", "1", "--reduce", "batch", "--normalise", "param")
    code, out, _ = headlab("importance", "tiny", *asked)
    assert code == 0
    assert {cells[-1] for cells in table(out)} == {"-"}
    assert "importance by batch / param" in [cells[0] for cells in table(out, 1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tiny --metric exact_match", "unknown --metric 'exact_match'; choose from auto, loss, m"),
        ("tiny --reduce mean", "unknown --reduce 'mean'; choose from batch, example, token"),
        ("tiny --heads L0H0", "unknown option '--heads'; `headlab importance --help` lists them"),
    ],
)
def test_a_wrong_request_is_one_line(line: str, message: str, headlab: Headlab) -> None:
    code, out, err = headlab("importance", *line.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"headlab: error: {message}")
    assert err.count("\n") == 1
