"""The effects of ablation in a terminal: single heads, layers, sets, pairs, groups.

Everything printed is a row of the tables of `probes`, as plain data. No torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apps.console import say, say_table
from lab.naming import counted, head_label
from probes.head_classes import shown_label
from probes.number_text import MISSING, change, decimals, grouped, interval, per_cent

Row = Mapping[str, Any]

FEW_HEADS = 32
"""Show all heads up to this number; of a larger model, those with the largest change."""

TOP = 20
"""Rows that are shown of a large table."""

INTERACTS = 0.01
"""Pairs below this share of the largest interaction are counted, not shown."""

LOWER_BOUND = (
    "A change is a lower bound on a single head's effect, because other heads may compensate."
)
"""The caveat below every table of single ablations."""

TITLES = {"token_accuracy": "token accuracy", "exact_match": "exact-match", "kl": "KL"}
"""Metrics whose printed name differs from their key."""


def say_sweep(rows: Sequence[Row], *, everything: bool = False) -> None:
    """Print the metrics without each head and without each layer, the first one with its change.

    Args:
        rows: Rows of the ablation table: of each set one for each metric, in the same order.
        everything: Whether to show all heads of a large model.
    """
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    sets = [rows[i : i + len(metrics)] for i in range(0, len(rows), len(metrics))]
    singles = [own for own in sets if own[0]["head"] is not None]
    shown = sets
    if len(singles) > FEW_HEADS and not everything:
        worst = sorted(singles, key=lambda own: -abs(own[0]["delta"]))[:TOP]
        shown = [*worst, *(own for own in sets if own[0]["head"] is None)]
    first = metric_title(rows[0])
    header = [
        "without",
        first,
        f"change of\n{first.split(' (')[0]}",
        "95 % interval\nof the change",
    ]
    header += [metric_title(row) for row in sets[0][1:]]
    baseline = ["nothing", metric(rows[0]["baseline"]), MISSING, MISSING]
    lines = [[*baseline, *(metric(row["baseline"]) for row in sets[0][1:])]]
    for own in shown:
        lines.append([without(own[0]), metric(own[0]["ablated"]), *change_cells(own[0])])
        lines[-1] += [metric(row["ablated"]) for row in own[1:]]
    say_table(header, lines, words=(0, 3))
    if len(shown) < len(sets):
        hidden = grouped(len(sets) - len(shown))
        say()
        layers = ", and all layers" if len(singles) < len(sets) else ""
        say(f"the {TOP} heads of the largest change{layers}; {hidden} more with --all-heads")


def say_set(rows: Sequence[Row]) -> None:
    """Print every metric of the whole model beside the same without one set of heads."""
    say(f"ablated together: {rows[0]['heads'].replace(',', ', ')}", "")
    lines = [
        [metric_title(row), metric(row["baseline"]), metric(row["ablated"]), *change_cells(row)]
        for row in rows
    ]
    header = ["", "baseline", "ablated", "change", "95 % interval\nof the change"]
    say_table(header, lines, words=(0, 4))


def say_pairs(rows: Sequence[Row], *, everything: bool = False) -> None:
    """Print what pairs of heads cost beyond the sum of their single costs.

    Args:
        rows: Rows of the pairs table, the largest interaction first.
        everything: Whether to show all pairs, or only those that interact.
    """
    sizes = [abs(row["interaction"]) for row in rows]
    n_interacting = sum(size >= INTERACTS * sizes[0] for size in sizes)
    shown = rows if everything else rows[: min(n_interacting, TOP)]
    say(f"{changes_of(rows[0])}; sorted by the size of the interaction", "")
    lines = [
        [
            f"{head_label(row['layer'], row['head'])} "
            f"{head_label(row['other_layer'], row['other_head'])}",
            *(change(row[name]) for name in ("first", "second", "joint", "interaction")),
            interval_of(row),
        ]
        for row in shown
    ]
    titles = ["first\nalone", "second\nalone", "both", "beyond\nthe sum"]
    say_table(["without", *titles, "95 % interval\nof that"], lines, words=(0, 5))
    if len(shown) < len(rows):
        say(
            "",
            f"the other {counted(len(rows) - len(shown), 'pair')}: at most "
            f"{sizes[len(shown)]:.1e} of interaction, either way; shown with --all-heads",
        )


def say_groups(rows: Sequence[Row], task: str | None, n_heads: int) -> None:
    """Print what groups of heads cost together, beside as many others, and each head's verdict.

    Args:
        rows: Rows of the redundancy table.
        task: The task that the model was read on, if it was: its own heads bear its name.
        n_heads: Heads of the model; heads without a label belong to no group.
    """
    groups = [row for row in rows if row["head"] is None]
    say(changes_of(rows[0]), "")
    titles = ["together", "95 % interval", "sum of\nsingle ones", "as many\nothers"]
    say_table(
        ["group", "heads", *titles, "of the\nsame layers"],
        [
            [
                group_name(row["group"], task),
                f"{len(row['heads'].split(','))}",
                *change_cells(row),
                change(row["singles"]),
                change(row["control"]),
                MISSING if row["control_in_layers"] is None else per_cent(row["control_in_layers"]),
            ]
            for row in groups
        ],
        words=(0, 3),
    )
    say()
    say_table(
        ["head", "group", "alone", "95 % interval", "last of\nits group", "verdict"],
        [
            [
                head_label(row["layer"], row["head"]),
                group_name(row["group"], task),
                *change_cells(row),
                change(row["last"]),
                row["verdict"],
            ]
            for row in rows
            if row["head"] is not None
        ],
        words=(0, 1, 3, 5),
    )
    left_out = n_heads - sum(row["head"] is not None for row in rows)
    if left_out:
        say(
            "", f"not measured: {counted(left_out, 'head')} of {n_heads} without a label of a group"
        )


def changes_of(row: Row) -> str:
    """Say what the numbers of a table are changes of.

    >>> changes_of({"metric": "loss", "unit": "nats"})
    'numbers are changes of loss (nats)'
    """
    return f"numbers are changes of {metric_title(row)}"


def group_name(group: str, task: str | None) -> str:
    """Name a group as tables and figures do, and beside it as people say it.

    >>> group_name("sources", "reversal"), group_name("first", "reversal")
    ('sources (reversal)', 'first')
    """
    said = shown_label(group, task)
    return group if said == group else f"{group} ({said})"


def without(row: Row) -> str:
    """Name what was ablated: a head, a whole layer."""
    if row["head"] is None:
        return f"all of layer {row['layer']}"
    return head_label(row["layer"], row["head"])


def change_cells(row: Row) -> list[str]:
    """Write a change and its interval as two cells."""
    return [change(row["delta"]), interval_of(row)]


def interval_of(row: Row) -> str:
    """Write the interval of a change."""
    return interval(row["ci_low"], row["ci_high"], change)


def metric(value: float | None) -> str:
    """Write a metric."""
    return decimals(value, 4)


def metric_name(row: Row) -> str:
    """Write a metric as people say it."""
    return TITLES.get(row["metric"], str(row["metric"]))


def metric_title(row: Row) -> str:
    """Write a metric as people say it, with its unit.

    >>> metric_title({"metric": "loss", "unit": "nats"})
    'loss (nats)'
    """
    name = metric_name(row)
    return name if row["unit"] in ("", "share") else f"{name} ({row['unit']})"
