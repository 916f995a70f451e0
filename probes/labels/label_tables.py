"""The rows of the tables of labels and evidence: means, intervals and tests, one a head.

What is measured is in `probes.labels.evidence`, what it means in `probes.labels.rules`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from lab.naming import counted
from probes.attention.targets import ProbeInput
from probes.head_classes import CLASSES, CONTENT, STEPS
from probes.intervals import bootstrap_interval
from probes.labels.evidence import ClassMass, Evidence
from probes.labels.reasons import mixture_text
from probes.labels.rules import Cuts, Decision, above_chance
from probes.labels.significance import FlipTest
from probes.reading.inputs import PairedInput
from probes.registry import MASS, get_probe

PerHead = Float64[np.ndarray, " column"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassSummary:
    """One class's numbers, one a head."""

    mass: ClassMass
    score: PerHead
    control: PerHead
    effect: PerHead
    low: PerHead
    high: PerHead
    chance: float
    sink: PerHead
    even: float
    """What an even head has left once the control is taken off."""
    tested: tuple[PerHead, PerHead, PerHead]
    """p, q and max-T p; NaN: there is no test to make."""


def summarised(evidence: Evidence, tests: FlipTest, seed: int) -> dict[str, ClassSummary]:
    """Return the means, intervals and tests of each class."""
    n_heads = len(evidence.heads)
    ends = interval_ends(evidence.classes, seed)
    nothing = np.full(n_heads, np.nan)
    found = {}
    for name, own in evidence.classes.items():
        tested = (nothing, nothing, nothing)
        if name in CONTENT:
            some = slice(CONTENT.index(name) * n_heads, (CONTENT.index(name) + 1) * n_heads)
            tested = (tests.p_value[some], tests.q_value[some], tests.p_max_t[some])
        n_rows = own.n_rows.sum()
        chance = own.chance.sum() / n_rows if n_rows else math.nan
        found[name] = ClassSummary(
            mass=own,
            score=own.mean(own.mass),
            control=nothing if own.control is None else own.mean(own.control),
            effect=own.mean(own.effect),
            low=ends[name][0],
            high=ends[name][1],
            chance=chance,
            sink=own.mean(own.sink),
            even=0.0 if name in CONTENT else chance,
            tested=tested,
        )
    return found


def interval_ends(
    classes: Mapping[str, ClassMass], seed: int
) -> dict[str, tuple[PerHead, PerHead]]:
    """Return both ends of each class's interval; classes of equally many rows share the draws."""
    groups: dict[bytes, list[str]] = {}
    for name, own in classes.items():
        most = own.n_rows.max(initial=0.0)
        groups.setdefault((own.n_rows / most if most else own.n_rows).tobytes(), []).append(name)
    found: dict[str, tuple[PerHead, PerHead]] = {}
    for names in groups.values():
        most = [classes[name].n_rows.max(initial=0.0) or 1.0 for name in names]
        totals = [classes[name].effect / rows for name, rows in zip(names, most, strict=True)]
        counts = classes[names[0]].n_rows / most[0]
        low, high = bootstrap_interval(np.concatenate(totals, axis=1), counts, seed=seed)
        parts = zip(names, np.split(low, len(names)), np.split(high, len(names)), strict=True)
        found |= {name: (one, other) for name, one, other in parts}
    return found


def rows_of_labels(
    evidence: Evidence,
    summaries: Mapping[str, ClassSummary],
    decisions: list[Decision],
    cuts: Cuts,
    described: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the columns of the labels table that follow from evidence and decisions."""
    rows = []
    for column, ((layer, head), decision) in enumerate(zip(evidence.heads, decisions, strict=True)):
        own = summaries[decision.lead or "first"]
        tested = tested_class(summaries, decision.lead, column)
        p_value, q_value, p_max_t = (
            (v[column] for v in summaries[tested].tested) if tested else (math.nan,) * 3
        )
        score, chance = float(own.score[column]), own.chance
        ladder = dict(zip(STEPS.values(), evidence.ladder[:, column].tolist(), strict=True))
        early, late, later = evidence.stripes[:, column].tolist()
        sources = summaries.get("sources")
        half_1, half_2 = halves(own.mass, column)
        share = float(evidence.layer_share[column])
        rows.append(
            {
                "layer": layer,
                "head": head,
                "label": decision.label,
                "strength": decision.strength,
                "probe": decision.lead,
                "score": score,
                "control": own.control[column],
                "effect": own.effect[column],
                "ci_low": own.low[column],
                "ci_high": own.high[column],
                "chance": chance,
                "kappa": above_chance(score, chance),
                "tested": tested,
                "p_value": p_value,
                "q_value": q_value,
                "p_max_t": p_max_t,
                "runner_up": decision.runner_up,
                "runner_up_score": decision.runner_up_score,
                "mixture": mixture_text(decision),
                "sink_mass": summaries["first"].score[column],
                "sink_value_share": evidence.sink_value_share[column],
                "entropy_normalised": evidence.entropy_normalised[column],
                "sink_free_normalised": evidence.sink_free_normalised[column],
                "silent": share < cuts.silent_share,
                "argmax_share": evidence.argmax_share[decision.lead or "first"][column],
                "ladder_before": ladder[-1],
                "ladder_same": ladder[0],
                "ladder_after": ladder[1],
                "stripe_early": early,
                "stripe": math.nan if sources is None else sources.score[column],
                "stripe_plus_1": late,
                "stripe_plus_2": later,
                "half_1": half_1,
                "half_2": half_2,
                "n_sequences": int((own.mass.n_rows > 0).sum()),
                "n_rows": int(own.mass.n_rows.sum()),
                "rows": described[decision.lead or "first"],
                "unit": MASS,
            }
        )
    return rows


def tested_class(summaries: Mapping[str, ClassSummary], lead: str, column: int) -> str:
    """Return the class whose p-values a head shows: that of its numbers, else the most significant.

    The larger effect decides between equal p-values (the smallest one is limited by the flips).
    """
    if lead in CONTENT:
        return lead
    found = {
        name: (own.tested[0][column], -abs(own.effect[column]))
        for name, own in summaries.items()
        if not math.isnan(own.tested[0][column])
    }
    return min(found, key=lambda name: found[name], default="")


def halves(own: ClassMass, column: int) -> tuple[float, float]:
    """Return the effect over the first and over the second half of the sequences."""
    middle = len(own.effect) // 2
    ends = []
    for part in (slice(None, middle), slice(middle, None)):
        n_rows = own.n_rows[part].sum()
        ends.append(own.effect[part, column].sum() / n_rows if n_rows else math.nan)
    return ends[0], ends[1]


def rows_of_evidence(
    evidence: Evidence, summaries: Mapping[str, ClassSummary], decisions: list[Decision]
) -> list[dict[str, Any]]:
    """Return the rows of the evidence table, head after head, class after class."""
    return [
        {
            "layer": layer,
            "head": head,
            "probe": name,
            "score": own.score[column],
            "control": own.control[column],
            "effect": own.effect[column],
            "ci_low": own.low[column],
            "ci_high": own.high[column],
            "chance": own.chance,
            "kappa": above_chance(float(own.score[column]), own.chance),
            "sink_mass": own.sink[column],
            "p_value": own.tested[0][column],
            "q_value": own.tested[1][column],
            "p_max_t": own.tested[2][column],
            "cut": decisions[column].checks[name].cut,
            "valid": decisions[column].checks[name].valid,
            "why_not": decisions[column].checks[name].why_not,
            "n_sequences": int((own.mass.n_rows > 0).sum()),
            "n_rows": int(own.mass.n_rows.sum()),
            "unit": MASS,
        }
        for column, (layer, head) in enumerate(evidence.heads)
        for name in CLASSES
        if (own := summaries.get(name)) is not None
    ]


def rows_text(name: str, x: ProbeInput, pair: PairedInput | None) -> str:
    """Say which rows of which sequences are scored for a class.

    Args:
        name: The class.
        x: The input that it was measured on.
        pair: The repeated blocks that it was measured on instead; None: on the input.
    """
    if pair is None:
        n_sequences, n_pos = x.tokens.shape
        some, long = counted(n_sequences, "sequence"), counted(n_pos, "token")
        where = f"{some} of {long}, special token ids: " + (
            ", ".join(map(str, x.special_ids)) or "none"
        )
        return f"{get_probe(name).rows}; {where}"
    n_pos = pair.tokens.shape[1]
    if name not in CONTENT:
        return f"{get_probe(name).rows}; {pair.description}"
    first = pair.second + max(0, -STEPS[name])
    return f"rows {first}..{n_pos - 1} of {n_pos}, from 0; {pair.description}"
