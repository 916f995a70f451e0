"""The command line as a whole: what is found, how errors are said, what is not imported."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from apps import cli
from apps.cli import COMMANDS
from apps.console import say
from lab.naming import unknown_name
from lab.presets import PRESETS
from lab.tasks.registry import TASKS
from probes.registry import probe_names

Headlab = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("tiny_home")


def in_a_process(*arguments: str, home: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    command = ["-c", code] if code else ["-m", "apps.cli"]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HEADLAB_HOME": str(home)},
        check=False,
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_command(arguments: tuple[str, ...], headlab: Headlab) -> None:
    code, out, err = headlab(*arguments)
    assert (code, err) == (0, "")
    width = max(len(entry.name) for entry in COMMANDS)
    for entry in COMMANDS:
        assert f"  {entry.name:<{width}}  {entry.summary}\n" in out


@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS])
def test_each_command_explains_itself(name: str, headlab: Headlab) -> None:
    code, out, err = headlab(name, "--help")
    assert (code, err) == (0, "")
    assert f"\n\nusage: headlab {name}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_help_of_train_shows_the_defaults_of_the_preset(headlab: Headlab) -> None:
    words = headlab("train", "induction", "--help")[1].replace("\u2502", " ").split()
    assert "(default: induction)" in " ".join(words)


def test_version(headlab: Headlab) -> None:
    assert headlab("--version")[1].startswith("headlab ")


LIGHT = """
import contextlib, io, sys
from apps.cli import COMMANDS, main
with contextlib.redirect_stdout(io.StringIO()):
    codes = [main([entry.name, "--help"]) for entry in COMMANDS] + [main(["runs"])]
heavy = {"torch", "pandas", "streamlit", "transformers", "transformer_lens", "matplotlib", "numpy"}
sys.exit(",".join(sorted(heavy & set(sys.modules))) or any(codes))
"""


def test_help_and_runs_import_nothing_heavy(studio_home: Path) -> None:
    done = in_a_process(home=studio_home, code=LIGHT)
    assert (done.returncode, done.stderr) == (0, "")


ERRORS = {
    ("trian",): "unknown command 'trian'; choose from ablate, app, card, demo, feeders, "
    "generate, importance, probe, prune, report, runs, train (did you mean 'train'?)",
    ("train",): "preset must be named, got none; try `headlab train reversal`, or "
    "`headlab train --resume RUN` to resume a run",
    ("train", "reversl"): unknown_name(
        "preset", "reversl", {entry.name for entry in (*PRESETS, *TASKS)}
    ),
    ("train", "reversal", "--task", "copi"): unknown_name("task", "copi", [e.name for e in TASKS]),
    ("train", "reversal", "--length", "0"): "length must be a whole number of at least 1, got 0",
    ("train", "reversal", "--model.d-model", "63"): "d_model must be a multiple of n_heads, got "
    "63 and 4; change one of them or give d_head",
    ("train", "reversal", "--name", "../x"): "run name must be 1 to 100 letters, digits, '.', '_' "
    "or '-' and start with a letter or digit, got '../x'",
    ("train", "reversal", "--name", "tiny"): "run folder must be new, got '{home}/tiny', which "
    "exists; choose another name or continue it with --resume",
    ("train", "reversal", "--device", "cud"): "unknown device 'cud'; choose from auto, cpu, cuda, "
    "mps (did you mean 'cuda'?)",
    ("train", "--resume", "tinny"): "unknown run 'tinny'; choose from raw, tiny "
    "(did you mean 'tiny'?)",
    ("train", "--resume", "tiny", "--name", "x"): "--name must be left out with --resume, got 'x'; "
    "the run has its own name and configuration",
    ("train", "copy", "--resume", "tiny"): "preset must be left out with --resume, got 'copy'; "
    "the run has its own name and configuration",
    ("train", "--resume", "tiny", "--steps", "99"): "config must be the run's own to resume it, "
    "got steps 99 where 'tiny' has 60; leave it as it was or choose another name",
    ("probe", "tyny"): "unknown run or model 'tyny'; choose from raw, smollm2-135m-instruct, tiny "
    "(did you mean 'tiny'?)",
    ("probe", ".."): "unknown run or model '..'; choose from raw, smollm2-135m-instruct, tiny",
    ("probe", "tiny", "--probes", "previus"): unknown_name("probe", "previus", probe_names()),
    ("probe", "tiny", "--checkpoint", "7"): "step must be one with a checkpoint (0, 20, 40, 60), "
    "got 7",
    ("probe", "tiny", "--sequences", "0"): "--sequences must be a whole number of at least 1, "
    "got 0",
    ("probe", "tiny", "--out", "{home}/raw"): "--out must not be a run folder, got '{home}/raw'; "
    "choose another folder (`headlab report RUN` without --out writes into the run)",
    ("report", "tiny", "--out", "{home}/raw"): "--out must not be a run folder, got '{home}/raw'; "
    "choose another folder (`headlab report RUN` without --out writes into the run)",
    ("ablate", "tiny", "--heads", "L0H7"): "unknown head 'L0H7'; choose from L0H0, L0H1, L1H0, "
    "L1H1 (did you mean 'L0H1'?)",
    ("ablate", "tiny", "--heads", "0.1"): "a head must be written like L0H3, got '0.1'",
    ("generate", "tiny", "abz"): "unknown symbol 'z'; choose from a-h",
    ("generate", "tiny", ""): "prompt must be 1 to 4 symbols for reversal of length 4, got none",
    ("generate", "tiny", "abcde"): "prompt must be 1 to 4 symbols for reversal of length 4, got 5",
    ("generate", "tiny", "ab", "--temperature", "-1"): "temperature must be a number from 0 to "
    "10000, got -1.0",
    ("generate", "tiny", "ab", "--temperature", "1e308"): "temperature must be a number from 0 to "
    "10000, got 1e+308",
    ("train", "--resume", "tiny", "--steps", "99", "--model.d-head", "4"): "config must be the "
    "run's own to resume it, got model.d_head 4, steps 99 where 'tiny' has None, 60; leave it as "
    "it was or choose another name",
    ("prune", "tiny", "--heads", "L0H0", "--out", "raw"): "--out must be new, got 'raw', which "
    "exists in {home}; choose another",
    (
        "train",
        "reversal",
        "--model.n-heads",
        "3",
        "--model.d-model",
        "9",
        "--model.positional-embedding-type",
        "rotary",
    ): "d_model / n_heads must be even for rotary "
    "positions, got 9 / 3 = 3; change one of them, or give an even d_head or rotary_dim",
    ("train", "reversal", "--batch-size", "16777216", "--model.d-model", "4096"): "batch must fit "
    "into memory, got 16777216 sequences of 22 tokens at once, which take ",
    ("app", "--run", "tinny"): "unknown run 'tinny'; choose from raw, tiny (did you mean 'tiny'?)",
    ("app", "--port", "0"): "--port must be from 1 to 65535, got 0",
}


@pytest.mark.parametrize("arguments", ERRORS, ids=" ".join)
def test_an_error_is_one_line_with_the_remedy(
    arguments: tuple[str, ...], headlab: Headlab, studio_home: Path
) -> None:
    code, out, err = headlab(*(a.replace("{home}", str(studio_home)) for a in arguments))
    expected = ERRORS[arguments].replace("{home}", str(studio_home))
    line = f"headlab: error: {expected}\n"
    if expected.endswith("which take "):  # what follows depends on the machine
        err = err[: len(line) - 1] + "\n"
    assert (code, out, err) == (2, "", line)


USAGE = {
    "probe": "WHAT must be given, got none; `headlab probe --help` explains it",
    "generate tiny": "PROMPT must be given, got none; `headlab generate --help` explains it",
    "prune --mode zero": "WHAT must be given, got none; `headlab prune --help` explains it",
    "probe --chekpoint 3": "unknown option '--chekpoint'; `headlab probe --help` lists them "
    "(did you mean '--checkpoint'?)",
    "train reversal --stesp 3": "unknown option '--stesp'; `headlab train --help` lists them "
    "(did you mean '--steps'?)",
    "train reversal --model.d_modle=3": "unknown option '--model.d_modle'; `headlab train --help` "
    "lists them (did you mean '--model.d-model'?)",
    "report tiny -x": "unknown option '-x'; `headlab report --help` lists them",
    "probe tiny raw": "arguments must be those that `headlab probe --help` lists, got 'raw' "
    "besides",
    "runs all": "arguments must be those that `headlab runs --help` lists, got 'all' besides",
    "train reversal --steps x": "--steps must be a whole number, got 'x'",
    "train reversal --model.d_head=1.5": "--model.d-head must be a whole number, got '1.5'",
    "train reversal --learning-rate fast": "--learning-rate must be a number, got 'fast'",
    "train reversal --betas 0.1 x": "--betas must be 2 numbers, got '0.1' 'x'",
    "train reversal --betas 0.1": "--betas must be followed by 2 values, got too few; "
    "`headlab train --help` explains it",
    "app --port 22x": "--port must be a whole number, got '22x'",
    "generate tiny ab --top-k 1.5": "--top-k must be a whole number, got '1.5'",
    "probe tiny --sequences": "--sequences must be followed by a value, got too few; "
    "`headlab probe --help` explains it",
    "ablate tiny --mode meann": "unknown --mode 'meann'; choose from mean, resample, zero (did "
    "you mean 'mean'?)",
    "train reversal --model.act-fn gelo": "unknown --model.act-fn 'gelo'; choose from gelu, "
    "gelu_new, relu, silu, solu, solu_ln (did you mean 'gelu'?)",
    "ablate tiny --heads": "--heads needs at least one value, got none; write --heads L0H1, or "
    "leave it out",
    "probe tiny --probes": "--probes needs at least one value, got none; write --probes sources, "
    "or leave it out",
    "generate tiny abcd --ablate": "--ablate needs at least one value, got none; write --ablate "
    "L0H1, or leave it out",
}


@pytest.mark.parametrize("line", USAGE)
def test_a_wrong_argument_is_one_line_in_our_words(line: str, headlab: Headlab) -> None:
    assert headlab(*line.split()) == (2, "", f"headlab: error: {USAGE[line]}\n")


def test_a_refusal_of_unknown_reason_is_explained_by_the_parser(
    headlab: Headlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.usage_errors.refusal", lambda *_: None)
    code, out, err = headlab("probe")
    assert (code, out) == (2, "")
    assert "WHAT" in err


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def dispatch(arguments: list[str]) -> int:
        raise error

    return dispatch


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("two\nlines \x1b[31m"), 2, "headlab: error: two lines \\x1b[31m"),
        (
            PermissionError(13, "Permission denied", "/x"),
            2,
            "headlab: error: files must be readable and writable, got 'Permission denied' at '/x'",
        ),
        (OSError("place for output must be writable"), 2, "headlab: error: place for output"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"),
            2,
            "headlab: error: model and batch must fit into memory, got too little for 9.7 GB at "
            "once; take a smaller model",
        ),
        (MemoryError(), 2, "headlab: error: model and batch must fit into memory, got too little"),
        (KeyboardInterrupt(), 130, "headlab: stopped"),
    ],
)
def test_what_a_person_can_cause_ends_in_one_line(
    error: BaseException, code: int, line: str, headlab: Headlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "dispatch", raising(error))
    got, out, err = headlab("runs")
    assert (got, out) == (code, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_the_remedy_for_too_little_memory_is_one_that_the_command_has(
    headlab: Headlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in [entry.name for entry in cli.COMMANDS]:
        helped = headlab(command, "--help")[1]
        with monkeypatch.context() as patch:
            patch.setattr(cli, "dispatch", raising(MemoryError()))
            told = headlab(command)[2]
        flags = re.findall(r"--[a-z-]+", told)
        assert all(flag in helped for flag in flags), command
        assert flags or "take a smaller model" in told


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), KeyError("x"), TypeError("y")])
def test_a_fault_in_the_code_keeps_its_traceback(
    error: Exception, headlab: Headlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "dispatch", raising(error))
    with pytest.raises(type(error)):
        headlab("runs")


def test_an_error_shows_where_it_came_from_on_request(
    headlab: Headlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADLAB_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown run or model 'nope'"):
        headlab("probe", "nope")


def test_a_closed_pipe_is_silent(studio_home: Path) -> None:
    read, write = os.pipe()
    os.close(read)  # the reader is gone before the first line
    done = subprocess.run(
        [sys.executable, "-m", "apps.cli", "runs"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HEADLAB_HOME": str(studio_home)},
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_only_the_first_of_several_processes_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        say(f"from {rank}")
    assert capsys.readouterr().out == "from 0\n"
