"""The heads that induction heads depend on, in a terminal. No torch.

Everything printed is a row of the table of `probes.feeders.scores`, as plain data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from apps.console import say, say_table
from lab.naming import counted, head_label
from probes.number_text import decimals, interval, signed

Row = Mapping[str, Any]

TOP = 3
"""Heads shown for each target besides those that feed it."""

MANY_NAMES = 4
"""Name at most this many heads that are ablated together; count larger sets."""


def say_feeders(rows: Sequence[Row], *, everything: bool = False) -> None:
    """Print how much each target drops without earlier heads, the largest drop first.

    Args:
        rows: Rows of the feeders table.
        everything: Whether to show every head, or only the feeding heads and a few more.
    """
    say(summary(rows), "")
    lines, hidden = [], 0
    frozen = any(row["frozen_loss_delta"] is not None for row in rows)
    for target in dict.fromkeys(target_of(row) for row in rows):
        own = [row for row in rows if target_of(row) == target]
        # The joint ablation first, then the heads by their drop.
        own.sort(key=lambda row: (row["head"] is not None, -row["drop"]))
        n_fed = sum(row["feeds"] is not False for row in own if row["head"] is not None)
        first = next((i for i, row in enumerate(own) if row["head"] is not None), len(own))
        shown = own if everything else own[: first + max(TOP, n_fed)]
        hidden += len(own) - len(shown)
        lines += [cells(row, frozen) for row in shown]
    header = [
        "head\nwatched",
        "without",
        "previous",
        "score with\nand without",
        "drop",
        "95 % interval",
        "control",
    ]
    header += ["rise of\nloss", "control"]
    header += [*(["attention\nfrozen"] if frozen else [])]
    say_table([*header, "K comp.", "feeds"], lines, words=(0, 1, 5, len(header) + 1))
    if any(row["n_controls"] == 0 for row in rows):
        say("", "control -: every other earlier head attends to the previous token")
    if hidden:
        say()
        more = counted(hidden, "more row")
        say(f"the {TOP} largest drops of each head and all that feed it; {more} with --all-heads")


def summary(rows: Sequence[Row]) -> str:
    """Say in a sentence which heads feed which."""
    fed: dict[str, list[str]] = {}
    for row in rows:
        if row["feeds"] and row["head"] is not None:
            fed.setdefault(head_label(row["layer"], row["head"]), []).append(target_of(row))
    loss = rows[0]["loss"]
    watched = counted(len({target_of(row) for row in rows}), "head")
    about = f"loss of the second copy {loss:.4f} nats; {watched} watched"
    if not fed:
        joint = any(row["head"] is None for row in rows)
        beside = "; see the rows of several heads together" if joint else ""
        return f"{about}; no single head feeds one measurably{beside}"
    named = "; ".join(f"{head} feeds {', '.join(targets)}" for head, targets in fed.items())
    return f"{about}; {named}"


def cells(row: Row, frozen: bool) -> list[str]:
    """Write one row: what was ablated, and how a target and the loss changed."""
    return [
        target_of(row),
        without(row),
        decimals(row["previous"]),
        f"{row['baseline']:.2f}, {row['ablated']:.2f}",
        signed(row["drop"]),
        interval(row["ci_low"], row["ci_high"], signed),
        signed(row["control"]),
        signed(row["loss_delta"]),
        signed(row["loss_control"]),
        *([signed(row["frozen_loss_delta"])] if frozen else []),
        signed(row["k_composition"]),
        {True: "yes", False: "", None: "cannot tell"}[row["feeds"]],
    ]


def without(row: Row) -> str:
    """Name what was ablated.

    >>> without({"head": None, "heads": "L0H1,L0H2,L1H0,L1H3,L2H2"})
    '5 heads together'
    """
    heads = row["heads"].split(",")
    return " ".join(heads) if len(heads) <= MANY_NAMES else f"{len(heads)} heads together"


def target_of(row: Row) -> str:
    """Name the head that is watched."""
    return head_label(row["target_layer"], row["target_head"])
