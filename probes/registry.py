"""The one list of probes: what each asks of a head, in which unit, and where its cells are defined.

A probe of this list is the attention mass that a head puts on a set of target cells. A new one is a
function in `probes.attention.targets` and an entry here; tables, reports and docs/probes.md follow.
An entry in `probes.head_classes` makes it a label too. No torch is imported: `where` is resolved on
use.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from lab.naming import unknown_name

MASS = "mean probability"
"""Unit of every probe of this list: attention mass on the targets, averaged over scored rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A head to plant that a probe scores near 1, and what it is shown on."""

    kind: str
    """A kind of `probes.planted.heads`; or, for a head that attends by position alone, the
    module:function (n_ctx) that gives the key of every row."""
    distance: int = 0
    """By how many tokens its target is shifted, for the kinds offset, pointer and reversal."""
    on: Literal["word", "blocks"] = "word"
    """A word and its reversal, or a block of different symbols twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeEntry:
    """What a person needs to know to read one probe's numbers."""

    name: str
    """Name in tables, addresses and on the command line."""
    title: str
    """Name on screens and plots."""
    summary: str
    """One sentence: what a high score means."""
    head_kind: str
    """What a head with a high score is called."""
    target: str
    """What such a head attends to, to follow "puts its attention on"."""
    formula: str
    """The score in plain text: A is the attention matrix, q a row of it and k a key."""
    rows: str
    """Which query rows are scored, and which keys count in each."""
    source: str
    """Where the definition comes from."""
    caveat: str
    """What a high score does not show."""
    where: str
    """module:function that gives the target cells."""
    example: Example
    """The planted head of its picture, its tests and, if it is a class, of the report card."""
    rung: str = ""
    """What it is called beside its neighbours, in charts that show them together."""
    unit: str = MASS
    """Unit of the score."""
    low: float = 0.0
    """Smallest possible score."""
    high: float = 1.0
    """Largest possible score."""
    needs_sources: bool = False
    """Whether only a task's batch, which knows its sources, can be probed."""


PROBES: tuple[ProbeEntry, ...] = (
    ProbeEntry(
        name="sources",
        title="Task sources",
        summary="Attends to the symbol that is the answer; for reversal, the anti-diagonal.",
        head_kind="source head",
        target="the position that holds the answer",
        formula="mean over p of the sum of A[p, s] over the sources s of row p's answer",
        rows="rows whose logits predict an answer; key: the position that holds it "
        "(reversal: query + key = 2n + 1)",
        source="Vaswani et al. 2017 attention maps, read at the positions the task names",
        caveat="Attending is not using: confirm by ablation. In the copy task an induction head "
        "attends to the same cells.",
        where="probes.attention.targets:answer_sources",
        example=Example(kind="reversal"),
        rung="on time: the answer's source",
        needs_sources=True,
    ),
    ProbeEntry(
        name="sources_plus_1",
        title="Sources, one row late",
        summary="Each answer token looks back at its own original: a duplicate-token stripe.",
        head_kind="late source head",
        target="the source of the answer one row late",
        formula="mean over p of the sum of A[p + 1, s] over the sources s of row p's answer",
        rows="the row after each scored one; key: as in sources, without those that are sources of "
        "that row too (reversal: query + key = 2n + 2)",
        source="neighbouring stripe of sources; a one-off reading of the map reports this one",
        caveat="A control for sources: a head that is high only here matches equal tokens.",
        where="probes.attention.targets:answer_sources_plus_1",
        example=Example(kind="duplicate"),
        rung="one row late",
        needs_sources=True,
    ),
    ProbeEntry(
        name="sources_plus_2",
        title="Sources, two rows late",
        summary="Looks two rows late at the source; for reversal, an induction stripe.",
        head_kind="late source head",
        target="the source of the answer two rows late",
        formula="mean over p of the sum of A[p + 2, s] over the sources s of row p's answer",
        rows="two rows after each scored one; key: as in sources_plus_1 "
        "(reversal: query + key = 2n + 3)",
        source="neighbouring stripe of sources",
        caveat="A control for sources, with one row less: the last one has no place.",
        where="probes.attention.targets:answer_sources_plus_2",
        example=Example(kind="induction"),
        rung="two rows late",
        needs_sources=True,
    ),
    ProbeEntry(
        name="previous",
        title="Previous token",
        summary="Attends to the token just before.",
        head_kind="previous-token head",
        target="the token just before",
        formula="mean over q of A[q, q - 1]",
        rows="rows from 2 on (from 1 if the first token is not BOS or SEP); key: query - 1",
        source="Olsson et al. 2022, In-context learning and induction heads",
        caveat="A head that prefers recent tokens scores too; compare with other distances.",
        where="probes.attention.targets:previous_token",
        example=Example(kind="previous"),
    ),
    ProbeEntry(
        name="current",
        title="Current token",
        summary="Attends to the token itself.",
        head_kind="current-token head",
        target="the token itself",
        formula="mean over q of A[q, q]",
        rows="rows from 1 on; key: query",
        source="ARENA 3.0, current-token heads",
        caveat="Token-matching heads that do not exclude themselves score too.",
        where="probes.attention.targets:current_token",
        example=Example(kind="current"),
    ),
    ProbeEntry(
        name="first",
        title="First token",
        summary="Rests on the first position: an attention sink.",
        head_kind="first-token head",
        target="the first position",
        formula="mean over q of A[q, 0]",
        rows="rows from 1 on; key: 0",
        source="Gu et al. 2025, When attention sink emerges in language models",
        caveat="Often a head at rest: the value it reads there may be close to zero.",
        where="probes.attention.targets:first_token",
        example=Example(kind="first"),
    ),
    ProbeEntry(
        name="duplicate",
        title="Duplicate token",
        summary="Attends to earlier copies of the same token.",
        head_kind="duplicate-token head",
        target="earlier copies of the same token",
        formula="mean over q of the sum of A[q, k] over k < q with x_k = x_q",
        rows="rows whose token occurred earlier (BOS and SEP do not count); keys: all earlier "
        "copies",
        source="Wang et al. 2023, Interpretability in the wild",
        caveat="Common words repeat in natural text, so classify heads on random tokens.",
        where="probes.attention.targets:duplicate_token",
        example=Example(kind="duplicate", on="blocks"),
        rung="0: the earlier copy itself",
    ),
    ProbeEntry(
        name="induction",
        title="Induction",
        summary="Attends to what followed the same token earlier.",
        head_kind="induction head",
        target="what followed the same token earlier",
        formula="mean over q of the sum of A[q, k + 1] over k < q with x_k = x_q",
        rows="rows whose token occurred earlier (BOS and SEP do not count); keys: the positions "
        "right after each earlier copy",
        source="Olsson et al. 2022, In-context learning and induction heads",
        caveat="Measures prefix matching only; the full definition also requires copying.",
        where="probes.attention.targets:induction",
        example=Example(kind="induction", on="blocks"),
        rung="+1: the token after the earlier copy",
    ),
    ProbeEntry(
        name="preceder",
        title="Preceder",
        summary="Attends to what preceded the same token earlier.",
        head_kind="preceder head",
        target="what preceded the same token earlier",
        formula="mean over q of the sum of A[q, k - 1] over k < q with x_k = x_q",
        rows="rows whose token occurred earlier (BOS and SEP do not count); keys: the positions "
        "right before each earlier copy, unless that is BOS or SEP",
        source="Olsson et al. 2022, whose appendix words prefix matching this way; their code and "
        "ours call the token after the copy induction",
        caveat="The target is one key before the duplicate target and two before the induction "
        "target; compare all three.",
        where="probes.attention.targets:preceder",
        example=Example(kind="pointer", distance=-1, on="blocks"),
        rung="-1: the token before the earlier copy",
    ),
)


SOURCE_PROBES = ("sources", "sources_plus_1", "sources_plus_2")
"""Probes of the answer's source, read on time, one row late and two rows late."""


def probe_names() -> tuple[str, ...]:
    """Return the names of all probes, in the order of every table."""
    return tuple(entry.name for entry in PROBES)


def get_probe(name: str) -> ProbeEntry:
    """Return the entry of a probe.

    >>> get_probe("previous").title
    'Previous token'

    Raises:
        ValueError: There is no such probe; the message suggests one.
    """
    for entry in PROBES:
        if entry.name == name:
            return entry
    raise ValueError(unknown_name("probe", name, probe_names()))


def choose_probes(names: Iterable[str] | None, *, has_sources: bool) -> tuple[ProbeEntry, ...]:
    """Return the entries to run: those requested, or all that the input allows.

    Raises:
        ValueError: A name is unknown, given twice, or needs sources that the input does not have.
    """
    if names is None:
        return tuple(entry for entry in PROBES if has_sources or not entry.needs_sources)
    if isinstance(names, str):
        raise ValueError(f"probes must be a list of names, got {names!r}; write [{names!r}]")
    chosen = tuple(get_probe(name) for name in names)
    if not chosen:
        raise ValueError(f"probes must be at least one of {', '.join(probe_names())}, got none")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"probes must be different names, got {[e.name for e in chosen]}")
    for entry in chosen:
        if entry.needs_sources and not has_sources:
            raise ValueError(
                f"the input of probe {entry.name!r} must be a task's batch, which knows its "
                "sources, got plain tokens; pass get_task(...).sample(...) instead"
            )
    return chosen


def load_function(entry: ProbeEntry) -> Callable[..., Any]:
    """Import and return the function that gives a probe's target cells."""
    return load_object(entry.where)


def load_object(where: str) -> Any:
    """Import and return what is written module:name.

    >>> load_object("probes.registry:MASS")
    'mean probability'
    """
    module, name = where.split(":")
    return getattr(importlib.import_module(module), name)
