"""The HTML report: one file that opens anywhere, with nothing to load and nothing that runs.

Figures are inlined, there is no script and no address, and every text is escaped, whatever a token,
a run or a command is called. The numbers in its tables are those of the CSV, character for
character.
"""

import base64
import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from probes.labels.evidence_card import card_facts, card_title
from probes.registry import get_probe
from probes.tables import CSV_FLOAT, csv_text, json_rows

STYLE = """
:root { --ink: #1b2733; --muted: #5b6b7a; --faint: #d9e0e6; --paper: #ffffff; --blue: #0b5c94; }
* { box-sizing: border-box; }
body { margin: 0; background: #eef2f5; color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 66rem; margin: 2rem auto; padding: 2.5rem 3rem 3rem; background: var(--paper);
  border: 1px solid var(--faint); border-radius: 6px; }
h1 { margin: 0; font-size: 2rem; line-height: 1.2; }
h2 { margin: 2.6rem 0 .6rem; font-size: 1.3rem; }
p { margin: .5rem 0; max-width: 46rem; }
.under { color: var(--muted); margin: .3rem 0 1.6rem; }
.lead { font-size: 1.15rem; border-left: 4px solid var(--blue); padding: .2rem 0 .2rem 1rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1px;
  margin: 1.6rem 0 0; background: var(--faint); border: 1px solid var(--faint); }
.facts div { background: var(--paper); padding: .7rem .9rem; }
.facts dt { color: var(--muted); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; margin: .8rem 0; width: 100%; }
th { text-align: left; color: var(--muted); font-weight: 600; }
thead th { border-bottom: 2px solid var(--faint); }
th, td { padding: .22rem .7rem .22rem 0; vertical-align: top; }
td { border-bottom: 1px solid var(--faint); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.data td, .data th { white-space: nowrap; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: #f3f5f7; border: 1px solid var(--faint); border-radius: 4px; padding: .7rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .88rem; }
h3 { margin: 1.2rem 0 .2rem; font-size: 1rem; }
.card { border-top: 1px solid var(--faint); padding: .2rem 0 .4rem; break-inside: avoid; }
.card td:first-child { color: var(--muted); white-space: nowrap; width: 16rem; }
summary { cursor: pointer; color: var(--blue); }
td.long { overflow-wrap: anywhere; }
@media print { body { background: none; font-size: 11px; } thead { display: table-header-group; }
  main { margin: 0; padding: 0; border: 0; max-width: none; } figure, tr { break-inside: avoid; } }
@media (max-width: 40rem) { main { padding: 1.2rem; margin: 0; border: 0; } }
"""

ENDS: Mapping[str, str] = MappingProxyType({"ci_low": "95 % from", "ci_high": "95 % to"})
"""Headings of the ends of an interval, by their columns."""

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Even if something slipped through, a browser would load and run nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """What a report's page shows."""

    title: str
    """What was probed."""
    subtitle: str
    """One line below it."""
    sentence: str
    """What was found, in one sentence."""
    facts: Mapping[str, str]
    """A few numbers for the top, by name."""
    figures: Mapping[str, bytes]
    """PNG files by name: labels, heads, spectrum, entropy, ablation, and, where there is something
    to show, dynamics, stripes, ladder and attention; a model without heads has no figures."""
    heads: pd.DataFrame
    """The table of score_heads."""
    labels: pd.DataFrame
    """The table of label_heads."""
    task: str | None
    """The task that the model was trained on, if any."""
    forming: str
    """When its heads form, in a sentence."""
    ablation: pd.DataFrame
    """The table of ablation_sweep."""
    causes: Sequence[str]
    """Parts about groups of heads and smaller models; see `probes.report.page_causes`."""
    command: str
    """What makes this report again."""
    provenance: Mapping[str, str]
    """What the numbers were measured on, by name."""
    files: Sequence[str]
    """Names of the files beside this one."""


def report_page(content: Content) -> str:
    """Return the whole page as HTML."""
    files = ", ".join(f"<code>{text(name)}</code>" for name in content.files)
    parts = [
        f"<h1>{text(content.title)}</h1>",
        f'<p class="under">{text(content.subtitle)}</p>',
        f'<p class="lead">{text(content.sentence)}</p>',
        '<dl class="facts">',
        *(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in content.facts.items()),
        "</dl>",
        *(label_sections(content) if len(content.labels) else []),
        *(film_sections(content) if "dynamics" in content.figures else []),
        *(head_sections(content) if len(content.heads) else []),
        "<h2>Where these numbers come from</h2>",
        f"<pre>{text(content.command)}</pre>",
        pairs_table(content.provenance),
        f"<p>Beside this file: {files}.</p>",
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(content.title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def label_sections(content: Content) -> list[str]:
    """Return what the page says each head does, and the evidence for it."""
    rows = sorted(json_rows(content.labels), key=rank)
    cards = "\n".join(card_section(row, content.task) for row in rows)
    return [
        "<h2>What each head does</h2>",
        "<p>A head gets a label only if the lower end of its interval exceeds the label's "
        "threshold, if the runner-up is far enough behind, and, where there is a control, if the "
        "difference is not luck. Otherwise its label is uniform, broad, mixed or none. Silent "
        "heads write next to nothing, whatever they attend to.</p>",
        figure(content.figures["labels"], "Label of every head, layer by head"),
        label_table(rows, content.task),
        f"<details><summary>The evidence card of each of the {len(rows)} heads</summary>\n"
        f"{cards}</details>",
    ]


def film_sections(content: Content) -> list[str]:
    """Return what the page says of the training, as a film of scores."""
    return [
        "<h2>How the heads formed</h2>",
        f"<p>{text(content.forming)} A head sets in where its score, corrected for chance, is half "
        "of the way up, and stays there.</p>",
        figure(
            content.figures["dynamics"],
            "Score of every head over training, with a mark where it sets in",
        ),
    ]


def rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a head: classes first, the clearest on top."""
    return (not row["strength"], row["label"], -(row["score"] or 0.0), row["layer"], row["head"])


def label_table(rows: Sequence[Mapping[str, Any]], task: str | None) -> str:
    """Return one row a head: its label, its score and why."""
    cells = [
        [
            *card_title(row, task).split(": "),
            "" if row["score"] is None or not row["strength"] else CSV_FLOAT % row["score"],
            row["reason"],
        ]
        for row in rows
    ]
    return html_table(["head", "label", "score", "why"], cells, [False, False, True, False])


def card_section(row: Mapping[str, Any], task: str | None) -> str:
    """Return the evidence card of one head."""
    return (
        f'<section class="card"><h3>{text(card_title(row, task))}</h3><p>{text(row["reason"])}</p>'
        f"{pairs_table(dict(card_facts(row)))}</section>"
    )


def head_sections(content: Content) -> list[str]:
    """Return what the page says about the heads, with its figures and tables."""
    figures, heads, ablation = content.figures, content.heads, content.ablation
    parts = [
        "<h2>Scores, probe by probe</h2>",
        "<p>Each number is the share of a head's attention that falls on a probe's targets, "
        "averaged over the rows that the probe scores. White is 0, dark is 1; a head that spreads "
        "its attention evenly scores the chance given below.</p>",
        figure(figures["heads"], "Scores of every head, one grid a probe"),
        probe_table(heads),
    ]
    if "stripes" in figures:
        parts += [
            "<h2>On the source, or a row late</h2>",
            "<p>A head that reads the source of the answer when the answer is due is another "
            "mechanism than one that looks back at it from the token already written: only the "
            "first bar counts.</p>",
            figure(figures["stripes"], "Mass on the answer's source, on time and late, by head"),
        ]
    if "ladder" in figures:
        parts += [
            "<h2>Around the earlier copy</h2>",
            "<p>On random blocks said twice: the attention on the token before the earlier copy, "
            "on the copy itself (duplicate-token heads), and on the token after it (induction "
            "heads). Diamonds are the same cells where the first block is another one.</p>",
            figure(figures["ladder"], "Mass before, on and after the earlier copy, by head"),
        ]
    if "spectrum" in figures:
        parts += [
            "<h2>How far back heads look</h2>",
            "<p>Attention by distance, the same rows for every distance. A previous-token head has "
            "a peak at 1; a preference for recent tokens falls off slowly.</p>",
            figure(figures["spectrum"], "Mean attention at each distance, by head"),
        ]
    if "attention" in figures:
        parts += [
            "<h2>The clearest head, on one sequence</h2>",
            "<p>Each row is a query token, each column a key token that it may attend to.</p>",
            figure(figures["attention"], "Attention map of the clearest head"),
        ]
    return [
        *parts,
        "<h2>How widely heads look</h2>",
        "<p>Low entropy is a head that picks few tokens. It is measured a second time with the "
        "first token left out, because many heads rest on it.</p>",
        figure(figures["entropy"], "Entropy of every head by position"),
        "<h2>What breaks without them</h2>",
        "<p>A head is ablated by putting zeros, or its mean over other sequences, in the place of "
        "its output. Another head may replace a head whose removal changes nothing: compare whole "
        f"layers. Whiskers are 95 % intervals over {ablation['n_sequences'].max()} sequences.</p>",
        figure(figures["ablation"], "Change of the loss and of exact match for every ablation"),
        ablation_table(ablation),
        *content.causes,
        "<h2>All scores</h2>",
        "<p>The rows of <code>heads.csv</code>. <code>kappa</code> is the score corrected for "
        "chance: (score - chance) / (1 - chance). An empty cell is a number that has no "
        "meaning.</p>",
        f"<details><summary>{len(heads)} rows</summary>{data_table(heads)}</details>",
    ]


def text(value: str) -> str:
    """Escape a text for HTML, inside tags and inside quoted attributes."""
    return html.escape(value, quote=True)


def figure(png: bytes, description: str) -> str:
    """Return an inlined picture with its description for people who do not see it."""
    data = base64.b64encode(png).decode("ascii")
    return f'<figure><img alt="{text(description)}" src="data:image/png;base64,{data}"></figure>'


def data_table(frame: pd.DataFrame) -> str:
    """Return a table with the very characters of its CSV."""
    header, *rows = csv.reader(io.StringIO(csv_text(frame)))
    numeric = [pd.api.types.is_numeric_dtype(frame[name]) for name in header]
    return html_table(header, rows, numeric, kind="data")


def ablation_table(ablation: pd.DataFrame) -> str:
    """Return one row an ablation, with the very characters of its CSV for every metric."""
    rows: dict[tuple[str, str], list[str]] = {}
    for row in csv.DictReader(io.StringIO(csv_text(ablation))):
        name = row["heads"] if row["head"] else f"all of layer {row['layer']}"
        own = rows.setdefault((name, row["mode"]), [name, row["mode"]])
        own += [row["ablated"], row["delta"]]
        if row["metric"] == "loss":
            own += [row["ci_low"], row["ci_high"]]
    header = ["ablated", "in its place"]
    for metric in dict.fromkeys(ablation["metric"]):
        header += [metric.replace("_", " "), "change"]
        header += list(ENDS.values()) if metric == "loss" else []
    return html_table(header, list(rows.values()), [False, False, *[True] * (len(header) - 2)])


def probe_table(heads: pd.DataFrame) -> str:
    """Return what each probe of the table means and what chance gives."""
    rows = []
    for name in dict.fromkeys(heads["probe"]):
        probe = get_probe(name)
        first = heads[heads["probe"] == name].iloc[:1]
        chance = next(csv.reader(io.StringIO(csv_text(first[["chance"]]).splitlines()[1])), [""])[0]
        rows.append([name, probe.summary, probe.rows, probe.caveat, chance])
    header = ["probe", "a high score means", "rows and keys that count", "beware", "chance"]
    return html_table(header, rows, [False, False, False, False, True])


def pairs_table(pairs: Mapping[str, str]) -> str:
    """Return a table of names and values."""
    cells = (
        f'<tr><td>{text(k)}</td><td class="long">{text(v)}</td></tr>' for k, v in pairs.items()
    )
    return f'<div class="scroll"><table><tbody>{"".join(cells)}</tbody></table></div>'


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    kind: str = "words",
) -> str:
    """Return a table, numbers to the right."""
    kinds = [' class="n"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{kind}>{text(name)}</th>" for kind, name in zip(kinds, header, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{kind}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )
