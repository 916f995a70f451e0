"""Arguments that several commands share, and how a form is filled in."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from tyro.conf import Positional, arg

from apps.console import say
from apps.usage_errors import parse
from lab.durable import made_folder, one_clear_error, temporary_name
from lab.manifest import MANIFEST
from lab.naming import quoted
from lab.run_folders import CHECKPOINTS, CONFIG, runs_home

Form = TypeVar("Form")

HELP_WIDTH = 80
"""Columns of a help text, as the parser writes its part of it."""


def flag(metavar: str, text: str, default: str | None = None) -> Any:
    """Return how --help shows an argument, for `Annotated`.

    Args:
        metavar: Name of its value.
        text: What it means.
        default: The note about its default; empty: no note; None: the default itself.
    """
    return arg(metavar=metavar, help=text, help_behavior_hint=default)


RunName = Annotated[
    Positional[str],
    flag("RUN", "Name of a run (`headlab runs` lists them), or the path of its folder."),
]
CheckpointStep = Annotated[
    int | None,
    flag("STEP", "Step of the checkpoint to use.", "(default: the trained model)"),
]
Device = Annotated[str, flag("NAME", "auto, cpu, cuda or mps; auto takes the GPU if there is one.")]


def fill_in(
    form: type[Form],
    arguments: Sequence[str],
    *,
    command: str,
    about: str,
    default: Form | None = None,
) -> Form:
    """Return the form that the arguments of a command fill in.

    Args:
        form: A dataclass; its fields' docstrings are the help of the flags.
        arguments: The words after the command's name.
        command: The command's name.
        about: The first part of --help; the parser would rewrap its lines.
        default: A filled form with the defaults of the flags.

    Raises:
        SystemExit: After --help (code 0).
        ValueError: A flag is unknown, a value missing, surplus or of the wrong kind.
    """
    if asks_for_help(arguments):
        say(f"{about.strip()}\n")
    return parse(form, arguments, prog=f"headlab {command}", default=default)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether --help is among the arguments."""
    return "-h" in arguments or "--help" in arguments


def gives(arguments: Sequence[str], flag: str) -> bool:
    """Return whether the arguments give a flag, in either spelling.

    >>> gives(["--model.n_ctx=64"], "--model.n-ctx")
    True
    """
    return any(a.split("=")[0].replace("_", "-") == flag for a in arguments)


def require_named(arguments: Sequence[str], flag: str, names: Sequence[str], example: str) -> None:
    """Raise ValueError if a flag that lists names is given without a name."""
    if gives(arguments, flag) and not names:
        raise ValueError(
            f"{flag} needs at least one value, got none; write {flag} {example}, or leave it out"
        )


def refuse_beside(arguments: Sequence[str], flag: str, others: Sequence[str]) -> None:
    """Raise ValueError if a flag is given beside one that has no meaning with it."""
    for other in others:
        if gives(arguments, other):
            raise ValueError(f"{other} must be left out with {flag}; give one of the two")


def listed(entries: Sequence[tuple[str, str]]) -> str:
    """Return names and what they mean as the lines of a help text."""
    width = max(len(name) for name, _ in entries)
    lines = (
        textwrap.fill(
            meaning,
            width=HELP_WIDTH,
            break_on_hyphens=False,
            initial_indent=f"  {name:<{width}}  ",
            subsequent_indent=" " * (width + 4),
        )
        for name, meaning in entries
    )
    return "\n".join(lines)


def check_out(given: str, *, new: bool = True) -> Path:
    """Return the folder for output after a check that it can be written; leave it empty.

    Args:
        given: The value of --out.
        new: Reject a folder that holds files, so that tables of two measurements do not mix.

    Raises:
        ValueError: It is not a valid name, holds files already, is inside a sealed run, or is the
            home of all runs.
        OSError: It cannot be written.
    """
    if not given or "\0" in given:
        raise ValueError(
            f"--out must be the name of a folder, got {quoted(given)}; write --out DIR"
        )
    out = Path(given)
    with one_clear_error(out):
        if out.exists() and not out.is_dir():
            raise ValueError(
                f"--out must be a folder, got the file {quoted(given)}; choose another"
            )
        check_no_run(out, given)
        if new and out.exists() and any(out.iterdir()):
            raise ValueError(
                f"--out must be a new or an empty folder, got {quoted(given)}, which holds files; "
                "choose another name or empty it"
            )
        with made_folder(out, keep=False):
            probe = temporary_name(out / "check")
            probe.touch()
            probe.unlink()
    return out


def check_no_run(out: Path, given: str) -> None:
    """Raise ValueError if a folder for output is a run, lies in one or is the home of runs."""
    place = out.resolve()
    if (out / MANIFEST).exists() or (out / CHECKPOINTS).exists():
        raise ValueError(
            f"--out must not be a run folder, got {quoted(given)}; choose another folder "
            "(`headlab report RUN` without --out writes into the run)"
        )
    for folder in place.parents:
        sealed = (folder / MANIFEST).exists() or (folder / CHECKPOINTS).exists()
        if sealed and (folder / CONFIG).exists():
            raise ValueError(
                f"--out must not lie in a run or a saved model, got {quoted(given)} within "
                f"{quoted(str(folder))}; choose another folder"
            )
    if place == runs_home().resolve():
        raise ValueError(
            f"--out must not be the home of all runs, got {quoted(given)}; choose another folder"
        )
