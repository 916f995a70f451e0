"""Measure, print one table, write docs/benchmarks.md: `python -m tests.benchmarks [GROUP ...]`.

Exit code 1 says that a row misses its floor.
"""

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from lab.naming import unknown_name
from lab.runtime import versions
from tests.benchmarks.rows import GROUPS as FIRST_GROUPS
from tests.benchmarks.rows import Row
from tests.benchmarks.sweep_rows import SWEEP_GROUPS

GROUPS = {**FIRST_GROUPS, **SWEEP_GROUPS}
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
HEADER = ("work", "against", "at least", "found", "", "median (fastest to slowest): ours; theirs")


def main(names: Sequence[str]) -> int:
    """Run the groups of rows that are named, or all of them and write the page."""
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        print(unknown_name("group of rows", unknown[0], GROUPS), file=sys.stderr)
        return 2
    torch.manual_seed(0)
    rows: list[Row] = []
    for name in names or GROUPS:
        for row in GROUPS[name]():
            rows.append(row)
            print(line(row), flush=True)
        if not names:  # after every group: the slow ones may be broken off
            PAGE.write_text(page(rows))
    if not names:
        print(f"written to {PAGE}")
    return 0 if all(row.holds for row in rows) else 1


def line(row: Row) -> str:
    """Write a row as a line of a Markdown table."""
    mark = "" if row.holds else "**missed**"
    return f"| {' | '.join((row.work, row.against, row.floor, row.found, mark, row.times))} |"


def page(rows: Sequence[Row]) -> str:
    """Write docs/benchmarks.md."""
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Contestants take turns in one process; ratios are theirs / ours,",
        "so more is better; float32. Absolute numbers hold up to twice the stated one.",
        "",
        f"Machine: {processor()}, {torch.get_num_threads()} threads, {platform.system()}; {known}.",
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{'---|' * len(HEADER)}",
        *map(line, rows),
        "",
    ]
    return "\n".join(lines)


def processor() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    names = [row for row in info.read_text().splitlines() if row.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
