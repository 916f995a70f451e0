"""`headlab feeders`: it prints what `probes.feeders.scores` measures, on a planted circuit."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from lab.hooked_gpt import HookedGPT
from probes.feeders.passes_without_heads import SomeRuns
from probes.feeders.scores import feeder_scores
from probes.planted import PlantedHead, plant
from probes.reading.inputs import repeated_pair
from probes.tables import json_rows

pytestmark = pytest.mark.usefixtures("tiny_home")
Headlab = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is interrupted out of the cache of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def circuit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model whose induction head, L1H0, lives on the previous-token head L0H0."""
    writer = PlantedHead(kind="previous", beta=40.0, writes="tokens")
    idle = PlantedHead(kind="first", beta=12.0)
    induction = PlantedHead(kind="induction", beta=10.0, writes="copy")
    layers = [(writer, idle, idle, idle), (induction, idle, idle, idle)]
    folder = tmp_path_factory.mktemp("models") / "circuit"
    plant(layers, d_vocab=40, n_ctx=25).model.save(folder)
    return folder


def cells(out: str) -> list[list[str]]:
    """Return the cells of the printed table; they are two spaces apart."""
    lines = out.split("\u2500\n", 1)[1].split("\n\n")[0].splitlines()
    return [re.split(r"\s{2,}", line.strip()) for line in lines]


def test_who_feeds_whom_is_said_and_shown(headlab: Headlab, circuit: Path) -> None:
    code, out, err = headlab("feeders", str(circuit), "--frozen")
    assert (code, err) == (0, "")
    assert "1 head watched; L0H0 feeds L1H0\n" in out
    model = HookedGPT.load(circuit)
    pair = repeated_pair(model, n_sequences=8, longest=40)
    assert pair.description in out
    rows = json_rows(feeder_scores(model, pair, frozen=True))
    best = next(row for row in rows if row["heads"] == "L0H0")
    shown = cells(out)
    assert len(shown) == 3
    assert shown[0] == [
        "L1H0",
        "L0H0",
        f"{best['previous']:.2f}",
        f"{best['baseline']:.2f}, {best['ablated']:.2f}",
        f"{best['drop']:+.2f}",
        f"{best['ci_low']:+.2f} to {best['ci_high']:+.2f}",
        f"{best['control']:+.2f}",
        f"{best['loss_delta']:+.2f}",
        f"{best['loss_control']:+.2f}",
        f"{best['frozen_loss_delta']:+.2f}",
        f"{best['k_composition']:+.2f}",
        "yes",
    ]
    assert best["loss_delta"] > 0.5  # the circuit is real
    assert "1 more row with --all-heads" in out
    assert len(cells(headlab("feeders", str(circuit), "--all-heads")[1])) == 4


def test_targets_and_heads_can_be_named_and_all_is_written(
    headlab: Headlab, circuit: Path, tmp_path: Path
) -> None:
    asked = ("--targets", "L1H0", "--heads", "L0H1", "L0H2", "--mode", "mean")
    code, out, err = headlab("feeders", str(circuit), *asked, "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert "1 head watched; no single head feeds one measurably\n" in out  # no row of several
    kept = pd.read_parquet(tmp_path / "out" / "feeders.parquet")
    assert kept["heads"].tolist() == ["L0H1", "L0H2"]
    assert kept["mode"].unique().tolist() == ["mean"]
    told = json.loads((tmp_path / "out" / "feeders.json").read_text())
    assert told["rows"] == json_rows(kept)
    assert told["provenance"]["scored"].startswith("11 rows each")


def test_what_cannot_be_told_is_no_no(headlab: Headlab, circuit: Path) -> None:
    code, out, err = headlab("feeders", str(circuit), "--sequences", "1")  # no interval
    assert (code, err) == (0, "")
    assert cells(out)[0][-1] == "cannot tell"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tiny", "targets must be induction heads, of an induction score of 0.4 or more above"),
        ("CIRCUIT --targets L9H0", "unknown head 'L9H0'; choose from L0H0, L0H1"),
        ("CIRCUIT --heads L1H1", "feeders must be in layers before their target, got L1H1"),
        ("CIRCUIT --targets", "--targets needs at least one value, got none; write --targets L5H1"),
        ("CIRCUIT --text x", "unknown option '--text'; `headlab feeders --help` lists them"),
    ],
)
def test_a_wrong_request_is_one_line(
    line: str, message: str, headlab: Headlab, circuit: Path
) -> None:
    code, out, err = headlab("feeders", *line.replace("CIRCUIT", str(circuit)).split())
    assert (code, out) == (2, "")
    assert "[(" not in err  # words of a program
    assert err.startswith(f"headlab: error: {message}")
    assert err.count("\n") == 1


def test_what_is_interrupted_is_kept(
    headlab: Headlab, circuit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "cache" / "headlab" / "sweeps"
    whole = headlab("feeders", str(circuit))
    assert list(kept.iterdir()) == []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SomeRuns, "measured", interrupt)
        code, out, err = headlab("feeders", str(circuit))
    (folder,) = kept.iterdir()
    assert (code, out) == (130, "")
    assert err.endswith(f"run the same command to resume ({folder})\n")
    assert headlab("feeders", str(circuit)) == whole
    assert list(kept.iterdir()) == []
