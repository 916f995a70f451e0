"""Run folders that anyone may have written: each is read, or refused in one line.

No link, name or size in one makes us touch another file, or take much memory.
"""

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from apps.cli import main
from apps.studio.address import all_heads, all_steps
from lab.hooked_gpt import HookedGPT
from lab.manifest import MANIFEST, seal_folder
from lab.run_folders import CONFIG, METRICS, WEIGHTS, list_runs, open_run, update_derived
from lab.training import train

STEP = "checkpoints/step-000001"
DOCUMENTS = (CONFIG, MANIFEST, f"{STEP}/{CONFIG}", f"{STEP}/{MANIFEST}", f"{STEP}/training.json")
FILES = (*DOCUMENTS, WEIGHTS, METRICS, f"{STEP}/{WEIGHTS}", f"{STEP}/optimizer.safetensors")
FOLDERS = ("", "checkpoints", STEP, "figures")
ALL = frozenset(range(11))
"""Numbers of everything that `uses` does."""
SHORT = ("--no-report", "--steps", "1", "--batch-size", "4", "--eval-sequences", "4")
"""Flags with which no run is trained for long, whatever its config.json has become."""
SECRET = b'{"schema_version": 1, "files": {}, "secret": 1}'
OUTSIDE = ("../../outside", "../../outside/secret.json")

places = st.sampled_from(
    [*OUTSIDE, "/etc/passwd", "/", "..", "./x", "a/../../b", "", ".", "\0", "a\0b", "\ud800",
     "\u202e", "x" * 300, "d/" * 3_000, "C:\\x", "%2e%2e/x", "config.json/x", "\u00e9" * 200]
)  # fmt: skip
values = st.one_of(
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats() | st.text(max_size=5) | places,
    st.sampled_from([10**7, 10**9, 2**63, 10**400, [], {}, [[]], [[0], [1]], {"a": 1}, [0.9]]),
)
texts = st.sampled_from(
    [b"9" * 5_000, b"[" * 900 + b"]" * 900, b"1e999", b"-0", b'"\\ud800"', b"{"]
)
part = st.floats(0, 1, exclude_max=True)
some_uses = st.sets(st.integers(0, 10), min_size=1, max_size=3)

breaks = st.one_of(
    st.tuples(st.just("value"), st.sampled_from(DOCUMENTS), part, values),
    st.tuples(st.just("key"), st.sampled_from(DOCUMENTS), part, values),
    st.tuples(st.just("text"), st.sampled_from(DOCUMENTS), part, texts),
    st.tuples(st.just("name"), st.sampled_from([MANIFEST, f"{STEP}/{MANIFEST}"]), places),
    st.tuples(st.just("flip"), st.sampled_from(FILES), part, st.integers(1, 255)),
    st.tuples(st.just("cut"), st.sampled_from(FILES), part),
    st.tuples(st.just("header"), st.sampled_from([WEIGHTS, f"{STEP}/{WEIGHTS}"]), part, values),
    st.tuples(st.just("gone"), st.sampled_from(FILES)),
    st.tuples(st.just("folder"), st.sampled_from(FILES)),
    st.tuples(st.just("pipe"), st.sampled_from(FILES)),
    st.tuples(
        st.just("link"),
        st.sampled_from([*FILES, *FOLDERS[1:], "heads.csv"]),
        st.sampled_from([*OUTSIDE, "outside", "itself", "nowhere", "/", ".."]),
    ),
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON document."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(p for key, v in inner for p in leaves(v, (*path, key)))]


def changed(document: Any, share: float, value: Any, *, key: bool) -> Any:
    """Return a document with one of its values replaced, or with a key removed and one added."""
    paths = leaves(document)
    *before, last = paths[max(1, int(share * len(paths)))] if len(paths) > 1 else ("",)
    inner = document
    for step in before:
        inner = inner[step]
    if key and isinstance(inner, dict):
        inner.pop(last, None)
        inner[str(value)] = value
    else:
        inner[last] = value
    return document


def replace(path: Path, data: bytes) -> None:
    path.unlink()  # it is a hard link to the whole run's
    path.write_bytes(data)


def break_it(run: Path, how: tuple[Any, ...]) -> None:
    """Do one of `breaks` to a run folder."""
    kind, name, *rest = how
    path = run / name
    if kind in ("gone", "folder", "pipe", "link"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            own = {"itself": path.name, "outside": str(run.parent.parent / "outside" / path.name)}
            path.symlink_to(own.get(rest[0], rest[0]))
        return
    if not path.is_file():  # an earlier change left a pipe here, on which reading would wait
        return
    data = path.read_bytes()
    if kind == "cut":
        replace(path, data[: int(rest[0] * len(data))])
    elif kind == "flip":
        at = int(rest[0] * len(data))
        replace(path, data[:at] + bytes([data[at] ^ rest[1]]) + data[at + 1 :])
    elif kind == "header":
        length = int.from_bytes(data[:8], "little")
        header = changed(json.loads(data[8 : 8 + length]), rest[0], rest[1], key=False)
        text = json.dumps(header).encode()
        replace(path, len(text).to_bytes(8, "little") + text + data[8 + length :])
    elif kind == "text":
        tokens = list(re.finditer(rb'"[^"]*"|[0-9.]+', data))
        token = tokens[int(rest[0] * len(tokens))]
        replace(path, data[: token.start()] + rest[1] + data[token.end() :])
    elif kind == "name":
        document = json.loads(data)
        document["files"] = {rest[0]: next(iter(document["files"].values()))} | document["files"]
        replace(path, json.dumps(document).encode())
    else:
        document = changed(json.loads(data), *rest, key=kind == "key")
        replace(path, json.dumps(document).encode())


@pytest.fixture(scope="module")
def uses(
    small_config: Any, whole_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Callable[[Path], object], ...]:
    """Everything that reads a run or writes into one, tried once so that all of it is imported."""

    def every_file(run_dir: Path) -> None:
        run = open_run(run_dir)
        for name in run.files:
            run.file(name)

    def studio(run_dir: Path) -> None:
        for run in list_runs(run_dir.parent):
            assert all_steps(run) == [] or all_heads(run) is not None

    def command(*arguments: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main(arguments) in (0, 2)

    def go_on(run_dir: Path) -> None:
        with contextlib.closing(train(small_config, run_dir=run_dir, resume=True)) as records:
            next(records)

    all_uses = (
        lambda run_dir: open_run("tiny", run_dir.parent),
        lambda run_dir: open_run(run_dir, unfinished=True).metrics(),
        lambda run_dir: HookedGPT.load(run_dir),
        lambda run_dir: HookedGPT.load(run_dir, step=1),
        lambda run_dir: HookedGPT.load(open_run(run_dir, unfinished=True).checkpoint(0)),
        every_file,
        studio,
        lambda run_dir: command("runs"),
        lambda run_dir: command("train", "--resume", str(run_dir), *SHORT),
        lambda run_dir: update_derived(run_dir, {"heads.csv": b"new", "figures/heads.png": b"new"}),
        go_on,
    )
    run_dir = shutil.copytree(whole_run, tmp_path_factory.mktemp("first") / "tiny")
    for use in all_uses:
        use(run_dir)
    return all_uses


@settings(
    max_examples=100,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a run is small enough to look at
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(breaks, max_size=3), st.booleans(), st.sets(st.integers(0, 10), min_size=1, max_size=3)
)
@example([("link", "figures", "outside")], True, ALL)
@example([("link", "checkpoints", "outside")], False, ALL)
@example([("link", CONFIG, "../../outside/secret.json"), ("gone", MANIFEST)], False, ALL)
@example([("link", METRICS, "../../outside/secret.json"), ("gone", MANIFEST)], False, ALL)
@example([("link", MANIFEST, "../../outside/secret.json")], False, ALL)
@example([("name", MANIFEST, "x" * 300)], False, ALL)
@example([("pipe", CONFIG)], True, ALL)
@example([("link", STEP, "../../outside")], False, ALL)
def test_a_broken_run_is_refused_and_nothing_else_is_touched(
    whole_run: Path,
    uses: tuple[Callable[[Path], object], ...],
    only_in: Callable[[Path], contextlib.AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
    changes: list[tuple[Any, ...]],
    honest: bool,
    chosen: set[int],
) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        outside, home = Path(place) / "outside", Path(place) / "home"
        shutil.copytree(whole_run, home / "tiny", copy_function=os.link)
        shutil.copytree(whole_run / "checkpoints", outside / "checkpoints", copy_function=os.link)
        shutil.copytree(whole_run / "figures", outside / "figures", copy_function=os.link)
        (outside / "secret.json").write_bytes(SECRET)
        monkeypatch.setenv("HEADLAB_HOME", str(home))
        for change in changes:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                break_it(home / "tiny", change)  # two changes may exclude each other
        if honest:  # manifests that vouch for what was done
            for folder in (home / "tiny" / STEP, home / "tiny"):
                with contextlib.suppress(OSError):
                    seal_folder(folder)
        before = {path: path.lstat().st_mtime_ns for path in outside.rglob("*")}
        for use in (uses[index] for index in sorted(chosen)):
            with only_in(home):
                try:
                    use(home / "tiny")
                except (ValueError, OSError) as error:
                    line = str(error)
                    assert len(line) < 2_000 + 2 * len(place)
        assert {path: path.lstat().st_mtime_ns for path in outside.rglob("*")} == before
        assert (outside / "secret.json").read_bytes() == SECRET
