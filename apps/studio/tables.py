"""The comparison of baseline and ablation as a small static table, safe to show as HTML."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

METRICS: tuple[tuple[str, str], ...] = (
    ("loss", "Loss"),
    ("exact_match", "Exact match"),
    ("token_accuracy", "Per-token accuracy"),
)
"""Names in lab.evaluation and on the screen."""


def shown(metric: str, value: float) -> str:
    """Write one number: a loss in nats, a share as per cent.

    >>> shown("loss", 2.31), shown("loss", 0.000016), shown("exact_match", 0.123)
    ('2.3100 nats', '0.000016 nats', '12.3 %')
    """
    if metric != "loss":
        return share(value)
    if 0 < value < 1e-6:
        return "below 0.000001 nats"
    return f"{value:.4f} nats" if value >= 0.001 else f"{value:.6f} nats"


def share(value: float) -> str:
    """Write a share as per cent; all and none are said of nothing less.

    >>> share(1.0), share(0.9995), share(0.5)
    ('100.0 %', '99.95 %', '50.0 %')
    """
    texts = [f"{100 * value:.{digits}f} %" for digits in (1, 2, 3)]
    honest = [text for text in texts if value in (0.0, 1.0) or 0 < float(text[:-2]) < 100]
    return honest[0] if honest else texts[-1]


def comparison(
    columns: Sequence[tuple[str, str, Mapping[str, float]]],
    changes: Mapping[str, Mapping[str, float | None]] | None = None,
) -> str:
    """Return an HTML table: a row a metric, a column a model, and maybe what changes.

    Args:
        columns: (what the model is called, class of the column, its numbers).
        changes: Of each metric delta, ci_low and ci_high.
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


def change_cell(metric: str, change: Mapping[str, float | None]) -> str:
    """Return the cell of a change, its interval in a smaller line below."""
    delta, low, high = (changed(metric, change[end]) for end in ("delta", "ci_low", "ci_high"))
    unit = "nats" if metric == "loss" else "points"
    return (
        f'<td class="change" data-change="{metric}">{delta} {unit}'
        f"<small>{low} to {high}</small></td>"
    )


def changed(metric: str, value: float | None) -> str:
    """Write a change with its sign: of a loss in nats, of a share in points of per cent.

    >>> changed("loss", 2.31), changed("loss", 0.00012), changed("exact_match", -0.123)
    ('+2.3100', '+0.000120', '-12.3')
    >>> changed("loss", 0.0), changed("loss", None)
    ('0', '-')
    """
    if value is None:
        return "-"
    if not value:
        return "0"
    if metric != "loss":
        return f"{100 * value:+.1f}" if abs(value) >= 0.0005 else f"{100 * value:+.3f}"
    if abs(value) < 1e-6:
        return f"{value:+.0e}"
    return f"{value:+.4f}" if abs(value) >= 0.001 else f"{value:+.6f}"


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of texts, the first of each row its name."""
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


SIZES: tuple[tuple[str, str, str], ...] = (
    ("parameters", "Parameters", "{:,}"),
    ("cache_bytes", "Cache of a token (bytes)", "{:,}"),
    ("latency_ms", "Forward pass (ms)", "{:.2f}"),
)
"""Names in a parity certificate and on the screen, and how their values are written."""


def before_and_after(certificate: Mapping[str, Any]) -> str:
    """Return an HTML table of what pruning made smaller."""
    rows = "".join(
        f"<tr><th>{title}</th>"
        f'<td data-size="{name}_before">{form.format(certificate[f"{name}_before"])}</td>'
        f'<td data-size="{name}_after">{form.format(certificate[f"{name}_after"])}</td></tr>'
        for name, title, form in SIZES
    )
    head = "<thead><tr><th></th><th>Before</th><th>After</th></tr></thead>"
    return f'<table class="comparison">{head}<tbody>{rows}</tbody></table>'
