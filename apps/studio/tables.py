"""The comparison of baseline and ablation as a small static table, safe to show as HTML."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from probes.number_text import change, decimals, grouped, in_bytes, interval, nats, per_cent, points

METRICS: tuple[tuple[str, str], ...] = (
    ("loss", "Loss"),
    ("exact_match", "Exact match"),
    ("token_accuracy", "Per-token accuracy"),
)
"""Names in lab.evaluation and on the screen."""


def shown(metric: str, value: float) -> str:
    """Write a metric: a loss in nats, a share as per cent."""
    return nats(value) if metric == "loss" else per_cent(value, 1)


def comparison(
    columns: Sequence[tuple[str, str, Mapping[str, float]]],
    changes: Mapping[str, Mapping[str, float | None]] | None = None,
) -> str:
    """Return an HTML table: a row per metric, a column per model, and the change if given.

    Args:
        columns: (name of the model, class of the column, its numbers).
        changes: For each metric: delta, ci_low and ci_high.
    """
    head = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind, _ in columns)
    head += "" if changes is None else '<th class="change">Change (95 % interval)</th>'
    rows = "".join(
        f"<tr><th>{title}</th>"
        + "".join(
            f'<td class="{kind}" data-metric="{metric}">{shown(metric, values[metric])}</td>'
            for _, kind, values in columns
        )
        + ("" if changes is None else change_cell(metric, changes[metric]))
        + "</tr>"
        for metric, title in METRICS
    )
    top = f"<thead><tr><th></th>{head}</tr></thead>"
    return f'<table class="comparison">{top}<tbody>{rows}</tbody></table>'


def change_cell(metric: str, row: Mapping[str, float | None]) -> str:
    """Return the cell of a change, its interval in a smaller line below."""
    write, unit = (change, "nats") if metric == "loss" else (points, "points")
    return (
        f'<td class="change" data-change="{metric}">{write(row["delta"])} {unit}'
        f"<small>{interval(row['ci_low'], row['ci_high'], write)}</small></td>"
    )


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of texts; the first cell of each row is its name."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = "".join(
        f"<tr><th>{escape(row[0])}</th>"
        + "".join(f"<td>{escape(c)}</td>" for c in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<table class="plain"><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Return an HTML table of names and texts."""
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in pairs)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


SIZES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("parameters", "Parameters", grouped),
    ("cache_bytes", "Cache of a token", in_bytes),
    ("latency_ms", "Forward pass (ms)", partial(decimals, digits=1)),
)
"""Names in a parity certificate and on the screen, and how their values are written."""


def before_and_after(certificate: Mapping[str, Any]) -> str:
    """Return an HTML table of sizes before and after pruning."""
    rows = "".join(
        f"<tr><th>{title}</th>"
        f'<td data-size="{name}_before">{write(certificate[f"{name}_before"])}</td>'
        f'<td data-size="{name}_after">{write(certificate[f"{name}_after"])}</td></tr>'
        for name, title, write in SIZES
    )
    head = "<thead><tr><th></th><th>Before</th><th>After</th></tr></thead>"
    return f'<table class="comparison">{head}<tbody>{rows}</tbody></table>'
