"""headlab train and demo: what is trained, how it is shown, stopped and gone on with."""

import dataclasses
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.commands import demo
from apps.commands.train import read_form
from apps.terminal import training_lines
from lab.presets import get_preset
from lab.run_folders import open_run
from probes.schemas.film import DYNAMICS
from probes.tables import read_table

Headlab = Callable[..., tuple[int, str, str]]

TINY = shlex.split(
    """--length 3 --n-symbols 5 --model.n-heads 2 --model.d-model 8 --steps 4 --batch-size 8
--warmup-steps 1 --eval-every 1 --eval-sequences 16 --checkpoint-every 2 --device cpu"""
)
"""Flags of a training that takes a moment."""


def config_of(*arguments: str) -> object:
    return read_form(arguments)[0].config


@pytest.mark.parametrize("name", ["reversal", "copy", "induction"])
def test_a_preset_alone_is_trained_as_it_is(name: str) -> None:
    assert config_of(name) == get_preset(name)


def test_flags_change_parts_of_the_preset() -> None:
    preset = get_preset("copy")
    expected = dataclasses.replace(
        preset, steps=7, betas=(0.8, 0.9), model=dataclasses.replace(preset.model, d_model=32)
    )
    arguments = ("--steps", "7", "copy", "--betas", "0.8", "0.9", "--model.d-model", "32")
    assert config_of(*arguments) == expected


def test_seed_is_for_data_and_weights_unless_the_weights_have_their_own() -> None:
    both = config_of("reversal", "--seed", "3")
    assert (both.seed, both.model.seed) == (3, 3)
    apart = config_of("reversal", "--seed=3", "--model.seed", "0")
    assert (apart.seed, apart.model.seed) == (3, 0)


def test_the_model_makes_room_for_the_task_unless_told_otherwise() -> None:
    longer = config_of("reversal", "--length", "20", "--n-symbols", "30")
    assert (longer.model.d_vocab, longer.model.n_ctx) == (32, 42)
    shorter = config_of("reversal", "--length", "4")
    assert shorter.model.n_ctx == get_preset("reversal").model.n_ctx
    given = config_of("reversal", "--length", "4", "--model.n_ctx", "64")
    assert given.model.n_ctx == 64
    assert config_of("reversal", "--task", "induction", "--length", "26").model.n_ctx == 53


def test_a_run_is_named_by_its_preset_and_never_written_over(new_home: Path) -> None:
    assert read_form(["copy"])[1] == new_home / "copy"
    (new_home / "copy").mkdir(parents=True)
    (new_home / "copy-2").mkdir()
    assert read_form(["copy"])[1] == new_home / "copy-3"
    assert read_form(["copy", "--name", "mine"])[1] == new_home / "mine"


def test_several_processes_need_a_name(monkeypatch: pytest.MonkeyPatch, headlab: Headlab) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = headlab("train", "copy")
    assert code == 2
    assert err == (
        "headlab: error: --name must be given when several processes train, got none; "
        "add --name RUN\n"
    )


def test_train_shows_how_it_goes_and_what_is_next(headlab: Headlab, new_home: Path) -> None:
    code, out, err = headlab("train", "copy", *TINY, "--no-report")
    assert code == 0
    told = err.splitlines()
    assert told[0] == (
        f"training copy of length 3 into {new_home}/copy: 2 layers x 2 heads, d_model 8, "
        "4 steps of 8 sequences"
    )
    rows = open_run("copy").metrics()
    assert told[1:] == [
        f"step {row['step']} of 4  loss {row['loss']:.4f}  exact-match {row['exact_match']:.3f}"
        for row in rows
    ]
    lines = out.splitlines()
    parameters = sum(p.numel() for p in load(new_home / "copy").parameters())
    assert lines[0] == f"run       {new_home}/copy ({parameters:,} parameters)"
    assert re.fullmatch(r"trained   4 steps in \d+ s on cpu", lines[1])
    assert lines[2] == (
        f"reached   exact-match {rows[-1]['exact_match']:.3f}, token accuracy "
        f"{rows[-1]['token_accuracy']:.3f}, loss {rows[-1]['eval_loss']:.4f} nats "
        "on 16 unseen sequences"
    )
    assert lines[3:] == ["next      headlab probe copy", "          headlab app --run copy"]


def load(path: Path) -> object:
    from lab.hooked_gpt import HookedGPT

    return HookedGPT.load(path)


def signal_after(
    monkeypatch: pytest.MonkeyPatch, step: int, number: signal.Signals, times: int = 1
) -> None:
    """Send this process a signal while the record of a step is shown."""
    show_line = training_lines.show_line

    def show(record: object, steps: int) -> None:
        show_line(record, steps)
        if record.step == step:
            for _ in range(times):
                signal.raise_signal(number)

    monkeypatch.setattr(training_lines, "show_line", show)


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [(signal.SIGINT, 1, 130), (signal.SIGTERM, 1, 143), (signal.SIGINT, 2, 130)],
)
def test_a_stopped_training_is_kept_and_goes_on(
    number: signal.Signals,
    times: int,
    code: int,
    headlab: Headlab,
    new_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        signal_after(patch, 3, number, times)
        got, out, err = headlab("train", "copy", *TINY, "--name", "mine", "--no-report")
    assert (got, out) == (code, "")
    assert err.endswith(
        "stopping after this step (Ctrl-C again: at once)\n"
        "stopped; step 3 of 4 is saved. Resume with:\n  headlab train --resume mine\n"
    )
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert open_run("mine", unfinished=True).steps == (0, 2, 3)
    assert headlab("runs")[1].endswith("mine stopped at step 3: headlab train --resume mine\n")

    code, out, err = headlab("train", "--resume", "mine", "--no-report")
    assert code == 0
    assert err.splitlines()[0].endswith("8 sequences, resuming from step 3")
    assert [row["step"] for row in open_run("mine").metrics()] == [1, 2, 3, 4]

    code, out, err = headlab("train", "--resume", "mine", "--no-report")
    assert code == 0
    assert err.splitlines()[0] == f"{new_home}/mine is complete; it has no steps left to train"
    assert "trained" not in out


def test_a_stop_in_the_last_step_is_no_stop(
    headlab: Headlab, new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_after(monkeypatch, 4, signal.SIGINT)
    assert headlab("train", "copy", *TINY, "--no-report")[0] == 0
    assert open_run("copy").files


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with training_lines.stop_requests() as requests:
            signal.raise_signal(signal.SIGINT)
        assert requests == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_on_a_screen_there_is_a_bar(
    headlab: Headlab, new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, _, err = headlab("train", "copy", *TINY, "--no-report")
    assert code == 0
    assert re.search(r"copy: 100%\|.*\| 4/4 .*loss \d\.\d{4}, exact-match \d\.\d{3}\]", err)


def test_training_that_diverges_is_one_line_and_keeps_the_run(
    headlab: Headlab, new_home: Path
) -> None:
    wild = ("--learning-rate", "1e30", "--steps", "40", "--grad-clip", "1e30")
    code, out, err = headlab("train", "copy", *TINY, *wild, "--no-report")
    assert (code, out) == (2, "")
    assert re.search(
        r"headlab: error: .* must be finite, got .*learning_rate", err.splitlines()[-1]
    )
    assert open_run("copy", unfinished=True).steps


def test_demo_trains_reports_and_is_quick_the_second_time(
    headlab: Headlab, new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = read_form(["reversal", *TINY])[0].config
    monkeypatch.setattr(demo, "get_preset", lambda name: tiny)
    with monkeypatch.context() as patch:
        signal_after(patch, 3, signal.SIGINT)
        assert headlab("demo", "--no-app")[0] == 130
    code, first, err = headlab("demo", "--no-app", "--device", "cpu")
    assert code == 0
    assert "resuming from step 3" in err
    page = new_home / "demo" / "report.html"
    assert first.endswith(
        f"run       {new_home}/demo\nreport    {page}\nnext      headlab app --run demo\n"
    )
    assert page.is_file()
    code, second, err = headlab("demo", "--no-app")
    assert (code, err) == (0, "")
    assert first.endswith(second)
    served = []
    monkeypatch.setattr(demo, "free_port", lambda: 8600)
    monkeypatch.setattr(demo, "serve", lambda port, run: served.append((port, run)) or 0)
    assert headlab("demo")[0] == 0
    assert served == [(8600, "demo")]


def steps_of_film(name: str) -> list[int]:
    table = read_table(open_run(name).file("film.parquet"), DYNAMICS)
    return table["step"].unique().tolist()


def test_a_training_that_is_filmed_goes_on_being_filmed(
    headlab: Headlab, new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        signal_after(patch, 3, signal.SIGINT)
        asked = ("--name", "mine", "--no-report", "--probe-every", "1")
        assert headlab("train", "copy", *TINY, *asked)[0] == 130
    code, _, err = headlab("train", "--resume", "mine", "--probe-every", "2")
    assert code == 2
    assert err == (
        "headlab: error: --probe-every must be 1, as in the film of the run, to resume it, "
        "got 2; leave it out\n"
    )
    code, out, err = headlab("train", "--resume", "mine", "--no-report")
    assert code == 0
    assert "note" not in err
    assert steps_of_film("mine") == [0, 1, 2, 3, 4]
    told = "film      5 frames of all heads; `headlab probe mine --all-checkpoints` shows them\n"
    assert told in out
    again = headlab("train", "--resume", "mine", "--no-report", "--probe-every", "1")
    assert again[0] == 0 and told in again[1]
    shown = headlab("probe", "mine", "--all-checkpoints", "--probes", "first", "sources")[1]
    assert "5 frames; mean attention on each probe's cells, 64 unseen sequences" in shown
    one = headlab("probe", "mine", "--all-checkpoints", "--sequences", "1")[1]
    assert "checkpoints; mean attention on each probe's cells, 1 unseen sequence\n" in one


def test_a_film_that_begins_late_says_what_it_lacks(headlab: Headlab, new_home: Path) -> None:
    assert headlab("train", "copy", *TINY, "--no-report")[0] == 0
    assert "film.parquet" not in open_run("copy").files
    code, _, err = headlab("train", "--resume", "copy", "--no-report", "--probe-every", "1")
    assert code == 0
    assert err.endswith(
        "note: the film lacks 2 of 5 steps, from 1 to 3, because no checkpoint exists for them\n"
    )
    assert steps_of_film("copy") == [0, 2, 4]


def test_frames_are_a_whole_number_of_steps_apart(headlab: Headlab, new_home: Path) -> None:
    assert headlab("train", "copy", "--probe-every", "0") == (
        2,
        "",
        "headlab: error: --probe-every must be a whole number of at least 1, got 0\n",
    )
    assert not new_home.exists()
