"""The registry of probes as a page to read: docs/probes.md. No torch.

`make docs` writes the page again; a test holds it to the registry.
"""

from probes.registry import PROBES, ProbeEntry

HEAD = """\
# Probes

This page is generated from [probes/registry.py](../probes/registry.py) by `make docs`.

Each probe names target cells (q, k) of the attention matrix A, query position q and key position
k, both counted from 0. `score_heads` reports for every head:

- `score`: the mean over scored rows of the mass on the row's targets, sum over k of A[q, k];
- `chance`: the score of a head that spreads evenly over the keys it sees: A[q, k] = 1 / (q + 1) in
  a causal model, 1 / (all keys) in a bidirectional one;
- `kappa`: (score - chance) / (1 - chance), so that 0 is chance and 1 is perfect;
- `ci_low`, `ci_high`: an interval from resampling sequences.

A probe that has no row to score on the given tokens is NaN, never 0.
"""


def probes_as_markdown() -> str:
    """Return the page."""
    overview = ["| probe | a high score means |", "|---|---|"]
    overview += [f"| [{entry.name}](#{entry.name}) | {entry.summary} |" for entry in PROBES]
    return "\n".join([HEAD, *overview, *(section(entry) for entry in PROBES)]) + "\n"


def section(entry: ProbeEntry) -> str:
    """Return what the page says of one probe."""
    needs = "a batch of a task" if entry.needs_sources else "any tokens"
    return f"""
## {entry.name}

{entry.title}. {entry.summary}

- Rows and cells: {entry.rows}
- Unit: {entry.unit}, from {entry.low:g} to {entry.high:g}
- Needs: {needs}
- Source: {entry.source}
- Caveat: {entry.caveat}"""
