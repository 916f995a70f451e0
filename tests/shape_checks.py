"""The type checker of the test suite: beartype, for the first calls of each function in each test.

Checks are most of the time of a test that calls small functions thousands of times, and after some
dozens of calls they find nothing new.
"""

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from beartype import beartype

CHECKED_CALLS = 12
"""Calls of each function that are checked in each test."""

calls: Counter[tuple[str, str]] = Counter()
"""Checks in this test by function; each call is two, of its arguments and of what it returns."""
unchecked: list[Callable[..., Any]] = []
"""Functions that are not checked any more in this test."""


def first_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check a function that jaxtyping made: it has the name and the annotations of one of ours."""
    checked, name = beartype(function), (function.__module__, function.__qualname__)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        if calls[name] == 2 * CHECKED_CALLS:
            leave_unchecked(*name)
        return checked(*args, **kwargs)

    return counted


def leave_unchecked(module: str, qualname: str) -> None:
    """Tell jaxtyping to call a function without checks, unless it is local to another."""
    if "<locals>" in qualname:  # nobody can find it
        return
    found = functools.reduce(inspect.getattr_static, qualname.split("."), sys.modules[module])
    for wrapper in ("fget", "__func__", "func"):  # of a property, a class method, cached_property
        found = getattr(found, wrapper, found)
    function = inspect.unwrap(found)
    function.__no_type_check__ = True
    unchecked.append(function)


def check_again() -> None:
    """Check all functions again, in the next test."""
    for function in unchecked:
        vars(function).pop("__no_type_check__", None)
    unchecked.clear()
    calls.clear()
