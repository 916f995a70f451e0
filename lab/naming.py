"""Names that people type: how a head is written, and what to say when a name is unknown."""

import difflib
import re
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


def head_label(layer: int, head: int) -> str:
    """Write a head the way every table, address and command line does.

    >>> head_label(0, 3)
    'L0H3'
    """
    return f"L{layer}H{head}"


def parse_head(label: str) -> tuple[int, int]:
    """Read (layer, head) from a label.

    >>> parse_head("L0H3")
    (0, 3)

    Raises:
        ValueError: The label is not of that form.
    """
    found = re.fullmatch(r"L([0-9]{1,4})H([0-9]{1,4})", label)
    if found is None:
        raise ValueError(f"a head must be written like L0H3, got {label!r}")
    return int(found[1]), int(found[2])
