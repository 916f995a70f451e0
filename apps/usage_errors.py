"""What the parser of a command line refuses, in our words: one line, and what was probably meant.

The parser tells of its refusals through an interface that it does not promise to keep. Where that
is gone, or says something that is not known here, its own explanation in several lines stands.
"""

import contextlib
import difflib
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lab.naming import quoted, unknown_name

NUMBERS = {int: ("a whole number", "whole numbers"), float: ("a number", "numbers")}
"""How a type is called, one and several."""


@contextlib.contextmanager
def said_in_one_line(
    prog: str, arguments: Sequence[str], flags: Callable[[], Iterable[str]]
) -> Iterator[None]:
    """Raise ValueError with one line for what the parser refuses within the block.

    Args:
        prog: The command, such as "headlab train".
        arguments: What stands after it.
        flags: Gives the flags of the command, when one is unknown.
    """
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        yield
        return

    def refuse(event: Any) -> None:
        try:
            line = line_for(type(event).__name__, event, prog, arguments, flags)
        except (AttributeError, TypeError):  # another version of the parser
            line = None
        if line is not None:
            raise ValueError(line)

    with on_parse_error(refuse):
        yield


def line_for(
    kind: str, event: Any, prog: str, arguments: Sequence[str], flags: Callable[[], Iterable[str]]
) -> str | None:
    """Return the line for one refusal; None: it is of a kind that is not known here."""
    see = f"`{prog} --help` explains it"
    # Before anything else: a flag that is none leaves its value where something else is looked for.
    known = list(flags())
    strange = [a for a in arguments if a.startswith("--") and flag_in(a) not in known]
    if strange:
        return unknown_flag(strange[0], prog, known)
    if kind == "UnrecognizedArgs":
        return surplus(event.tokens, prog, known)
    if kind == "MissingArgs":
        missing = [name_of(found.arg) for found in event.missing_arguments]
        return f"{' and '.join(missing)} must be given, got none; {see}"
    if kind == "InvalidChoice":
        return unknown_name(name_of(event.argument), event.value, event.choices)
    if kind == "BadValue" and event.reason == "too_few_values":
        wanted = event.argument.lowered.nargs
        several = f"{wanted} values" if isinstance(wanted, int) and wanted > 1 else "a value"
        return f"{name_of(event.argument)} must be followed by {several}, got too few; {see}"
    if kind == "InstantiationFailure" and event.argument is not None:
        name, rule = name_of(event.argument), rule_of(event.argument.field.type)
        if rule is not None:
            return f"{name} must be {rule}, got {value_after(name, arguments)}"
    return None


def surplus(tokens: Sequence[str], prog: str, known: Sequence[str]) -> str:
    """Return the line for words that no argument takes."""
    if tokens[0].startswith("-"):
        return unknown_flag(tokens[0], prog, known)
    words = " ".join(quoted(token) for token in tokens)
    return f"arguments must be those that `{prog} --help` lists, got {words} besides"


def unknown_flag(word: str, prog: str, known: Sequence[str]) -> str:
    """Return the line for a flag that the command does not have."""
    close = difflib.get_close_matches(flag_in(word), known, n=1)
    hint = f" (did you mean {quoted(close[0])}?)" if close else ""
    return f"unknown option {quoted(word.split('=')[0])}; `{prog} --help` lists them{hint}"


def flag_in(word: str) -> str:
    """Return the flag of a word of the command line, as help texts spell it.

    >>> flag_in("--model.d_head=5")
    '--model.d-head'
    """
    return word.split("=")[0].replace("_", "-")


def name_of(argument: Any) -> str:
    """Return how a person writes an argument: its flag, or the word that stands for its place."""
    lowered = argument.lowered
    flags = [] if argument.is_positional() else list(lowered.name_or_flags)
    return flags[0].replace("_", "-") if flags else str(lowered.metavar)


def rule_of(kind: Any) -> str | None:
    """Return what a value of a type must be; None where this module has no word for it.

    The type may be wrapped in Annotated, as arguments with a help text of their own are.

    >>> rule_of(int | None), rule_of(tuple[float, float]), rule_of(str)
    ('a whole number', '2 numbers', None)
    """
    if typing.get_origin(kind) is typing.Annotated:
        return rule_of(typing.get_args(kind)[0])
    parts = [part for part in typing.get_args(kind) if part not in (type(None), Ellipsis)]
    if kind in NUMBERS:
        return NUMBERS[kind][0]
    if not parts or len(set(parts)) > 1 or parts[0] not in NUMBERS:
        return None
    return NUMBERS[parts[0]][0] if len(parts) == 1 else f"{len(parts)} {NUMBERS[parts[0]][1]}"


def value_after(flag: str, arguments: Sequence[str]) -> str:
    """Return what was given for a flag, the last time, as a message repeats it.

    >>> value_after("--steps", ["--steps", "3", "--steps=x"])
    "'x'"
    """
    given: list[str] = []
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") != flag:
            continue
        given = [value] if equals else []
        for following in () if equals else arguments[place + 1 :]:
            if following.startswith("--"):
                break
            given.append(following)
    return " ".join(quoted(word) for word in given) or "none"
