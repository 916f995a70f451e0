"""Fill in a form from a command line; turn the parser's errors into one line each.

The cause of an error is found from the types of the form and the flags in the help text; if it is
not found, the parser's own explanation is printed.
"""

import contextlib
import dataclasses
import difflib
import functools
import io
import re
import sys
from collections.abc import Sequence
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from lab.naming import quoted, unknown_name

Form = TypeVar("Form")

NUMBERS = {int: ("a whole number", "whole numbers"), float: ("a number", "numbers")}
"""Names of number types, singular and plural."""

REFUSED = 2
"""Exit code of the parser for a wrong command line."""


def parse(form: type[Form], arguments: Sequence[str], *, prog: str, default: Form | None) -> Form:
    """Return the form that the arguments fill in.

    Args:
        form: A dataclass for tyro.
        arguments: The words after the command.
        prog: The command, such as "headlab train".
        default: A filled form with the defaults of the flags.

    Raises:
        SystemExit: After --help (code 0), or after the parser explained an error (code 2).
        ValueError: The arguments are wrong; the message is one line.
    """
    given = {} if default is None else {"default": default}
    call = functools.partial(tyro.cli, form, prog=prog, description="", **given)
    explanation = io.StringIO()
    try:
        with contextlib.redirect_stderr(explanation):
            return call(args=arguments)
    except SystemExit as stop:
        text = explanation.getvalue()
        line = refusal(form, arguments, prog, call, text) if stop.code == REFUSED else None
        if line is None:
            sys.stderr.write(text)
            raise
    raise ValueError(line)


def refusal(
    form: type, arguments: Sequence[str], prog: str, call: Any, explanation: str
) -> str | None:
    """Return the message for a wrong command line; None: the cause is not found."""
    help_text = output_of(call, ["--help"])[1]
    known = re.findall(r"--[a-z][a-z0-9.-]*", help_text)
    # First, because the value of an unknown flag is taken for something else.
    strange = [a for a in arguments if re.match("--?[A-Za-z]", a) and flag_in(a) not in known]
    if strange:
        return unknown_flag(strange[0], prog, known)
    surplus = output_of(call, arguments, return_unknown_args=True)[0]
    if surplus is not None:
        words = " ".join(quoted(token) for token in surplus[1])
        return f"arguments must be those that `{prog} --help` lists, got {words} besides"
    see = f"`{prog} --help` explains it"
    types = types_of(form)
    for flag in dict.fromkeys(flag_in(a) for a in arguments if a.startswith("--")):
        line = wrong_value(flag, types.get(flag), values_after(flag, arguments), see)
        if line is not None:
            return line
    places = re.findall(r"[A-Z]+", help_text.partition("\n")[0].partition("[OPTIONS]")[2])
    missing = [place for place in places if re.search(rf"^\W+{place}\W*$", explanation, re.M)]
    return f"{' and '.join(missing)} must be given, got none; {see}" if missing else None


def output_of(call: Any, arguments: Sequence[str], **how: Any) -> tuple[Any, str]:
    """Return the parser's result for the arguments (None: it exits) and its output."""
    text = io.StringIO()
    with (
        contextlib.suppress(SystemExit),
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        return call(args=arguments, **how), text.getvalue()
    return None, text.getvalue()


def unknown_flag(word: str, prog: str, known: Sequence[str]) -> str:
    """Return the line for a flag that the command does not have."""
    close = difflib.get_close_matches(flag_in(word), known, n=1)
    hint = f" (did you mean {quoted(close[0])}?)" if close else ""
    return f"unknown option {quoted(word.split('=')[0])}; `{prog} --help` lists them{hint}"


def wrong_value(flag: str, kind: Any, values: Sequence[str], see: str) -> str | None:
    """Return the message for wrong values of a flag; None: they are right, or of another type.

    >>> wrong_value("--betas", tuple[float, float], ["0.9", "x"], "")
    "--betas must be 2 numbers, got '0.9' 'x'"
    >>> wrong_value("--modes", tuple[Literal["mean", "zero"], ...], ["mean", "xero"], "")
    "unknown --modes 'xero'; choose from mean, zero (did you mean 'zero'?)"
    """
    parts = get_args(kind)
    if NoneType in parts:
        inner = next(part for part in parts if part is not NoneType)
        return None if values == ["None"] else wrong_value(flag, inner, values, see)
    if Ellipsis in parts:  # any number of values, each of the first type
        return wrong_value(flag, parts[0], values, see) if values else None
    if kind in (None, bool):
        return None
    wanted = len(parts) if get_origin(kind) is tuple else 1
    if len(values) < wanted:
        several = f"{wanted} values" if wanted > 1 else "a value"
        return f"{flag} must be followed by {several}, got too few; {see}"
    if get_origin(kind) is Literal:
        strange = [value for value in values if value not in parts]
        return unknown_name(flag, strange[0], parts) if strange else None
    number = parts[0] if parts else kind
    if number not in NUMBERS or all(reads_as(number, value) for value in values):
        return None
    one, many = NUMBERS[number]
    rule = one if wanted == 1 else f"{wanted} {many}"
    return f"{flag} must be {rule}, got {' '.join(quoted(value) for value in values)}"


def reads_as(number: type, value: str) -> bool:
    """Return whether a word can be read as a number of a type."""
    try:
        number(value)
    except ValueError:
        return False
    return True


def types_of(form: type, prefix: str = "--") -> dict[str, Any]:
    """Return the types of a form's flags; those of a nested form with and without its name."""
    hints = get_type_hints(form)
    found: dict[str, Any] = {f"{prefix}{name}".replace("_", "-"): hints[name] for name in hints}
    for name, kind in hints.items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            found = types_of(kind, prefix) | types_of(kind, f"{prefix}{name}.") | found
    return found


def flag_in(word: str) -> str:
    """Return the flag of a word of the command line, as help texts spell it.

    >>> flag_in("--model.d_head=5")
    '--model.d-head'
    """
    return word.split("=")[0].replace("_", "-")


def values_after(flag: str, arguments: Sequence[str]) -> list[str]:
    """Return the last values given for a flag.

    >>> values_after("--steps", ["--steps", "3", "--steps=x"])
    ['x']
    """
    given: list[str] = []
    for place, word in enumerate(arguments):
        if flag_in(word) != flag or not word.startswith("--"):
            continue
        if "=" in word:
            given = [word.partition("=")[2]]
            continue
        rest = arguments[place + 1 :]
        end = next((i for i, later in enumerate(rest) if later.startswith("--")), len(rest))
        given = list(rest[:end])
    return given
