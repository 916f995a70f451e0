"""One head's label in words and numbers: what page, app and command line show of it. No torch.

A card is made of one row of the labels table, as plain data. A number that has no meaning is not
shown as 0 but as what it is missing.
"""

from collections.abc import Mapping
from typing import Any

from lab.naming import counted, head_label
from probes.head_classes import CLASSES_BY_NAME, shown_label
from probes.labels.rules import CUTS
from probes.number_text import decimals, interval, per_cent, significant

Row = Mapping[str, Any]
"""A row of the labels table as `json_rows` gives it: None where a number is missing."""

SILENT = f"yes: it writes less than {100 * CUTS.silent_share:g} % of its layer's median"


def card_title(row: Row, task: str | None = None) -> str:
    """Return what the head is called, on the task if there is one.

    >>> card_title({"layer": 0, "head": 1, "label": "induction", "strength": "weak"})
    'L0H1: induction (weak)'
    >>> card_title({"layer": 0, "head": 1, "label": "none", "strength": ""})
    'L0H1: none'
    """
    strength = f" ({row['strength']})" if row["strength"] else ""
    label = shown_label(row["label"], task)
    return f"{head_label(row['layer'], row['head'])}: {label}{strength}"


def card_facts(row: Row) -> list[tuple[str, str]]:
    """Return the numbers behind a label, by name, in the order in which they are shown."""
    probe = row["probe"]
    facts = [
        (f"score as {probe}", number(row["score"], "no row was scored")),
        ("chance", f"{number(row['chance'])} (kappa {number(row['kappa'])})"),
        ("control (other content)", number(row["control"], missing_control(probe))),
        ("effect", f"{number(row['effect'])}{interval_of(row)}"),
        ("content test", test_of(row)),
        ("runner-up", runner_up(row)),
    ]
    if row["mixture"]:
        facts.append(("mixture", row["mixture"]))
    facts.append(
        ("ladder -1 / 0 / +1", several(row, "ladder_before", "ladder_same", "ladder_after"))
    )
    if row["stripe"] is not None:
        late = several(row, "stripe_early", "stripe", "stripe_plus_1", "stripe_plus_2")
        facts.append(("stripes early / on time / +1 / +2", late))
    return [
        *facts,
        ("largest attention there in", share(row["argmax_share"], "of the rows")),
        ("attention on the first key", sink(row)),
        (
            "entropy, 1 is even",
            f"{number(row['entropy_normalised'])}, "
            f"{number(row['sink_free_normalised'], 'no other key')} without the first key",
        ),
        (
            "OV eigenvalue score (-1 .. 1)",
            number(row["eigenvalue"], "not a model that says what it reads"),
        ),
        ("silent", SILENT if row["silent"] else "no"),
        ("stand-ins", row["redundant_with"] or "none"),
        ("effect in two halves", several(row, "half_1", "half_2")),
        (
            "measured on",
            f"{row['rows']}; {counted(row['n_rows'], 'row')} of "
            f"{counted(row['n_sequences'], 'sequence')}",
        ),
    ]


def number(value: float | None, why_not: str = "no meaning here") -> str:
    """Write a number, or why there is none.

    >>> number(0.12345), number(None, "no test")
    ('0.123', 'n/a (no test)')
    """
    return decimals(value, 3, missing=f"n/a ({why_not})")


def share(value: float | None, of_what: str) -> str:
    """Write a share as per cent of something."""
    return number(value) if value is None else f"{per_cent(value)} {of_what}"


def interval_of(row: Row) -> str:
    """Write the interval of an effect behind it; nothing where there is none."""
    return "" if row["ci_low"] is None else f" ({interval(row['ci_low'], row['ci_high'], number)})"


def several(row: Row, *names: str) -> str:
    """Write some numbers of a row beside each other."""
    return " / ".join(decimals(row[name], 3, missing="n/a") for name in names)


def missing_control(probe: str) -> str:
    """Say why there is no control."""
    own = CLASSES_BY_NAME.get(probe)
    return "attends to a position" if own is not None and own.looks == "place" else "not measured"


def test_of(row: Row) -> str:
    """Write the three values of the paired test, or that there was none."""
    if row["q_value"] is None:
        return "n/a (no control, or no variation between sequences)"
    name, lead = row["tested"], row["probe"]
    # A head that is no head of content shows the test that came out clearest.
    other = "" if name == lead else f" ({lead} has no test; this is the clearest content class)"
    q, p, p_max_t = (significant(row[value], 2) for value in ("q_value", "p_value", "p_max_t"))
    return (
        f"as {name}{other}: q {q}, p {p}, max-T p {p_max_t}; small values mean that the effect is "
        "not chance; they do not mean that it is large"
    )


def runner_up(row: Row) -> str:
    """Write which class comes next."""
    if not row["runner_up"]:
        return "none"
    where = f"the rows of {row['probe']}" if row["runner_up"] == "first" else "its own rows"
    return f"{row['runner_up']} {number(row['runner_up_score'], 'not scored')} over {where}"


def sink(row: Row) -> str:
    """Write how much rests on the first key, and how much of the output that is."""
    valued = share(row["sink_value_share"], "of its output")
    return f"{share(row['sink_mass'], 'of its attention over all rows')}, {valued}"
