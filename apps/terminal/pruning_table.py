"""Pruning in a terminal: curve, removable heads, certificate of a smaller model. No torch.

Everything printed is a row of the tables of `probes`, or a certificate, as plain data.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from apps.console import say, say_table
from apps.terminal.ablation_table import metric, metric_name, metric_title
from apps.terminal.label_table import FEW_HEADS
from lab.naming import counted, head_label
from probes.head_classes import shown_label
from probes.number_text import (
    MISSING,
    decimals,
    grouped,
    in_bytes,
    interval,
    per_cent,
    perplexity,
    with_range,
)

if TYPE_CHECKING:
    from lab.evaluation import Evaluation
    from probes.pruning.removing import ParityCertificate

Row = Mapping[str, Any]

FEW_NAMES = 4
"""Name at most this many heads of a step; count more."""
MANY_NAMES = 32
"""The same for all removed heads."""


def say_curve(rows: Sequence[Row], band: Sequence[Row], *, text: bool = False) -> None:
    """Print the metric after each removal, with the band of random orders.

    Args:
        rows: Rows of the pruning table: of one metric, one order and one way to normalise.
        band: Rows of the random_band table of that metric; empty without random orders.
        text: Whether sequences are text; their loss is also shown as perplexity.
    """
    in_nats = text and rows[0]["metric"] == "loss"
    write = perplexity if in_nats else metric
    beside = {row["n_removed"]: row for row in band}
    n_orders = max((row["n_orders"] for row in band), default=0)
    nats = ["loss\nheld out\n(nats)"] if in_nats else []
    header = ["heads\nkept", "removed", *nats, "selection", "held out", "95 % interval"]
    header += ["parameters"]
    header += (
        [f"{n_orders} random\norders:\nmedian", "their\nleast", "their\nlargest"] if band else []
    )
    lines = []
    for row in rows:
        names = row["removed"].split(",")
        drawn = beside.get(row["n_removed"])
        lines.append(
            [
                grouped(row["n_kept"]),
                row["removed"] if len(names) <= FEW_NAMES else counted(len(names), "head"),
                *([metric(row["held_out"])] if in_nats else []),
                write(row["selection"]),
                write(row["held_out"]),
                interval(row["ci_low"], row["ci_high"], write),
                grouped(row["n_parameters"]),
            ]
        )
        if band:
            of = ("median", "low", "high")
            lines[-1] += [MISSING] * 3 if drawn is None else [write(drawn[name]) for name in of]
    title = "perplexity, exp(loss)," if in_nats else metric_title(rows[0])
    say(f"{title} after each removal, order {order_of(rows[0])}", "")
    say_table(header, lines, words=(1, header.index("95 % interval")))


def say_removable(rows: Sequence[Row]) -> None:
    """Print how many heads can be removed, order by order and metric by metric."""
    shares = sorted({row["within"] for row in rows})
    of: dict[tuple[str, str], dict[float, Row]] = {}
    for row in rows:
        of.setdefault((metric_name(row), order_of(row)), {})[row["within"]] = row
    random = any(row["n_orders"] > 1 for row in rows)
    of_them = " (random: median, range)" if random else ""
    say(
        f"heads that can be removed, of {rows[0]['n_heads']}, "
        f"if held out worsens by at most{of_them}",
        "",
    )
    say_table(
        ["metric", "order", *(per_cent(share) for share in shares)],
        [
            [*names, *(spare(own[share]) if share in own else "0" for share in shares)]
            for names, own in of.items()
        ],
        words=(0, 1),
    )


def spare(row: Row) -> str:
    """Write how many heads an order can remove; for random orders the median and the range."""
    if row["n_orders"] == 1:
        return f"{row['removable']:g}"
    return with_range(row["removable"], row["low"], row["high"])


def order_of(row: Row) -> str:
    """Name an order, with how scores were made comparable where that matters."""
    if row.get("seed") is not None:
        return f"{row['order']}, seed {row['seed']}"
    plain = row["normalise"] in ("", "none")
    return row["order"] if plain else f"{row['order']}, by {row['normalise']}"


def say_certificate(proof: "ParityCertificate", measured: "Mapping[str, Evaluation]") -> None:
    """Print what removing heads saves, and what the models answer.

    Args:
        proof: The certificate.
        measured: What a model reached, by what it is called.
    """
    say_table(
        ["", "before", "after"],
        [
            ["parameters", grouped(proof.parameters_before), grouped(proof.parameters_after)],
            [
                "keys and values of one token",
                in_bytes(proof.cache_bytes_before),
                in_bytes(proof.cache_bytes_after),
            ],
            [
                f"forward pass of {counted(proof.n_sequences, 'sequence')}, "
                f"median of {proof.repeats}",
                f"{proof.latency_ms_before:.1f} ms",
                f"{proof.latency_ms_after:.1f} ms",
            ],
        ],
    )
    say()
    say_table(
        ["", "loss\n(nats)", "token\naccuracy", "exact-match"],
        [
            [name, *(metric(x) for x in (of.loss, of.token_accuracy, of.exact_match))]
            for name, of in measured.items()
        ],
    )
    say()


def certified_facts(proof: "ParityCertificate") -> list[tuple[str, str]]:
    """Return what was removed and how close the models are, as lines for `say_facts`."""
    facts = [("removed", names_or_count(proof.heads))]
    if proof.heads_gone_before:
        facts.append(("gone before", names_or_count(proof.heads_gone_before)))
    parity = f"largest difference of a logit {proof.max_logit_difference:.1e}"
    parity += f", allowed {proof.limit:.0e}"
    saved = "read back bit for bit as they were written"
    if proof.fine_tuned_steps:
        parity += ", of the weights before training"
        saved = f"those after {counted(proof.fine_tuned_steps, 'step')} of training, {saved}"
    return [*facts, ("parity", parity), ("weights", saved)]


def names_or_count(heads: str) -> str:
    """Name heads, or count them where there are many."""
    n = len(heads.split(","))
    return heads if n <= MANY_NAMES else f"{n} heads, named in parity.json"


def say_survivors(rows: Sequence[Row], task: str | None) -> None:
    """Print what the remaining heads did in the whole model, and what they do now.

    Args:
        rows: Rows of the survivors table.
        task: The task that both models were read on, if they were.
    """
    changed = [row for row in rows if row["changed"]]
    many = len(rows) > FEW_HEADS
    say(
        f"labels of the {counted(len(rows), 'remaining head')}, before and now; "
        f"{len(changed)} changed"
    )
    if many and not changed:
        return
    say()
    say_table(
        ["head", "before", "score", "now", "score"],
        [
            [head_label(row["layer"], row["head"]), *did(row, "before_", task), *did(row, "", task)]
            for row in (changed if many else rows)
        ],
        words=(0, 1, 3),
    )


def did(row: Row, when: str, task: str | None) -> list[str]:
    """Return a head's label with its strength, and its score; when: "before_", or "" for now."""
    label = shown_label(row["before" if when else "label"], task)
    strength, score = row[f"{when}strength"], row[f"{when}score"]
    return [f"{label} ({strength})" if strength else label, decimals(score)]
