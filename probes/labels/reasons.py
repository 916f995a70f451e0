"""Why a head has its label, in a sentence that a student understands. No model, no torch."""

import math
from collections.abc import Mapping
from typing import Any

from probes.head_classes import CLASSES, CONTENT
from probes.intervals import FEW_SEQUENCES
from probes.labels.rules import Cuts, Decision
from probes.number_text import interval
from probes.registry import get_probe

Row = Mapping[str, Any]


def reason(row: Row, decision: Decision, cuts: Cuts) -> str:
    """Return the sentence for one row of the labels table.

    Args:
        row: The row, but for its reason.
        decision: What was decided for the head.
        cuts: By which lines.
    """
    if decision.label in CLASSES:
        text = of_class(row, decision, cuts)
    elif decision.label == "mixed":
        text = (
            f"Shares its attention: {mixture_text(decision)}{mixture_rows(decision)}; "
            f"{decision.lead} and {decision.runner_up} are closer than {cuts.margin:g}."
        )
    elif decision.label == "uniform":
        text = (
            f"Spreads evenly: {row['sink_free_normalised']:.2f} of the largest entropy with the "
            f"first key hidden, and in every class it is less than {cuts.uniform_kappa:g} above "
            "chance (kappa)."
        )
    else:
        wide = f"Spreads widely ({row['entropy_normalised']:.2f} of the largest entropy) and is in "
        text = (
            (wide if decision.label == "broad" else "Is in ") + "no class" + nearest(decision, cuts)
        )
    return " ".join([text, *asides(row)])


def of_class(row: Row, decision: Decision, cuts: Cuts) -> str:
    """Return the sentence for a head that is in a class."""
    name = decision.label
    text = f"Puts {row['score']:.2f} of its attention on {get_probe(name).target}"
    notes = []
    if name in CONTENT:
        notes.append(f"{row['control']:z.2f} where nothing repeats")
    else:
        notes.append(f"by chance {row['chance']:.2f}")
    ends = interval(row["ci_low"], row["ci_high"])
    notes.append(f"95 % interval{' of the difference' * (name in CONTENT)} {ends}")
    text += f" ({', '.join(notes)})"
    if name == "sources" and not math.isnan(row["control"]):
        finds = "content" if row["control"] < row["score"] / 2 else "position"
        text += f"; with other answers {row['control']:.2f}, so it finds it by {finds}"
    if name == "induction" and not math.isnan(row["eigenvalue"]):
        text += f"; {copies(row['eigenvalue'], cuts)}"
    if decision.runner_up:
        text += f"; next is {runner_up_text(decision)}"
    return text + "."


def copies(eigenvalue: float, cuts: Cuts) -> str:
    """Say what the OV eigenvalue score alone may claim: nothing between the thresholds.

    >>> copies(0.9, Cuts()), copies(0.01, Cuts())
    ('its weights copy (OV eigenvalue score +0.90)', 'OV eigenvalue score +0.01')
    """
    number = f"OV eigenvalue score {eigenvalue:+z.2f}"
    if abs(eigenvalue) < cuts.copies:
        return number
    return f"its weights {'copy' if eigenvalue > 0 else 'do the opposite of copying'} ({number})"


def runner_up_text(decision: Decision) -> str:
    """Return the class that comes next and its effect; only first is read on the rows of others."""
    where = f"the rows of {decision.lead}" if decision.runner_up == "first" else "its own rows"
    return f"{decision.runner_up} with {decision.runner_up_score:z.2f} over {where}"


def nearest(decision: Decision, cuts: Cuts) -> str:
    """Return which class came nearest, and what kept it out."""
    if not decision.lead:
        return ": no row could be scored."
    check = decision.checks[decision.lead]
    if check.why_not:
        return f": nearest is {decision.lead}, but {check.why_not}."
    return (
        f": nearest is {decision.lead}, but {runner_up_text(decision)} is too close: less than "
        f"{cuts.margin:g} behind."
    )


def asides(row: Row) -> list[str]:
    """Return what else a reader should know of the head."""
    found = []
    if row["silent"]:
        found.append("Its output is close to zero.")
    if 1 < row["n_sequences"] < FEW_SEQUENCES:
        found.append(f"Only {row['n_sequences']} sequences: the interval is rough.")
    if row["label"] in CONTENT and math.isnan(row["q_value"]):
        found.append("No significance test: the sequences all agree, or there are too few.")
    return found


def mixture_text(decision: Decision) -> str:
    """Return the parts of a head that does several things; empty: it does one."""
    if len(decision.parts) < 2:
        return ""
    return " + ".join(f"{name} {mass:z.2f}" for name, mass in decision.parts)


def mixture_rows(decision: Decision) -> str:
    """Say on which rows the first key counts as a part; empty if it does not."""
    other = next((name for name, _ in decision.parts if name != "first"), "")
    return f" (first on the rows of {other})" * ("first" in dict(decision.parts) and bool(other))
