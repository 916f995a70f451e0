"""First-order importance of heads in a terminal, beside what ablations say. No torch.

Everything printed is a row of the tables of `probes`, as plain data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apps.console import say, say_facts, say_table
from apps.terminal.ablation_table import FEW_HEADS, TOP, interval, metric_name, signed
from lab.naming import counted, head_label

Row = Mapping[str, Any]


def say_importance(
    rows: Sequence[Row], exact: Sequence[Row] | None, *, everything: bool = False
) -> None:
    """Print the importance of each head, beside the exact change where it was measured.

    Args:
        rows: Rows of the importance table.
        exact: Rows of the first_order table, of the same heads; None: it was not asked for.
        everything: Whether all heads are shown, or of a large model the first ones.
    """
    first = rows[0]
    said = f"absolute values by {first['reduce']}, in {first['unit']}"
    say_facts([("metric", metric_name(first)), ("importance", said)])
    say()
    pairs = list(zip(rows, exact or [None] * len(rows), strict=True))
    shown = pairs
    if len(rows) > FEW_HEADS and not everything:
        shown = sorted(pairs, key=lambda pair: -size(*pair))[:TOP]
    lines = [
        [
            head_label(row["layer"], row["head"]),
            *([] if own is None else [signed(own["delta"]), interval(own)]),
            *([] if own is None else [digits(own["estimate"])]),
            digits(row["importance"]),
            span(row),
        ]
        for row, own in shown
    ]
    header = ["head", *([] if exact is None else ["exact\nchange", "95 % interval", "estimate"])]
    header += ["importance", "95 % interval"]
    say_table(header, lines, words=(0, len(header) - 1, *([] if exact is None else [2])))
    if len(shown) < len(rows):
        say()
        more = counted(len(rows) - len(shown), "more head")
        say(f"the {TOP} largest; {more} with --all-heads")


def say_agreement(rows: Sequence[Row]) -> None:
    """Print how far each estimate agrees with the exact changes: ranks, and the heads on top."""
    say_table(
        ["estimate", "compared with", "Spearman", "95 % interval", "shared of\nthe top", "chance"],
        [
            [
                row["estimator"],
                row["compared_with"],
                "-" if row["spearman"] is None else f"{row['spearman']:+.2f}",
                "-" if row["ci_low"] is None else f"{row['ci_low']:+.2f} to {row['ci_high']:+.2f}",
                f"{row['shared']} of {row['top']}",
                f"{row['shared_chance']:.1f}",
            ]
            for row in rows
        ],
        words=(0, 1, 3),
    )


def size(row: Row, own: Row | None) -> float:
    """Return what heads are sorted by: the exact change, else the importance."""
    return abs(row["importance"] or 0.0) if own is None else abs(own["delta"])


def span(row: Row) -> str:
    """Write the interval of an importance; a dash where there is none, as of one sequence.

    >>> span({"ci_low": 0.25, "ci_high": 1.5}), span({"ci_low": None, "ci_high": None})
    ('0.25 to 1.5', '-')
    """
    if row["ci_low"] is None:
        return "-"
    return f"{digits(row['ci_low'])} to {digits(row['ci_high'])}"


def digits(value: float | None) -> str:
    """Write a number of any size; a missing one as a dash."""
    return "-" if value is None else f"{value:.3g}"
