"""Checks of values, with one wording for all error messages.

Types are checked by annotations; here are ranges, names, choices and fields that people give.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any, TypeGuard

from lab.naming import quoted, unknown_name

LARGEST_WHOLE = 2**63 - 1
"""Largest whole number that seeds, counters and tensor sizes can hold."""


def require(holds: bool, what: str, rule: str, got: object) -> None:
    """Raise ValueError, in the project's wording, unless the rule holds."""
    if not holds:
        raise ValueError(f"{what} must be {rule}, got {quoted(got)}")


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is an int; bool and float are rejected."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_whole(name: str, value: Any, least: int, most: int = LARGEST_WHOLE) -> None:
    """Raise ValueError unless value is a whole number from `least` to `most`."""
    whole = is_whole(value)
    require(whole and value >= least, name, f"a whole number of at least {least}", value)
    limit = "below 2**63" if most == LARGEST_WHOLE else f"a whole number of at most {most}"
    require(value <= most, name, limit, value)


def require_seed(value: Any) -> None:
    """Raise ValueError unless value can seed every generator that is used here."""
    require_whole("seed", value, 0)


def require_number(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raise ValueError unless value is a finite number in [low, high]."""
    number = is_whole(value) or isinstance(value, float)
    if not (number and low <= value <= min(high, sys.float_info.max)):
        span = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
        require(False, name, f"a number {span}", value)


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError, with a suggestion, unless value is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        got = value if isinstance(value, str) else quoted(value)
        raise ValueError(unknown_name(name, got, choices))


def require_text(name: str, value: object) -> None:
    require(isinstance(value, str), name, "a text", value)


def as_tuples(value: Any) -> Any:
    """Return a list, or a list of lists, as tuples; anything else unchanged."""
    if not isinstance(value, list):
        return value
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def checked_fields(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data as keyword arguments of a config class; an unknown or missing key is an error."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{cls.__name__} must be a JSON object, got {type(data).__name__}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    for name in data:
        if name not in known:
            raise ValueError(unknown_name(f"{cls.__name__} key", str(name), known))
    for name, f in known.items():
        no_default = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if no_default and name not in data:
            raise ValueError(
                f"{cls.__name__} must have the key {name!r}, got {', '.join(data) or 'none'}"
            )
    return dict(data)
