"""The one list of tasks: a new task is one new file and one line here.

Nothing is imported before it is used, so the list can be shown without torch.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from lab.naming import unknown_name

if TYPE_CHECKING:
    import lab.tasks.base


@dataclass(frozen=True)
class TaskEntry:
    """A task by name, before its module is imported."""

    name: str
    """Name on the command line."""
    summary: str
    """One line that describes the task."""
    where: str
    """The class, as module:name."""


TASKS = (
    TaskEntry(
        "reversal", "repeat the symbols in reverse order: abc -> cba", "lab.tasks.reversal:Reversal"
    ),
    TaskEntry("copy", "repeat the symbols: abc -> abc", "lab.tasks.copying:Copying"),
    TaskEntry(
        "induction",
        "continue a block of different symbols the second time: abca -> bc",
        "lab.tasks.induction:Induction",
    ),
    TaskEntry(
        "rotation",
        "repeat the symbols from the fourth on, then the first three: abcde -> deabc",
        "lab.tasks.rotation:Rotation",
    ),
    TaskEntry(
        "sorting",
        "repeat the symbols in alphabetical order: cab -> abc",
        "lab.tasks.sorting:Sorting",
    ),
    TaskEntry(
        "recall",
        "recall the value of a key, from key-value pairs: abcdc -> d",
        "lab.tasks.recall:Recall",
    ),
)


def get_task(name: str, *, length: int = 10, n_symbols: int = 26) -> "lab.tasks.base.Task":
    """Return a task by name.

    >>> task = get_task("reversal", length=3)
    >>> batch = task.sample(2, seed=0)
    >>> "".join(task.vocab.decode(batch.tokens[0].tolist()))
    '<bos>agc<sep>cga'

    Args:
        name: Name of an entry of TASKS.
        length: Symbols before the separator, or in one block (induction), or pairs (recall).
        n_symbols: Number of different symbols, at most 62.

    Raises:
        ValueError: There is no such task, or a size does not fit it.
    """
    where = {entry.name: entry.where for entry in TASKS}
    if name not in where:
        raise ValueError(unknown_name("task", name, where))
    module, _, attribute = where[name].partition(":")
    return getattr(import_module(module), attribute)(length=length, n_symbols=n_symbols)
