"""Progress of long work, on a terminal only: what is piped or logged stays free of it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from apps.console import is_main_process

Progress = Callable[[int, int], None]
"""Called with (parts done, parts in all)."""


@contextmanager
def progress_bar(doing: str, unit: str = "part") -> Iterator[Progress]:
    """Yield a function that shows progress on stderr, if stderr is a terminal.

    Args:
        doing: What the work is, such as "labelling known heads".
        unit: What one part is.
    """
    if not (is_main_process() and sys.stderr.isatty()):
        yield lambda done, of: None
        return
    from tqdm import tqdm

    with tqdm(desc=doing, unit=unit, dynamic_ncols=True, leave=False) as bar:

        def show(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)
            if done == of:
                bar.clear()  # what is printed next begins its line

        yield show
