"""What to say when a name is not one of the known ones: the one wording of that error."""

import difflib
from collections.abc import Iterable


def unknown_name(kind: str, got: str, known: Iterable[str]) -> str:
    """Say which names there are, and which one was probably meant.

    >>> unknown_name("task", "inducton", ["copy", "induction"])
    "unknown task 'inducton'; choose from copy, induction (did you mean 'induction'?)"
    """
    names = sorted(known)
    if not names:
        return f"unknown {kind} {got!r}; there is none yet"
    close = difflib.get_close_matches(got, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"unknown {kind} {got!r}; choose from {shown}{hint}"
