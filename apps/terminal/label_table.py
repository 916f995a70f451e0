"""What heads do, in a terminal: labels with their evidence, and the whole card of one head.

Everything printed is a row of the tables of `probes.labels.head_labels`, as plain data. No torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apps.console import say, say_facts, say_table
from lab.naming import head_label
from probes.head_classes import LABEL_NAMES, OTHERS, shown_label
from probes.labels.evidence_card import card_facts, card_title
from probes.number_text import MISSING, decimals, grouped, interval, small_probability

Row = Mapping[str, Any]

FEW_HEADS = 32
"""Show all heads up to this number; of a larger model, the top heads of each class."""

TOP = 5
"""Heads of each class that are shown for a larger model."""

FEW_NAMES = 3
"""Name at most this many similar heads; the card names all."""

LABEL_COLUMNS = (
    "head",
    "label",
    "score",
    "control",
    "effect",
    "95 % interval\nof the effect",
    "chance",
    "q",
    "runner-up",
    "note",
)
EVIDENCE_COLUMNS = (
    "probe",
    "score",
    "control",
    "effect",
    "95 % interval",
    "chance",
    "kappa",
    "q",
    "why not",
)


def say_labels(rows: Sequence[Row], *, everything: bool = False, task: str | None = None) -> None:
    """Print the labels of all heads, or of a large model the top heads of each class.

    Args:
        rows: Rows of the labels table.
        everything: Whether to show all heads of a large model.
        task: The task that the model was read on, if it was.
    """
    say_facts([("labels", counted(rows, task))])
    say(
        "",
        "score: attention on the targets; effect: score, minus the control for content classes",
        "",
    )
    chosen = list(rows)
    if len(rows) > FEW_HEADS and not everything:
        chosen = [row for label in labels_in(rows) for row in top_heads(rows, label)]
    say_table(LABEL_COLUMNS, [label_cells(row, task) for row in chosen], words=(0, 1, 5, 8, 9))
    if len(chosen) < len(rows):
        say(
            "",
            f"the top {TOP} of each class; {grouped(len(rows) - len(chosen))} more heads with "
            "--all-heads, and everything about one head with --card",
        )


def rows_scored(rows: Sequence[Row], task: str | None = None) -> list[tuple[str, str]]:
    """Return which rows the labels rest on, a line a class, for `say_facts`.

    Args:
        rows: Rows of the labels table.
        task: The task that the model was read on, if it was.
    """
    known = [row for row in rows if row["label"] not in OTHERS] or rows
    # The part after the last semicolon names the sequences, which the line "input" shows.
    texts = {row["probe"]: row["rows"].rpartition("; ")[0] for row in known if row["rows"]}
    order = [name for name in LABEL_NAMES if name in texts]
    lines = [f"{shown_label(name, task)}: {texts[name]}" for name in order]
    return [("rows" if not i else "", line) for i, line in enumerate(lines)]


def counted(rows: Sequence[Row], task: str | None = None) -> str:
    """Return how many heads have each label.

    >>> counted([{"label": "none", "silent": True}, {"label": "previous", "silent": False}])
    '1 previous, 1 none; 1 silent'
    """
    parts = [
        f"{sum(row['label'] == label for row in rows)} {shown_label(label, task)}"
        for label in labels_in(rows)
    ]
    silent = sum(bool(row["silent"]) for row in rows)
    return ", ".join(parts) + (f"; {silent} silent" if silent else "")


def labels_in(rows: Sequence[Row]) -> list[str]:
    """Return the labels that occur: first those of classes, then the others."""
    found = {row["label"] for row in rows}
    return [name for name in LABEL_NAMES if name in found]


def top_heads(rows: Sequence[Row], label: str) -> list[Row]:
    """Return the clearest heads of a label; none for labels without a class, except mixed."""
    if label in OTHERS and label != "mixed":
        return []
    of_label = [row for row in rows if row["label"] == label]
    return sorted(of_label, key=lambda row: -(row["effect"] or 0.0))[:TOP]


def label_cells(row: Row, task: str | None) -> list[str]:
    """Return a line of the table of labels."""
    label = shown_label(row["label"], task)
    label = label if label != "mixed" else f"mixed: {row['mixture']}"
    strength = f" ({row['strength']})" if row["strength"] else ""
    return [
        head_label(row["layer"], row["head"]),
        f"{label}{strength}",
        decimals(row["score"]),
        decimals(row["control"]),
        decimals(row["effect"]),
        interval(row["ci_low"], row["ci_high"]),
        decimals(row["chance"]),
        # The test is shown only if it is of the same class as the numbers beside it.
        small_probability(row["q_value"] if row["tested"] == row["probe"] else None),
        runner_up(row),
        note(row, task),
    ]


def runner_up(row: Row) -> str:
    """Return the class that comes next, with its score."""
    return f"{row['runner_up']} {decimals(row['runner_up_score'])}" if row["runner_up"] else MISSING


def note(row: Row, task: str | None) -> str:
    """Return further facts about a head, in a few words."""
    parts = ["silent"] if row["silent"] else []
    if row["label"] in OTHERS and row["label"] != "mixed" and row["probe"]:
        parts.append(f"nearest to {shown_label(row['probe'], task)}")
    names = row["redundant_with"].split(",") if row["redundant_with"] else []
    if names:
        more = f" and {len(names) - FEW_NAMES} more" if len(names) > FEW_NAMES else ""
        parts.append(f"like {' '.join(names[:FEW_NAMES])}{more}")
    return ", ".join(parts)


def say_card(row: Row, evidence: Sequence[Row], task: str | None = None) -> None:
    """Print everything that is known of one head.

    Args:
        row: Its row of the labels table.
        evidence: Its rows of the evidence table, a class each.
        task: The task that the model was read on, if it was.
    """
    say(card_title(row, task), row["reason"], "")
    say_facts(card_facts(row))
    say()
    say_table(EVIDENCE_COLUMNS, [evidence_cells(one, task) for one in evidence], words=(0, 4, 8))


def evidence_cells(row: Row, task: str | None) -> list[str]:
    """Return a line of the evidence on a class."""
    return [
        shown_label(row["probe"], task),
        decimals(row["score"]),
        decimals(row["control"]),
        decimals(row["effect"]),
        interval(row["ci_low"], row["ci_high"]),
        decimals(row["chance"]),
        decimals(row["kappa"]),
        small_probability(row["q_value"]),
        row["why_not"] or "",
    ]
