"""Head labels such as L0H3, and suggestions for unknown names."""

import difflib
import re
from collections.abc import Iterable

LONGEST_QUOTE = 200
"""Characters of a foreign value that a message repeats."""


def quoted(value: object) -> str:
    r"""Return a foreign value as a short, printable ASCII text for a message.

    >>> print(quoted("caf\N{LATIN SMALL LETTER E WITH ACUTE}"), quoted([1, "a"]))
    'caf\xe9' [1, 'a']
    """
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list of lists of ...
        return f"{type(value).__name__} too large to show"
    return shortened(text)


def bare(name: str) -> str:
    """Return a foreign name as `quoted` does, without the quotes."""
    return shortened(ascii(name)[1:-1])


def shortened(text: str) -> str:
    """Return a text, or its beginning if it is long."""
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."


def unknown_name(kind: str, got: str, known: Iterable[str]) -> str:
    """Return a message that lists the known names and suggests the closest.

    >>> unknown_name("task", "inducton", ["copy", "induction"])
    "unknown task 'inducton'; choose from copy, induction (did you mean 'induction'?)"
    """
    names = sorted(known)
    if not names:
        return f"unknown {kind} {quoted(got)}; there is none yet"
    close = difflib.get_close_matches(got[:LONGEST_QUOTE], names, n=1)
    hint = f" (did you mean {quoted(close[0])}?)" if close else ""
    shown = ", ".join(bare(name) for name in names[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"unknown {kind} {quoted(got)}; choose from {shown}{more}{hint}"


def head_label(layer: int, head: int) -> str:
    """Return the label of a head.

    >>> head_label(0, 3)
    'L0H3'
    """
    return f"L{layer}H{head}"


def counted(number: int, noun: str) -> str:
    """Write a count with its noun.

    >>> counted(1, "sequence"), counted(1200, "token")
    ('1 sequence', '1,200 tokens')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def article(noun: str) -> str:
    """Put the article before a noun.

    >>> article("copy head"), article("induction head")
    ('a copy head', 'an induction head')
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def parse_head(label: str) -> tuple[int, int]:
    """Read (layer, head) from a label.

    >>> parse_head("L0H3")
    (0, 3)

    Raises:
        ValueError: The label is not of that form.
    """
    found = re.fullmatch(r"L([0-9]{1,4})H([0-9]{1,4})", label)
    if found is None:
        raise ValueError(f"a head must be written like L0H3, got {quoted(label)}")
    return int(found[1]), int(found[2])
