"""What the command line prints: results to stdout, remarks to stderr, tables in plain columns.

If several processes train together, only the first one prints.
"""

import io
import os
import shutil
import sys
from collections.abc import Sequence

LABEL_WIDTH = 8
"""Least width of labels, so that lists of facts line up."""


def is_main_process() -> bool:
    """Return whether this process is the only one, or the first of those that torchrun started."""
    return int(os.environ.get("WORLD_SIZE") or 1) < 2 or os.environ.get("RANK", "0") == "0"


def say(*lines: str) -> None:
    """Print lines of the result; an empty text, or no argument, is an empty line."""
    if is_main_process():
        sys.stdout.write("\n".join(lines) + "\n")


def remark(text: str) -> None:
    """Print a line about the work to stderr; it is not part of the result."""
    if is_main_process():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def one_line(text: str) -> str:
    r"""Return a message as one printable line, whatever names it quotes.

    >>> one_line("two\nlines \x1b[31m")
    'two lines \\x1b[31m'
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def say_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print lines of a label and a text; an empty label continues the line above."""
    width = max(LABEL_WIDTH, *(len(label) for label, _ in facts))
    for label, text in facts:
        say(f"{label:<{width}}  {text}")


def say_heading(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print a title, and facts between empty lines."""
    say(title, "")
    say_facts(facts)
    say()


def say_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)
) -> None:
    """Print a table: numbers to the right, the columns of words to the left.

    Args:
        header: One title a column; may break into lines.
        rows: Cells, as they are to be read.
        words: Indices of the columns that hold words.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    for index, title in enumerate(header):
        justify = "left" if index in words else "right"
        table.add_column(Text(title), justify=justify, vertical="bottom", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    # In a file or a pipe there is no edge to wrap at.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000
    console = Console(file=io.StringIO(), width=width)
    if console.measure(table).maximum > width:
        table.padding = 0
    with console.capture() as captured:
        console.print(table)
    say(*(line.rstrip() for line in captured.get().splitlines()))
