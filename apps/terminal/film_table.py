"""A film of heads in a terminal: their scores step by step, and when they form. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from apps.console import say, say_table
from apps.terminal.head_table import title
from lab.naming import head_label
from probes.number_text import decimals, grouped, read_number

Row = Mapping[str, Any]
Who = tuple[int, int, str]
"""Layer, head and probe."""

WIDEST = 8
"""Heads that are shown side by side."""


def say_film(film: Sequence[Row], onsets: Sequence[Row]) -> None:
    """Print the clearest heads, a row a step, and the onsets of all heads.

    Args:
        film: Rows of the dynamics table, at least one.
        onsets: Rows of the onsets table, in the order to print.
    """
    columns = clearest(film, onsets)
    scores: dict[int, dict[Who, float]] = {}
    chance: dict[Who, float] = {}
    for row in film:
        scores.setdefault(row["step"], {})[who(row)] = read_number(row["score"])
        chance[who(row)] = read_number(row["chance"])
    header = ["step", *(f"{head_label(*w[:2])}\n{title(w[2])}" for w in columns)]
    lines = [[grouped(step), *(decimals(of[w]) for w in columns)] for step, of in scores.items()]
    lines.append(["chance", *(decimals(chance[w]) for w in columns)])
    say_table(header, lines)
    say()
    if not onsets:
        say("no head forms: no chance-corrected score rises by 0.2 after the first step")
        return
    say("when heads form: each head with its clearest probe at the end", "")
    say_table(
        ["head", "probe", "between steps", "score", "highest", "last"],
        [onset_cells(row) for row in clearest_onsets(onsets)],
        words=(0, 1, 2, 3),
    )


def who(row: Row) -> Who:
    """Return whose score a row holds."""
    return row["layer"], row["head"], row["probe"]


def clearest(film: Sequence[Row], onsets: Sequence[Row]) -> list[Who]:
    """Return the heads to show: those that form, else the highest at the end, by layer and head.

    For each head, the probe with the highest chance-corrected last score is shown.
    """
    last = max(row["step"] for row in film)
    setting_in = {who(row) for row in onsets}
    best: dict[tuple[int, int], tuple[bool, float, Who]] = {}
    for row in film:
        if row["step"] != last or row["kappa"] is None:
            continue
        found = (who(row) in setting_in, row["kappa"], who(row))
        head = (row["layer"], row["head"])
        best[head] = max(best.get(head, found), found)
    chosen = sorted(best.values(), reverse=True)[:WIDEST]
    return sorted(w for _, _, w in chosen)


def clearest_onsets(onsets: Sequence[Row]) -> list[Row]:
    """Return one onset per head: that of the probe with the highest last score."""
    best: dict[tuple[int, int], Row] = {}
    for row in onsets:
        head = (row["layer"], row["head"])
        if head not in best or row["last"] > best[head]["last"]:
            best[head] = row
    return [row for row in onsets if row is best[row["layer"], row["head"]]]


def onset_cells(row: Row) -> list[str]:
    """Return a line of the table of onsets."""
    return [
        head_label(row["layer"], row["head"]),
        row["probe"],
        f"{grouped(row['step_before'])} and {grouped(row['step'])}",
        f"{decimals(row['score_before'])} to {decimals(row['score'])}",
        decimals(row["highest"]),
        decimals(row["last"]),
    ]
