"""The film of a run in training: wherever it is killed, it ends as the one that was not."""

import contextlib
import csv
import dataclasses
import shutil
from pathlib import Path

import pandas as pd
import pytest

from lab.config import ModelConfig, TrainConfig
from lab.durable import to_json
from lab.run_folders import WEIGHTS, open_run
from lab.training import train
from probes.film.frames import film_checkpoints
from probes.film.writer import FILM, FRAMES, SETTINGS, FilmSettings, FilmWriter, settings_of
from probes.schemas.film import DYNAMICS
from probes.tables import read_table

CONFIG = TrainConfig(
    task="reversal",
    length=3,
    n_symbols=4,
    model=ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=6, n_ctx=8),
    steps=7,
    batch_size=8,
    warmup_steps=2,
    eval_every=7,
    eval_sequences=16,
    checkpoint_every=3,
    device="cpu",
    precision="fp32",
)
SETTINGS_OF_ALL = FilmSettings(every=2, sequences=16, probes=("sources", "previous"))


def filmed(
    run_dir: Path, *, resume: bool = False, settings: FilmSettings = SETTINGS_OF_ALL
) -> Path:
    """Train or go on to the end, with a film."""
    with FilmWriter(CONFIG, settings, run_dir) as film:
        for record in train(CONFIG, run_dir=run_dir, resume=resume, files=film.files):
            film.see(record)
        film.finish()
    return run_dir


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was filmed from its first to its last step."""
    return filmed(tmp_path_factory.mktemp("home") / "run")


def same_film(run_dir: Path, whole: Path) -> bool:
    names = (FRAMES, FILM, SETTINGS, WEIGHTS)
    run = open_run(run_dir)
    return all(run.file(name).read_bytes() == (whole / name).read_bytes() for name in names)


def test_a_film_has_a_frame_of_the_first_the_last_and_every_second_step(whole: Path) -> None:
    table = read_table(open_run(whole).file(FILM), DYNAMICS)
    assert table["step"].unique().tolist() == [0, 2, 4, 6, 7]
    assert len(table) == 5 * 2 * 2
    assert {k: table.attrs[k] for k in ("run", "seed", "every")} == {
        "run": "run",
        "seed": 0,
        "every": 2,
    }
    with (whole / FRAMES).open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["score"]) for row in read] == table["score"].tolist()
    assert [row["probe"] for row in read] == table["probe"].tolist()
    at_rest = film_checkpoints(open_run(whole), sequences=16, probes=("sources", "previous"))
    for step in (0, 6, 7):  # the model in training is the one of its checkpoint, to the bit
        of_step = [frame[frame["step"] == step].to_numpy().tolist() for frame in (table, at_rest)]
        assert of_step[0] == of_step[1]


def test_a_film_changes_nothing_in_training(whole: Path, tmp_path: Path) -> None:
    *_, record = train(CONFIG, run_dir=tmp_path / "run")
    assert record.final
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()


def test_killed_anywhere_and_gone_on_with_the_film_is_the_same(whole: Path, tmp_path: Path) -> None:
    places: list[Path] = []

    def killed_here(run_dir: Path) -> None:
        place = tmp_path / str(len(places)) / "run"
        places.append(shutil.copytree(run_dir, place))

    run_dir = tmp_path / "whole" / "run"
    with FilmWriter(CONFIG, SETTINGS_OF_ALL, run_dir) as film:
        for record in train(CONFIG, run_dir=run_dir, files=film.files):
            if record.step in (1, 3, 6, 7):
                killed_here(run_dir)  # the checkpoint is written, its frame is not
            film.see(record)
            if record.step in (1, 4, 6):
                killed_here(run_dir)
        killed_here(run_dir)  # the run is sealed, its film is not
        film.finish()
        killed_here(run_dir)
    assert same_film(run_dir, whole)
    for place in places:
        told = settings_of(place)
        assert told == SETTINGS_OF_ALL  # from the first moment on
        assert same_film(filmed(place, resume=True, settings=told), whole), place.parent.name


@pytest.mark.parametrize("left", ["half a line", "half a frame", "other steps", "nothing", "noise"])
def test_a_torn_film_is_mended(left: str, whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with (
        FilmWriter(CONFIG, SETTINGS_OF_ALL, run_dir) as film,
        contextlib.closing(train(CONFIG, run_dir=run_dir, files=film.files)) as records,
    ):
        for record in records:
            film.see(record)
            if record.step == 6:  # closing writes the checkpoint of step 6
                break
    lines = (run_dir / FRAMES).read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 4 * 4
    if left == "half a line":
        (run_dir / FRAMES).write_bytes(b"".join(lines)[:-9])
    elif left == "half a frame":
        (run_dir / FRAMES).write_bytes(b"".join(lines[:-2]))
    elif left == "other steps":  # of an hour that a checkpoint took back
        more = [line.replace(b"6,", b"8,", 1) for line in lines[-4:]]
        (run_dir / FRAMES).write_bytes(b"".join(lines + more))
    elif left == "noise":
        (run_dir / FRAMES).write_bytes(b"".join(lines[:-4]) + b"\xff\x00,\r\n,,,,,,,,,,\n")
    else:
        (run_dir / FRAMES).unlink()
    if left == "nothing":  # steps 2 and 4 have no checkpoint
        with FilmWriter(CONFIG, SETTINGS_OF_ALL, run_dir) as film:
            for record in train(CONFIG, run_dir=run_dir, resume=True):
                film.see(record)
            film.finish()
        assert film.lost == [2, 4]
        table = read_table(open_run(run_dir).file(FILM), DYNAMICS)
        assert table["step"].unique().tolist() == [0, 6, 7]
        return
    assert same_film(filmed(run_dir, resume=True), whole)


def test_a_film_that_is_whole_is_left_alone(whole: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(whole, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    filmed(run_dir, resume=True)
    after = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    assert after == before


def test_without_a_folder_the_film_is_in_memory(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    film = FilmWriter(CONFIG, SETTINGS_OF_ALL)
    for record in train(CONFIG):
        film.see(record)
    film.finish()
    assert list(tmp_path.iterdir()) == []
    table = read_table(open_run(whole).file(FILM), DYNAMICS)
    pd.testing.assert_frame_equal(film.table(), table, check_exact=True)
    assert film.lost == []


@pytest.mark.usefixtures("as_a_user")
def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        FilmSettings(every=0)
    with pytest.raises(ValueError, match="unknown probe 'x'"):
        FilmSettings(every=1, probes=("x",))
    with pytest.raises(ValueError, match=r"probes must be names, got \(\)"):
        FilmSettings(every=1, probes=())
    assert FilmSettings(every=3).due(CONFIG) == [0, 3, 6, 7]
    assert FilmSettings(every=100).due(CONFIG) == [0, 7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"schema_version": 1}, "film.json must say what is filmed, got"),
        ({"schema_version": 1, "every": "x", "sequences": 1, "probes": []}, "must say what is"),
        ({"schema_version": 99}, "schema_version must be at most 1, got 99"),
        (b"\xff", "film.json must be whole JSON"),
    ],
)
def test_damaged_settings_are_one_line(content, message: str, tmp_path: Path) -> None:
    data = content if isinstance(content, bytes) else to_json(content)
    (tmp_path / SETTINGS).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        settings_of(tmp_path)
    assert settings_of(tmp_path / "nowhere") is None


def test_settings_come_back_from_their_file(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS_OF_ALL, every=5)
    (tmp_path / SETTINGS).write_bytes(settings.to_bytes(onsets=[]))
    assert settings_of(tmp_path) == settings
