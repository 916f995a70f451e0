"""First-order importance of heads in a terminal, beside exact ablations. No torch.

Everything printed is a row of the tables of `probes`, as plain data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apps.console import say, say_facts, say_table
from apps.terminal.ablation_table import FEW_HEADS, TOP, change_cells, metric_name
from lab.naming import counted, head_label
from probes.number_text import decimals, interval, signed, significant

Row = Mapping[str, Any]


def say_importance(
    rows: Sequence[Row], exact: Sequence[Row] | None, *, everything: bool = False
) -> None:
    """Print the importance of each head, beside the exact change where it was measured.

    Args:
        rows: Rows of the importance table.
        exact: Rows of the first_order table, of the same heads; None without exact ablations.
        everything: Whether to show all heads of a large model, or only the first ones.
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
            *([] if own is None else change_cells(own)),
            *([] if own is None else [significant(own["estimate"])]),
            significant(row["importance"]),
            interval(row["ci_low"], row["ci_high"], significant),
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
    """Print how well each estimate agrees with the exact changes: ranks, and the top heads."""
    say_table(
        ["estimate", "compared with", "Spearman", "95 % interval", "shared of\nthe top", "chance"],
        [
            [
                row["estimator"],
                row["compared_with"],
                signed(row["spearman"]),
                interval(row["ci_low"], row["ci_high"], signed),
                f"{row['shared']} of {row['top']}",
                decimals(row["shared_chance"], 1),
            ]
            for row in rows
        ],
        words=(0, 1, 3),
    )


def size(row: Row, own: Row | None) -> float:
    """Return what heads are sorted by: the exact change, else the importance."""
    return abs(row["importance"] or 0.0) if own is None else abs(own["delta"])
