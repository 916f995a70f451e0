"""What several commands ask for in the same words, and how a form is filled in from arguments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from tyro.conf import Positional, arg

from lab.manifest import MANIFEST
from lab.runs import CHECKPOINTS

Form = TypeVar("Form")

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
    default: Form | None = None,
    description: str | None = None,
) -> Form:
    """Return the form that the arguments of a command fill in.

    Args:
        form: A dataclass; its docstrings are the help.
        arguments: What stands after the command's name.
        command: The command's name.
        default: A filled form whose values stand where the arguments say nothing.
        description: What --help says first; None: the form's docstring.

    Raises:
        SystemExit: After --help (code 0), or a wrong flag, explained on stderr (code 2).
    """
    if default is None:
        return tyro.cli(form, prog=f"headlab {command}", args=arguments, description=description)
    return tyro.cli(
        form, prog=f"headlab {command}", args=arguments, default=default, description=description
    )


def listed(entries: Sequence[tuple[str, str]]) -> str:
    """Return names and what they mean as the lines of a help text."""
    width = max(len(name) for name, _ in entries)
    return "\n".join(f"  {name:<{width}}  {meaning}" for name, meaning in entries)


def check_out(out: Path) -> None:
    """Raise ValueError if a folder for output is a run: only its own report belongs into one."""
    if (out / MANIFEST).exists() or (out / CHECKPOINTS).exists():
        raise ValueError(
            f"--out must not be a run folder, got {str(out)!r}; choose another folder "
            "(`headlab report RUN` without --out writes into the run)"
        )
