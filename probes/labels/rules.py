"""What a head may be called, given its numbers: cuts, conditions, mixtures. No model, no torch.

A class becomes the label only where its effect is significant (if it can be tested), the lower end
of its interval clears a cut, its shape is right (its neighbours are not as high), and no other
class comes near. Otherwise the head is mixed, uniform, broad or none, and the reason is kept.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.checks import require, require_number
from probes.head_classes import CLASSES_BY_NAME, CONTENT, DISTANCES, LADDER
from probes.registry import load_object


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Where lines are drawn. The defaults were fixed on planted models of seeds 0 to 99."""

    strong: float = 0.4
    """Lower end of the effect from which a label is strong."""
    weak: float = 0.2
    """Lower end of the effect from which there is a label."""
    sources_strong: float = 0.5
    """The same for a task's sources."""
    sources_weak: float = 0.25
    """The same for a task's sources."""
    kappa_share: float = 0.5
    """Share of the threshold that the chance-corrected lower end must exceed: in short
    sequences chance alone is high."""
    margin: float = 0.1
    """How far the label's class is ahead of the next one."""
    dominance: float = 2.0
    """How many times the neighbouring cells a class's own cells have."""
    elsewhere_share: float = 0.25
    """Largest share of rows in which a first-token head may look elsewhere."""
    false_discovery: float = 0.05
    """Largest q-value of an effect that counts."""
    uniform_entropy: float = 0.95
    """Least sink-free normalised entropy of a uniform head."""
    uniform_kappa: float = 0.05
    """Largest kappa of a uniform head, over all classes."""
    broad_entropy: float = 0.8
    """Least normalised entropy of a broad head."""
    silent_share: float = 0.01
    """A head that writes less than this share of its layer's median is silent."""
    copies: float = 0.5
    """OV eigenvalue score from which a head's weights copy, and below whose negative they do the
    opposite; between them it says too little."""
    redundant_distance: float = 0.05
    """Jensen-Shannon distance in nats below which two heads of one label are redundant."""

    def __post_init__(self) -> None:
        """Check the values."""
        for field in dataclasses.fields(self):
            high = math.inf if field.name == "dominance" else 1.0
            require_number(field.name, getattr(self, field.name), 0.0, high)
        for name in ("", "sources_"):
            weak, strong = getattr(self, f"{name}weak"), getattr(self, f"{name}strong")
            require(weak <= strong, f"{name}weak", f"at most {name}strong = {strong}", weak)

    def of(self, name: str, strength: str) -> float:
        """Return the threshold of a class: strong or weak."""
        of_task = CLASSES_BY_NAME[name].looks == "task"
        return getattr(self, f"sources_{strength}" if of_task else strength)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for the provenance of a table."""
        return dataclasses.asdict(self)


CUTS = Cuts()
ELSEWHERE_BELOW = 0.1
"""A row with less than this on the first key looks elsewhere."""
MOSTLY = 0.5
"""Share of a task's rows from which a class of content counts as another way to their sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassNumbers:
    """One head's numbers for one class."""

    effect: float
    """What is compared with the threshold, mean over rows."""
    low: float
    """Lower end of its interval; NaN with fewer than two sequences."""
    chance: float
    """What an even head has; of an effect with its control taken off, 0."""
    sink: float
    """Attention on the first key, on the same rows."""
    q_value: float
    """False discovery rate; NaN: there is no test to make."""

    @property
    def kappa(self) -> float:
        """The effect corrected for chance."""
        return above_chance(self.effect, self.chance)

    @property
    def kappa_low(self) -> float:
        """The lower end corrected for chance."""
        return above_chance(self.low, self.chance)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadNumbers:
    """All that the label of one head depends on."""

    classes: Mapping[str, ClassNumbers]
    """Classes that could be measured."""
    ladder: Mapping[str, float]
    """What the keys of each class of content have on rows that have all three, less its control."""
    stripes: Mapping[str, float]
    """Mass on the sources' stripes."""
    spectrum: tuple[float, ...]
    """Attention at distance 0, 1, ..: their ratios count."""
    entropy_normalised: float
    sink_free_normalised: float
    overlap: Mapping[str, float]
    """Share of the task's rows whose source a class of content attends to too."""
    first_elsewhere: float
    """Share of the rows with less than 0.1 on the first key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """How far a class gets with one head."""

    cut: str
    """strong, weak, or empty: the threshold that the lower end exceeds."""
    why_not: str
    """The first condition that fails; empty: none does."""

    @property
    def valid(self) -> bool:
        """Whether the class may be the label."""
        return not self.why_not


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One head's label and what led to it."""

    label: str
    strength: str
    lead: str
    """The class whose numbers are shown: the label, or the nearest."""
    runner_up: str
    runner_up_score: float
    parts: tuple[tuple[str, float], ...]
    """The valid classes with their mass, largest first."""
    checks: Mapping[str, Check]


def above_chance(value: float, chance: float) -> float:
    """Return (value - chance) / (1 - chance); NaN where chance is 1 already."""
    return (value - chance) / (1.0 - chance) if chance < 1.0 else math.nan


def decide(head: HeadNumbers, cuts: Cuts = CUTS) -> Decision:
    """Return what the head is called."""
    checks = checked_classes(head, cuts)
    valid = {name for name, check in checks.items() if check.valid}
    lead = leading_class(head, valid, cuts) if valid else nearest_class(head, cuts)
    rivals = rival_effects(head, lead, valid, cuts)
    runner_up = max(rivals, key=lambda name: rivals[name], default="")
    second = rivals.get(runner_up, math.nan)
    parts = mixture_parts(head, valid, cuts)
    label, strength = "none", ""
    if not valid:
        label = spread_label(head, cuts)
    elif not runner_up or own_effect(head, lead, runner_up) - second >= cuts.margin:
        label, strength = lead, checks[lead].cut
    elif second >= cuts.of(runner_up, "weak"):
        label = "mixed"
        parts = parts if runner_up in dict(parts) else largest_first((*parts, (runner_up, second)))
    return Decision(
        label=label,
        strength=strength,
        lead=lead,
        runner_up=runner_up,
        runner_up_score=second,
        parts=parts,
        checks=checks,
    )


def checked_classes(head: HeadNumbers, cuts: Cuts) -> dict[str, Check]:
    """Return how far each class gets.

    A neighbour that is a valid class of its own is a part of a mixture and no smear: shapes are
    judged without it, and again whenever a class turns out not to be valid.
    """
    checks = {name: cleared(name, own, cuts) for name, own in head.classes.items()}
    while True:
        valid = {name for name, check in checks.items() if check.valid}
        failed = {name: why for name in valid if (why := wrong_shape(name, head, valid, cuts))}
        if not failed:
            return checks
        # The worst first: what it leaves behind may be the neighbour that another fails by.
        name = min(failed, key=lambda name: head.classes[name].effect)
        checks[name] = Check(cut=checks[name].cut, why_not=failed[name])


def cleared(name: str, own: ClassNumbers, cuts: Cuts) -> Check:
    """Return which cut a class clears, by size, chance and significance."""
    if math.isnan(own.effect):
        return Check(cut="", why_not="there is no row to score")
    if math.isnan(own.low):
        return Check(cut="", why_not="one sequence has no interval; give two or more")
    cut = ""
    for strength in ("strong", "weak"):
        least = cuts.of(name, strength)
        if own.low >= least and own.kappa_low >= cuts.kappa_share * least:
            cut = strength
            break
    if not cut:
        least = cuts.of(name, "weak")
        if own.low < least:
            return Check(
                cut="", why_not=f"its lower end {apart(own.low, least)} is below {least:g}"
            )
        least = cuts.kappa_share * least
        return Check(
            cut="",
            why_not=f"chance gives {own.chance:.2f}; the lower end of the chance-corrected "
            f"interval, {apart(own.kappa_low, least)}, is below {least:g}",
        )
    if own.q_value >= cuts.false_discovery:
        return Check(
            cut=cut,
            why_not=f"it may be chance: q = {own.q_value:.2g} is not below "
            f"{cuts.false_discovery:g}",
        )
    return Check(cut=cut, why_not="")


def wrong_shape(name: str, head: HeadNumbers, valid: set[str], cuts: Cuts) -> str:
    """Return why the neighbouring cells disqualify a class; empty if they do not."""
    if name in DISTANCES:
        return smeared(name, head, valid, cuts)
    if name in LADDER:
        return beside_step(name, head, valid, cuts)
    shape = CLASSES_BY_NAME[name].shape
    return load_object(shape)(head, cuts) if shape else ""


def looks_elsewhere(head: HeadNumbers, cuts: Cuts) -> str:
    """Return why a head is no sink: one that works in some rows only rests in the others."""
    most = cuts.elsewhere_share
    if head.first_elsewhere > most:
        return (
            f"a share of {apart(head.first_elsewhere, most)} of its rows attends elsewhere (less "
            f"than {ELSEWHERE_BELOW:g} on the first key), more than {most:g}"
        )
    return ""


def beside_sources(head: HeadNumbers, cuts: Cuts) -> str:
    """Return which stripe beside the sources has too much; empty: none of them."""
    own = head.classes["sources"].effect
    near = {stripe: mass for stripe, mass in head.stripes.items() if not math.isnan(mass)}
    highest = max(near, key=lambda stripe: near[stripe], default="")
    if highest and own < cuts.dominance * near[highest]:
        return f"the stripe beside it ({highest}) " + no_multiple(own, near[highest], cuts)
    return ""


def beside_step(name: str, head: HeadNumbers, valid: set[str], cuts: Cuts) -> str:
    """Return which other step from the earlier copy has too much; empty: none of them."""
    steps = dict(head.ladder)
    own = steps.pop(name)
    highest = max((n for n in steps if n not in valid), key=lambda n: steps[n], default="")
    if highest and own < cuts.dominance * steps[highest]:
        return f"{highest}, one step beside it, " + no_multiple(own, steps[highest], cuts)
    return ""


def apart(value: float, cut: float) -> str:
    """Write a number with two digits, or as many as distinguish it from a threshold.

    >>> apart(0.1234, 0.2), apart(0.1996, 0.2), apart(-0.001, 0.2)
    ('0.12', '0.1996', '0.00')
    """
    texts = [f"{value:z.{digits}f}" for digits in range(2, 7)]
    return next((text for text in texts if float(text) != cut), texts[-1])


def no_multiple(own: float, other: float, cuts: Cuts) -> str:
    """Say that a neighbour has too much, with digits enough to see it."""
    times = cuts.dominance
    texts = [(f"{own:z.{digits}f}", f"{other:z.{digits}f}") for digits in range(2, 7)]
    telling = ((one, near) for one, near in texts if float(one) < times * float(near))
    shown, beside = next(telling, texts[-1])
    return f"has {beside}, and its own {shown} is not {times:g} times that"


def smeared(name: str, head: HeadNumbers, valid: set[str], cuts: Cuts) -> str:
    """Return how a diagonal's neighbours spoil it; empty: they do not.

    The highest of the other distances must be half as high at most, and the two neighbours
    together lower by the margin: a diagonal that is smeared over three cells does not count.
    """
    own = DISTANCES[name]
    spectrum = dict(enumerate(head.spectrum))
    mass = spectrum.pop(own, math.nan)
    # One other class may be a part of a mixture; what covers three distances is a smear.
    others = [DISTANCES[other] for other in valid if other in DISTANCES and other != name]
    part = max(others, key=lambda distance: spectrum.get(distance, 0.0), default=None)
    rest = {distance: value for distance, value in spectrum.items() if distance != part}
    if math.isnan(mass) or not rest:
        return ""
    highest = max(rest, key=lambda distance: rest[distance])
    if mass < cuts.dominance * rest[highest]:
        return f"distance {highest} " + no_multiple(mass, rest[highest], cuts)
    near = sum(rest.get(distance, 0.0) for distance in (own - 1, own + 1))
    if mass - near < cuts.margin:
        return (
            f"the distances beside it have {near:.2f} together, and its own {mass:.2f} is not "
            f"{cuts.margin:g} more (by {apart(mass - near, cuts.margin)})"
        )
    return ""


def leading_class(head: HeadNumbers, valid: set[str], cuts: Cuts) -> str:
    """Return the valid class with the largest effect; first is compared on the other's rows.

    Rows without a target are where a head rests: that it rests on the first key there does not
    make it a sink.
    """
    others = valid - {"first"} - by_products(head, valid, cuts)
    if not others:
        return "first"
    best = max(others, key=lambda name: head.classes[name].effect)
    own = head.classes[best]
    return "first" if "first" in valid and own.sink > own.effect else best


def by_products(head: HeadNumbers, valid: set[str], cuts: Cuts) -> set[str]:
    """Return {"sources"} where a valid class of content explains the mass on them, else nothing."""
    if "sources" not in head.classes:
        return set()
    on_sources = head.classes["sources"].effect
    for name in valid & set(CONTENT):
        same = head.overlap.get(name, math.nan)
        if same >= MOSTLY and on_sources <= head.classes[name].effect + cuts.margin:
            return {"sources"}
    return set()


def rival_effects(head: HeadNumbers, lead: str, valid: set[str], cuts: Cuts) -> dict[str, float]:
    """Return what the lead is compared with: every other class that was measured."""
    rivals = {
        name: own.effect
        for name, own in head.classes.items()
        if name != lead and not math.isnan(own.effect)
    }
    for name in by_products(head, valid, cuts):
        rivals.pop(name, None)
    if lead in head.classes and "first" in rivals and not math.isnan(head.classes[lead].sink):
        rivals["first"] = head.classes[lead].sink
    return rivals


def own_effect(head: HeadNumbers, lead: str, rival: str) -> float:
    """Return the lead's effect; first against a class of some rows counts on those rows."""
    if lead == "first" and rival in head.classes:
        return head.classes[rival].sink
    return head.classes[lead].effect if lead in head.classes else math.nan


def mixture_parts(head: HeadNumbers, valid: set[str], cuts: Cuts) -> tuple[tuple[str, float], ...]:
    """Return the valid classes with their mass on common rows, largest first."""
    kept = valid - by_products(head, valid, cuts)
    others = kept - {"first"}
    found = {name: head.classes[name].effect for name in others}
    if "first" in kept:
        best = max(others, key=lambda name: found[name], default="first")
        if head.classes[best].sink >= cuts.weak:
            found["first"] = head.classes[best].sink
    return largest_first(found.items())


def largest_first(parts: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return parts in the order of their mass."""
    return tuple(sorted(parts, key=lambda part: -part[1]))


def nearest_class(head: HeadNumbers, cuts: Cuts) -> str:
    """Return the class nearest to its threshold; empty if no class was measured."""
    near = {
        name: own.kappa / cuts.of(name, "weak")
        for name, own in head.classes.items()
        if not math.isnan(own.kappa)
    }
    return max(near, key=lambda name: near[name], default="")


def spread_label(head: HeadNumbers, cuts: Cuts) -> str:
    """Return the label of a head without a class: uniform, broad or none."""
    kappas = [own.kappa for own in head.classes.values() if not math.isnan(own.kappa)]
    even = head.sink_free_normalised >= cuts.uniform_entropy
    if even and kappas and max(kappas) < cuts.uniform_kappa:
        return "uniform"
    return "broad" if head.entropy_normalised >= cuts.broad_entropy else "none"
