"""What several commands ask for in the same words, and how a form is filled in from arguments."""

import contextlib
import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import Positional, arg

from apps.console import say
from apps.usage_errors import said_in_one_line
from lab.manifest import MANIFEST
from lab.runs import CHECKPOINTS

Form = TypeVar("Form")

HELP_WIDTH = 80
"""Columns of a help text, as the parser writes its part of it."""

RunName = Annotated[
    Positional[str],
    arg(
        metavar="RUN", help="Name of a run (`headlab runs` lists them), or the path of its folder."
    ),
]
CheckpointStep = Annotated[
    int | None,
    arg(
        metavar="STEP",
        help="Step of the checkpoint to look at.",
        help_behavior_hint="(default: the trained model)",
    ),
]
SequenceCount = Annotated[
    int,
    arg(
        metavar="N",
        help="Sequences to measure on, none of which training drew.",
        help_behavior_hint="(default: 500, those of the report)",
    ),
]
Device = Annotated[
    str, arg(metavar="NAME", help="auto, cpu, cuda or mps; auto takes the GPU if there is one.")
]


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
        arguments: What stands after the command's name.
        command: The command's name.
        about: What --help says first; the parser would run its lines together.
        default: A filled form whose values stand where the arguments say nothing.

    Raises:
        SystemExit: After --help (code 0).
        ValueError: A flag is unknown, a value missing, surplus or of the wrong kind.
    """
    if asks_for_help(arguments):
        say(f"{about.strip()}\n")
    prog = f"headlab {command}"
    given: dict[str, Any] = {} if default is None else {"default": default}

    def flags() -> list[str]:
        text = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
            tyro.cli(form, prog=prog, args=["--help"], description="", **given)
        return re.findall(r"--[a-z][a-z0-9.-]*", text.getvalue())

    with said_in_one_line(prog, arguments, flags):
        return tyro.cli(form, prog=prog, args=arguments, description="", **given)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Tell whether --help is among the arguments."""
    return "-h" in arguments or "--help" in arguments


def gives(arguments: Sequence[str], flag: str) -> bool:
    """Tell whether the arguments give a flag, in either spelling.

    >>> gives(["--model.n_ctx=64"], "--model.n-ctx")
    True
    """
    return any(a.split("=")[0].replace("_", "-") == flag for a in arguments)


def require_named(arguments: Sequence[str], flag: str, names: Sequence[str], example: str) -> None:
    """Raise ValueError if a flag that lists names is given without one."""
    if gives(arguments, flag) and not names:
        raise ValueError(
            f"{flag} must name at least one, got none; write {flag} {example}, or leave it out"
        )


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


def check_out(out: Path) -> None:
    """Raise ValueError if a folder for output is a file or a run (only its report goes there)."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {str(out)!r}; choose another")
    if (out / MANIFEST).exists() or (out / CHECKPOINTS).exists():
        raise ValueError(
            f"--out must not be a run folder, got {str(out)!r}; choose another folder "
            "(`headlab report RUN` without --out writes into the run)"
        )
