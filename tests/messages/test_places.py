"""Places that cannot be written or fill up midway: one line, and what was complete stays.

Root may write where permissions forbid it, so the places are file systems of their own.
"""

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from apps.cli import main
from apps.commands import probe
from lab.run_folders import list_runs, open_run
from probes import plots
from probes.report import folder as report

LAST = "checkpoints/step-000004"
READ_ONLY = (
    "place for output must be writable, got 'Read-only file system' at '{}'; change its "
    "permissions or choose another place, then try again (what was complete is kept)"
)
FULL = (
    "place for output must be on a disk with room, got '{}' at '{}'; free some space or choose "
    "another place, then try again (what was complete is kept)"
)


@pytest.fixture(scope="module", autouse=True)
def quick_reports() -> Iterator[None]:
    """Reports of empty figures over numbers that are measured once: what is written counts here."""
    read = ("labels", "heads", "stripes", "spectrum", "attention", "entropy", "ablation")
    names = (*read, "joint", "shapley", "first_order", "pruning")
    with pytest.MonkeyPatch.context() as patch:
        drawn = {name: (plots.new_figure(1.0, 1.0), pd.DataFrame()) for name in names}
        patch.setattr(report, "draw_figures", lambda *_: drawn)
        measured, measure = [], report.measure

        def measure_once(subject: report.Subject) -> report.Findings:
            if not measured:
                measured.append(measure(subject))
            return measured[0]

        patch.setattr(report, "measure", measure_once)
        yield


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def intact(home: Path) -> bool:
    """Tell whether the run is listed, every file is what was written, and nothing lies about."""
    runs = list_runs(home)
    for run in runs:
        for name in run.files:
            run.file(name)
    leftovers = [path for path in home.rglob("*") if ".tmp-" in path.name]
    return "tiny" in [run.name for run in runs] and leftovers == []


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond some bytes, as on a disk that fills up midway."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def read_only_home(
    home: Path, mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    place = mounted("mounted", "size=2m")
    shutil.copytree(home, place / "home")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    monkeypatch.setenv("HEADLAB_HOME", str(place / "home"))
    return place / "home"


def test_a_place_that_is_read_only_is_named_by_every_command(
    read_only_home: Path, small: list[str], refusal: Callable[..., str]
) -> None:
    before = files_of(read_only_home)
    run = "<tmp>/mounted/home/tiny"
    for line, place in (
        (f"train reversal --name new {' '.join(small)}", "<tmp>/mounted/home/new"),
        ("report tiny", f"{run}/manifest.json"),
        (f"report tiny --out {read_only_home}/out", "<tmp>/mounted/home/out"),
        (f"probe tiny --sequences 2 --out {read_only_home}/out", "<tmp>/mounted/home/out"),
        ("prune tiny --heads L0H0 --sequences 2", "<tmp>/mounted/home/tiny-pruned"),
    ):
        assert refusal(*line.split(), remarks=True) == READ_ONLY.format(place)
    assert files_of(read_only_home) == before


def test_reading_a_place_that_is_read_only_works(
    read_only_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("runs", "probe tiny --sequences 2", "generate tiny abc", "ablate tiny",
                 "train --resume tiny --no-report"):  # fmt: skip
        assert main(line.split()) == 0, (line, capsys.readouterr().err)


def test_a_stopped_run_on_a_place_that_became_read_only_is_left_as_it_is(
    home: Path,
    mounted: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    place = mounted("mounted", "size=2m")
    run = shutil.copytree(home / "tiny", place / "tiny")
    for name in ("manifest.json", "model.safetensors"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints/step-000004")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    monkeypatch.setenv("HEADLAB_HOME", str(place))
    before = files_of(run)
    message = refusal("train", "--resume", "tiny", "--no-report", remarks=True)
    assert message == READ_ONLY.format("<tmp>/mounted/tiny/metrics.csv")
    assert files_of(run) == before


def test_a_disk_that_fills_up_in_training_keeps_what_was_complete(
    home: Path,
    mounted: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    small: list[str],
    refusal: Callable[..., str],
) -> None:
    """The run and its first checkpoints fit on the disk, a later one does not."""
    place = mounted("mounted", "size=200k")
    monkeypatch.setenv("HEADLAB_HOME", str(place))
    flags = [*small, "--steps", "40"]
    message = refusal("train", "reversal", "--name", "new", *flags, remarks=True)
    run = open_run("new", unfinished=True)
    step = run.steps[-1]
    assert 0 < step < 40 and step % 2 == 0
    assert message.startswith(FULL.split("'{}'")[0] + "'No space left on device' at '<tmp>/mounted")
    assert message.endswith("then try again (what was complete is kept)")
    assert list_runs() == [] and not [p for p in place.rglob("*") if ".tmp-" in p.name]
    # With room again it ends as a run that was never stopped.
    shutil.copytree(place / "new", home / "new")
    monkeypatch.setenv("HEADLAB_HOME", str(home))
    assert main(["train", "--resume", "new", "--no-report"]) == 0
    assert main(["train", "reversal", "--name", "straight", *flags]) == 0
    one, other = (open_run(name).file("model.safetensors") for name in ("new", "straight"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("line", "size", "place"),
    [
        ("train reversal --name new SMALL", 1_000, "<tmp>/home/new"),
        ("train reversal --name new SMALL", 9_000, "<tmp>/home/new/checkpoints/step-000000"),
        ("report tiny", 2_000, "<tmp>/home/tiny/manifest.json"),
        ("report tiny", 5_000, "<tmp>/home/tiny/heads.parquet"),
        ("report tiny --out OUT", 5_000, "<tmp>/out/heads.parquet"),
        ("probe tiny --sequences 2 --out NEW/IN", 1_000, "<tmp>/new/in/labels.csv"),
        ("probe tiny --sequences 2 --out NEW/IN", 9_000, "<tmp>/new/in/labels.parquet"),
        (
            "prune tiny --heads L0H0 --sequences 2",
            3_000,
            "<tmp>/home/tiny-pruned/checkpoints/step-000004",
        ),
    ],
)
def test_a_file_that_does_not_fit_leaves_no_half_and_no_old_one_changed(
    line: str,
    size: int,
    place: str,
    home: Path,
    tmp_path: Path,
    small: list[str],
    refusal: Callable[..., str],
) -> None:
    assert main(["report", "tiny", "--out", str(tmp_path / "out")]) == 0  # the old one
    before = files_of(home), files_of(tmp_path / "out")
    line = line.replace("OUT", str(tmp_path / "out")).replace("NEW/IN", str(tmp_path / "new/in"))
    words = line.replace("SMALL", " ".join(small)).split()
    with files_of_at_most(size):
        message = refusal(*words, remarks=True)
    assert message == FULL.format("File too large", place)
    assert intact(home)
    after = files_of(home), files_of(tmp_path / "out")
    assert before[0].items() - {("tiny/manifest.json", before[0]["tiny/manifest.json"])} <= (
        after[0].items()
    )
    assert set(after[1]) == set(before[1])
    assert [path.name for path in home.iterdir()] == ["tiny"]
    assert not (tmp_path / "new").exists()


def test_a_place_for_tables_is_checked_before_the_work(
    home: Path, tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be written is refused before a model is loaded, and nothing is left there."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("worked before it looked at the place")

    monkeypatch.setattr(probe, "open_subject", never)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "labels.csv").write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for place, message in (
        ("", "--out must be the name of a folder, got ''; write --out DIR"),
        ("a\0b", "--out must be the name of a folder, got 'a\\x00b'; write --out DIR"),
        ("file", "--out must be a folder, got the file 'file'; choose another"),
        ("file/in", "place for output must be writable, got 'File exists' at 'file/in'; cho"),
        ("n" * 300, "place for output must be writable, got 'File name too long' at 'nnn"),
        ("new/" + "n" * 300, "place for output must be writable, got 'File name too long' at 'new"),
        ("full", "--out must be a new or an empty folder, got 'full', which holds files; "),
        (".", "--out must be a new or an empty folder, got '.', which holds files; "),
        ("home", "--out must not be the home of all runs, got 'home'; "),
        ("home/tiny/new", "--out must not lie in a run or a saved model, got 'home/tiny/new' wi"),
        ("home/tiny/checkpoints", "--out must not lie in a run or a saved model, got 'home/tiny"),
        (f"home/tiny/{LAST}/x/y", "--out must not lie in a run or a saved model, got 'home/tiny"),
    ):
        assert refusal("probe", "tiny", "--out", place).startswith(message)
        if place not in ("full", "."):  # a report may be written again
            assert refusal("report", "tiny", "--out", place).startswith(message)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_home_that_is_a_file_is_named_by_every_command(
    tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    for home in ("file", "file/in/it"):
        monkeypatch.setenv("HEADLAB_HOME", str(tmp_path / home))
        for line in ("runs", "probe tiny", "train reversal", "train --resume tiny", "demo",
                     "app --run tiny", "prune tiny --heads L0H0"):  # fmt: skip
            assert refusal(*line.split()) == (
                f"home of runs must be a folder, got '<tmp>/{home}', where <tmp>/file is a file; "
                "let HEADLAB_HOME name a folder"
            )
    assert (tmp_path / "file").read_text() == "mine"
