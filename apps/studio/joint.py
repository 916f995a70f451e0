"""The effect of several heads together and one by one: rows of a table in, words out.

No Streamlit, and no number is computed: `probes.ablation.redundancy` measures, and decides
by intervals which head is redundant.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apps.terminal.ablation_table import change_cells, interval_of
from lab.naming import counted, head_label
from probes.number_text import change

Row = Mapping[str, Any]

HEADER = ("without", "change of loss (nats)", "95 % interval", "after the others", "verdict")

VERDICTS = (
    ("redundant", "can be removed alone, but not with the others: redundant, not useless"),
    ("needed", "{is} missed even alone"),
    ("useless", "can be removed, alone or with the others"),
    ("unresolved", "{is} undecided: removable alone and last, but not all combinations were tried"),
)
"""Sentences about heads, by their verdict."""

RULE = (
    '"Missed" means that the loss rises by more than 0.01 nats and the 95 % interval excludes 0. '
    '"After the others" is the change when the others are already ablated.'
)
"""The rule for verdicts: TOLERANCES in probes.ablation.redundancy."""


def joint_sentence(rows: Sequence[Row]) -> str:
    """Say what the heads cost together and one by one, and which can be removed.

    Args:
        rows: Rows of one group of the redundancy table, the row of the group first.
    """
    group, heads = rows[0], rows[1:]
    costs = (
        f"Together these {len(heads)} heads change the loss by {change(group['delta'])} nats "
        f"(95 % interval {interval_of(group)}, {counted(group['n_sequences'], 'sequence')}); "
        f"one by one it adds up to {change(group['singles'])}."
    )
    if group["verdict"] == "useless" and all(row["verdict"] == "useless" for row in heads):
        return f"{costs} All of them can be removed without loss."
    said = []
    for verdict, words in VERDICTS:
        names = [name_of(row) for row in heads if row["verdict"] == verdict]
        if names:
            who = "Each" if len(names) == len(heads) else listed(names)
            is_or_are = "is" if who == "Each" or len(names) == 1 else "are"
            said.append(f"{who} {words.replace('{is}', is_or_are)}.")
    return " ".join([costs, *said])


def joint_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Return the numbers behind the sentence as cells; see HEADER."""
    group, heads = rows[0], rows[1:]
    return [
        *(
            [
                name_of(row),
                *change_cells(row),
                change(row["last"]),
                row["verdict"],
            ]
            for row in heads
        ),
        ["one by one, added up", change(group["singles"]), "", "", ""],
        ["all together", change(group["delta"]), interval_of(group), "", group["verdict"]],
    ]


def name_of(row: Row) -> str:
    """Return the label of a row's head."""
    return head_label(row["layer"], row["head"])


def listed(names: Sequence[str]) -> str:
    """Write names as a sentence has them.

    >>> listed(["L0H0"]), listed(["L0H0", "L0H1", "L1H0"])
    ('L0H0', 'L0H0, L0H1 and L1H0')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
