"""Run folders as their readers meet them: complete, verified, and clear where they are not."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.manifest import MANIFEST, read_manifest
from lab.run_folders import (
    CONFIG,
    METRICS,
    WEIGHTS,
    check_run_name,
    list_runs,
    open_run,
    read_metrics,
    runs_home,
    update_derived,
)


@pytest.fixture
def run_dir(finished_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished_run, tmp_path / "home" / "tiny")


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_reading_runs_needs_no_torch():
    code = (
        "import sys, lab.run_folders, lab.presets\n"
        "lab.run_folders.list_runs(); lab.presets.get_preset('copy')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_read_as_it_was_written(run_dir, tiny_config):
    run = open_run("tiny", home=run_dir.parent)
    assert (run.name, run.config, run.path) == ("tiny", tiny_config, run_dir)
    assert run.steps == (0, 2, 4, 6)
    assert run.checkpoint() == run.checkpoint(6) == run_dir / "checkpoints/step-000006"
    assert run.info["seed"] == 0 and run.info["threads"] == 1 and "torch" in run.info["versions"]
    rows = run.metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [not math.isnan(row["exact_match"]) for row in rows] == [False, False, True] * 2
    assert open_run(run_dir) == open_run(str(run_dir)) == run
    assert set(run.files) == {
        path.relative_to(run_dir).as_posix()
        for path in run_dir.rglob("*")
        if path.is_file() and path != run_dir / MANIFEST
    }


def test_home_is_the_environments(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADLAB_HOME", raising=False)
    assert runs_home() == Path("artifacts")
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path))
    assert runs_home() == tmp_path and list_runs() == []


def test_only_complete_runs_are_listed(run_dir, caplog):
    home = run_dir.parent
    for name in ("unfinished", "cut", ".tiny.tmp-1-ab", "newer"):
        shutil.copytree(run_dir, home / name)
    (home / "unfinished" / MANIFEST).unlink()
    (home / "empty").mkdir()
    (home / "a file").write_text("")
    weights = home / "cut" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    edit_json(home / "newer" / MANIFEST, schema_version=2)
    assert [run.name for run in list_runs(home)] == ["tiny"]
    assert "run cut is not listed: model.safetensors must have" in caplog.text
    assert "run newer is not listed: schema_version must be at most 1, got 2" in caplog.text


def test_an_unknown_run_gets_a_suggestion(run_dir):
    for name in ("tini", "../home/tiny/..", ".tiny", "", "ti\0ny", "a" * 300):
        if "/" in name:
            continue
        with pytest.raises(ValueError, match=r"^unknown run .*; choose from tiny"):
            open_run(name, home=run_dir.parent)
    with pytest.raises(ValueError, match=r"\(did you mean 'tiny'\?\)$"):
        open_run("tini", home=run_dir.parent)
    with pytest.raises(ValueError, match="unknown run 'tiny'; there is none yet"):
        open_run("tiny", home=run_dir / "nowhere")
    with pytest.raises(
        ValueError, match=r"run must be a folder with a config\.json, got '/nowhere"
    ):
        open_run("/nowhere/run")


def test_an_unfinished_run_says_resume(run_dir):
    (run_dir / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"must be complete, got 'tiny', .* end with --resume$"):
        open_run("tiny", home=run_dir.parent)
    assert open_run("tiny", home=run_dir.parent, unfinished=True).steps == (0, 2, 4, 6)


def test_a_missing_step_is_named(run_dir):
    with pytest.raises(ValueError, match=r"one with a checkpoint \(0, 2, 4, 6\), got 3"):
        open_run(run_dir).checkpoint(3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "must be there, got no such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), r"must have \d+ bytes, got \d+"),
        (
            lambda path: path.write_bytes(
                bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
            ),
            r"must have the sha256 \w{12}\.\.\., got \w{12}\.\.\. in .*, so it was changed",
        ),
    ],
)
def test_a_damaged_file_is_found_when_it_is_read(run_dir, damage, message):
    damage(run_dir / METRICS)
    damage(run_dir / "checkpoints/step-000002" / WEIGHTS)
    run = open_run(run_dir)
    for name in (METRICS, "checkpoints/step-000002/model.safetensors"):
        with pytest.raises(
            ValueError, match=rf"{name} {message}.*; restore it from a copy or train"
        ):
            run.file(name)
    with pytest.raises(ValueError, match="unknown file of run 'tiny' 'metrics'"):
        run.file("metrics")
    damage(run_dir / CONFIG)
    with pytest.raises(ValueError, match=rf"config\.json(, got| {message})"):
        open_run(run_dir)


def test_config_of_another_version_or_author_is_refused(run_dir):
    (run_dir / MANIFEST).unlink()  # else the changed sha256 is what is seen first
    train = json.loads((run_dir / CONFIG).read_text())["train"]
    for changes, message in (
        ({"schema_version": 2}, r"at most 1, got 2 in .*; update headlab to read it"),
        ({"schema_version": "1"}, r"a whole number of at least 1, got '1'"),
        ({"schema_version": 1, "train": train | {"stepz": 1}}, r"json: unknown TrainConfig key"),
        ({"train": train | {"model": train["model"] | {"n_layers": 0}}}, r"json: n_layers must be"),
        ({"train": {}}, r"json: TrainConfig must have the key 'task', got none"),
    ):
        edit_json(run_dir / CONFIG, **changes)
        with pytest.raises(ValueError, match=message):
            open_run(run_dir, unfinished=True)


@pytest.mark.parametrize(
    "files",
    [
        {"../other": {"sha256": "0", "bytes": 1}},
        {"/etc/passwd": {"sha256": "0", "bytes": 1}},
        {"a": {"sha256": 0, "bytes": 1}},
        {"a": [1]},
        [],
        {},
        None,
    ],
)
def test_a_manifest_cannot_lead_outside(run_dir, files):
    edit_json(run_dir / MANIFEST, files=files)
    with pytest.raises(ValueError, match=r"^manifest\.json must list .*; restore the folder"):
        open_run(run_dir)
    assert list_runs(run_dir.parent) == []


def test_a_link_does_not_lead_outside(run_dir):
    run = open_run(run_dir)
    shutil.move(run_dir / METRICS, run_dir.parent / "elsewhere")
    (run_dir / METRICS).symlink_to(run_dir.parent / "elsewhere")
    with pytest.raises(ValueError, match=r"metrics\.csv must be there, got no such file"):
        run.file(METRICS)


def test_metrics_end_at_a_torn_row(run_dir):
    whole = (run_dir / METRICS).read_text()
    for cut in range(1, 40):
        (run_dir / METRICS).write_text(whole[:-cut])
        assert [row["step"] for row in read_metrics(run_dir / METRICS)] == [1, 2, 3, 4, 5]


def test_run_names_are_safe_folder_names():
    for name in ("reversal", "a.b-c_D9"):
        check_run_name(name)
    for name in ("", ".a", "-rf", "a b", "a/b", "..", "\u00e9", "a" * 101, "a\n"):
        with pytest.raises(ValueError, match="run name must be 1 to 100 letters, digits"):
            check_run_name(name)


def test_derived_files_are_verified_and_replaced(run_dir, tmp_path):
    (tmp_path / "plot.png").write_bytes(b"png")
    update_derived(run_dir, {"heads.csv": b"one", "figures/plot.png": tmp_path / "plot.png"})
    update_derived(run_dir, {"heads.csv": b"other"})
    run = open_run(run_dir)
    assert run.file("heads.csv").read_bytes() == b"other"
    assert run.file("figures/plot.png").read_bytes() == b"png"
    for name in (WEIGHTS, CONFIG, MANIFEST, "checkpoints/x", "../x", "/x", ".x", "a/.x", ""):
        with pytest.raises(ValueError, match="derived file must have a free name in the run"):
            update_derived(run_dir, {name: b""})


def test_new_derived_files_do_not_vouch_for_damage(run_dir):
    weights = run_dir / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    update_derived(run_dir, {"heads.csv": b"one"})
    with pytest.raises(ValueError, match=r"model\.safetensors must have the sha256"):
        open_run(run_dir).file(WEIGHTS)


def test_killed_while_derived_files_are_written_a_run_still_verifies(run_dir, dies_at_sync):
    update_derived(run_dir, {"a": b"old a", "b": b"old b"})
    died, n = True, -1
    while died:
        n += 1
        died = dies_at_sync(lambda: update_derived(run_dir, {"a": b"new!!", "b": b"new b"}), n)
        run = open_run(run_dir)
        for name in read_manifest(run_dir):
            run.file(name)
        assert [run.name for run in list_runs(run_dir.parent)] == ["tiny"]
        if died:
            update_derived(run_dir, {"a": b"old a", "b": b"old b"})
    assert n > 5
    assert open_run(run_dir).file("a").read_bytes() == b"new!!"
    assert open_run(run_dir).file("b").read_bytes() == b"new b"


def test_a_full_disk_while_derived_files_are_written_loses_nothing(run_dir, full_disk):
    with full_disk(20_000), pytest.raises(OSError, match="on a disk with room"):
        update_derived(run_dir, {"heads.csv": b"x" * 30_000})
    run = open_run(run_dir)
    assert run.steps == (0, 2, 4, 6) and run.file(WEIGHTS)
