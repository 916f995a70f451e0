"""The table of heads in a terminal: a row a head, a column a probe. No torch."""

from collections.abc import Iterable, Mapping
from typing import Any

from apps.console import say_table
from lab.naming import head_label
from probes.number_text import decimals, read_number


def say_head_table(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print scores of heads, and the score by chance below.

    Args:
        rows: Rows of the heads table, at least one: layer, head, probe, score and chance, as
            numbers (None: missing) or as the text that a CSV file has.
    """
    scores: dict[str, dict[str, float]] = {}
    chance: dict[str, float] = {}
    for row in rows:
        label = head_label(int(row["layer"]), int(row["head"]))
        scores.setdefault(label, {})[row["probe"]] = read_number(row["score"])
        chance[row["probe"]] = read_number(row["chance"])
    probes = list(chance)
    lines = [[label, *(decimals(of[name]) for name in probes)] for label, of in scores.items()]
    lines.append(["chance", *(decimals(chance[name]) for name in probes)])
    say_table(["head", *(title(name) for name in probes)], lines)


def title(probe: str) -> str:
    r"""Break a long name into two lines, so that the table stays narrow.

    >>> title("sources_plus_1"), title("previous")
    ('sources\n_plus_1', 'previous')
    """
    first, _, rest = probe.partition("_")
    return f"{first}\n_{rest}" if rest else probe
