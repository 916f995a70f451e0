"""What a head is called, number by number: each case is one that a bare threshold gets wrong."""

import dataclasses
import math

import pytest

from probes.head_classes import CLASSES, CONTENT, LADDER
from probes.labels import rules
from probes.labels.rules import CUTS, ClassNumbers, Cuts, HeadNumbers, decide
from probes.labels.source_stripes import STRIPES

CHANCE = {"previous": 0.12, "current": 0.15, "first": 0.15, "sources": 0.08}


def numbers(effect, name="previous", **changes):
    values = {
        "effect": effect,
        "low": effect - 0.01,
        "chance": CHANCE.get(name, 0.0),
        "sink": 0.1,
        "q_value": 1e-4 if name in CONTENT else math.nan,
    }
    return ClassNumbers(**{**values, **changes})


def head(spectrum=(), ladder=(0.0, 0.0, 0.0), stripes=(), sinks=None, **effects):
    """A head with some effects; what is not given is at chance."""
    sink = effects.get("first", CHANCE["first"])
    classes = {
        name: numbers(float(effects.get(name, CHANCE.get(name, 0.0))), name, sink=sink)
        for name in CLASSES
        if name != "sources" or name in effects
    }
    for name, sink in (sinks or {}).items():
        classes[name] = dataclasses.replace(classes[name], sink=sink)
    return HeadNumbers(
        classes=classes,
        ladder=dict(zip(LADDER, map(float, ladder), strict=True)),
        stripes=dict(zip(STRIPES, map(float, stripes), strict=False)),
        spectrum=tuple(map(float, spectrum)),
        entropy_normalised=0.5,
        sink_free_normalised=0.6,
        overlap={"preceder": 0.9, "induction": 0.0, "duplicate": 0.0},
        first_elsewhere=0.0,
    )


@pytest.mark.parametrize(
    ("effect", "strength"), [(0.9, "strong"), (0.415, "strong"), (0.405, "weak"), (0.3, "weak")]
)
def test_lower_end_decides_between_strong_and_weak(effect, strength):
    found = decide(head(previous=effect, spectrum=(0.05, effect, 0.05)))
    assert (found.label, found.strength) == ("previous", strength)


def test_lower_end_below_the_cut_is_no_label_and_says_why():
    found = decide(head(previous=0.205))
    assert (found.label, found.strength, found.lead) == ("none", "", "previous")
    assert found.checks["previous"].why_not == "its lower end 0.19 is below 0.2"


def test_numbers_in_reasons_are_not_rounded_to_the_cut_that_they_miss():
    low = dataclasses.replace(numbers(0.3), low=0.1996)
    classes = head().classes | {"previous": low}
    found = decide(dataclasses.replace(head(previous=0.3), classes=classes))
    assert found.checks["previous"].why_not == "its lower end 0.1996 is below 0.2"
    below = dataclasses.replace(numbers(0.0), low=-0.001)
    found = decide(dataclasses.replace(head(), classes=head().classes | {"previous": below}))
    assert found.checks["previous"].why_not == "its lower end 0.00 is below 0.2"
    away = decide(dataclasses.replace(head(first=0.6), first_elsewhere=0.2512))
    assert "a share of 0.251 of its rows attends elsewhere" in away.checks["first"].why_not
    twice = decide(head(previous=0.32, spectrum=(0.0, 0.32, 0.161)))
    wanted = "distance 2 has 0.161, and its own 0.320 is not 2 times that"
    assert twice.checks["previous"].why_not == wanted
    near = decide(head(previous=0.5, spectrum=(0.2004, 0.5, 0.2)))
    assert near.checks["previous"].why_not.endswith("0.50 is not 0.1 more (by 0.0996)")


def test_parts_of_a_mixture_stand_in_the_order_of_their_mass():
    """The runner-up is no valid class, and yet the larger part."""
    rival = dataclasses.replace(numbers(0.33, "induction"), q_value=0.2)
    mixed = head(previous=0.3, spectrum=(0.0, 0.3, 0.0), ladder=(0.0, 0.0, 0.33))
    found = decide(dataclasses.replace(mixed, classes=mixed.classes | {"induction": rival}))
    assert found.label == "mixed"
    assert [name for name, _ in found.parts] == ["induction", "previous"]


def test_chance_alone_is_no_label():
    """In 5 tokens a head that spreads evenly has 0.4 on the first."""
    short = head(first=0.41)
    short = dataclasses.replace(
        short, classes=short.classes | {"first": numbers(0.41, chance=0.37, sink=0.41)}
    )
    found = decide(short)
    assert found.label == "none"
    assert found.checks["first"].why_not == (
        "chance gives 0.37; the lower end of the chance-corrected interval, 0.05, is below 0.1"
    )


def test_luck_is_no_label_and_no_test_is_no_bar():
    base = head(induction=0.6, ladder=(0.0, 0.0, 0.6))
    lucky = base.classes | {"induction": numbers(0.6, "induction", q_value=0.2)}
    assert decide(base).label == "induction"
    found = decide(dataclasses.replace(base, classes=lucky))
    assert (found.label, found.checks["induction"].why_not) == (
        "none",
        "it may be chance: q = 0.2 is not below 0.05",
    )
    untested = base.classes | {"induction": numbers(0.6, "induction", q_value=math.nan)}
    assert decide(dataclasses.replace(base, classes=untested)).label == "induction"


def test_one_sequence_is_no_label():
    one = head(previous=0.9)
    one = dataclasses.replace(one, classes=one.classes | {"previous": numbers(0.9, low=math.nan)})
    assert decide(one).label == "none"
    assert "one sequence" in decide(one).checks["previous"].why_not


@pytest.mark.parametrize(
    ("spectrum", "label"),
    [
        ((0.05, 0.6, 0.1, 0.05), "previous"),
        ((0.2, 0.45, 0.3, 0.05), "none"),  # it prefers recent tokens
        ((0.239, 0.4926, 0.239, 0.03), "none"),  # two dimensions: twice its neighbours, smeared
        ((0.05, 0.5, 0.02, 0.4), "none"),  # half of it three tokens back
    ],
)
def test_neighbouring_distances_spoil_a_diagonal(spectrum, label):
    found = decide(head(previous=spectrum[1], current=spectrum[0], spectrum=spectrum))
    assert found.label == label


def test_what_covers_three_distances_is_a_smear_even_if_all_three_are_classes(monkeypatch):
    monkeypatch.setattr(rules, "DISTANCES", {"current": 0, "previous": 1, "two_back": 2})
    smear = head(previous=0.4, current=0.35, spectrum=(0.35, 0.4, 0.33))
    assert rules.smeared("previous", smear, {"current", "previous", "two_back"}, CUTS)
    mixture = head(previous=0.4, current=0.35, spectrum=(0.35, 0.4, 0.05))
    assert not rules.smeared("previous", mixture, {"current", "previous"}, CUTS)


def test_two_classes_of_equal_size_are_mixed_and_both_are_printed():
    found = decide(head(previous=0.52, first=0.48, sinks={"previous": 0.47}))
    assert (found.label, found.parts) == ("mixed", (("previous", 0.52), ("first", 0.47)))
    lopsided = decide(head(previous=0.7, first=0.31, sinks={"previous": 0.3}))
    assert (lopsided.label, lopsided.strength) == ("previous", "strong")
    assert lopsided.parts == (("previous", 0.7), ("first", 0.3))
    assert (lopsided.runner_up, lopsided.runner_up_score) == ("first", 0.3)
    neighbours = decide(head(previous=0.5, current=0.49, spectrum=(0.49, 0.5, 0.0)))
    assert neighbours.label == "mixed"


def test_rest_on_the_first_token_elsewhere_makes_no_sink():
    found = decide(head(duplicate=0.9, ladder=(0, 0.9, 0), first=0.55, sinks={"duplicate": 0.02}))
    assert (found.label, found.strength) == ("duplicate", "strong")
    assert found.parts == (("duplicate", 0.9),)
    away = dataclasses.replace(head(first=0.53), first_elsewhere=0.47)
    assert decide(away).label == "none"
    assert decide(away).checks["first"].why_not == (
        "a share of 0.47 of its rows attends elsewhere (less than 0.1 on the first key), more than "
        "0.25"
    )


def test_sink_that_does_a_little_else_stays_a_sink():
    found = decide(head(first=0.8, induction=0.25, ladder=(0, 0, 0.25), sinks={"induction": 0.7}))
    assert (found.label, found.runner_up) == ("first", "induction")
    torn = decide(head(first=0.6, induction=0.45, ladder=(0, 0, 0.45), sinks={"induction": 0.5}))
    assert torn.label == "mixed"


def test_ladder_tells_neighbours_apart():
    assert decide(head(induction=0.5, ladder=(0.0, 0.2, 0.5))).label == "induction"
    smeared = decide(head(induction=0.5, ladder=(0.0, 0.3, 0.5)))
    assert smeared.label == "none"
    assert "duplicate, one step beside it, has 0.30" in smeared.checks["induction"].why_not
    both = head(induction=0.5, duplicate=0.45, ladder=(0.0, 0.45, 0.5))
    assert decide(both).label == "mixed"


def test_sources_need_a_stripe_of_their_own():
    assert decide(head(sources=0.9, stripes=(0.1, 0.2, 0.1))).label == "sources"
    late = decide(head(sources=0.55, stripes=(0.0, 0.3, 0.0)))
    assert (late.label, late.strength) == ("none", "")
    assert "stripe_plus_1" in late.checks["sources"].why_not
    assert decide(head(sources=0.45, stripes=(0.0, 0.1, math.nan))).strength == "weak"


def test_content_that_explains_the_sources_is_the_label():
    found = decide(head(preceder=0.95, ladder=(0.95, 0, 0), sources=0.88, stripes=(0, 0, 0)))
    assert found.label == "preceder"
    assert found.runner_up != "sources"
    assert found.parts == (("preceder", 0.95),)
    by_position = decide(head(preceder=0.3, ladder=(0.3, 0, 0), sources=0.9, stripes=(0, 0, 0)))
    assert by_position.label == "sources"
    elsewhere = decide(head(induction=0.9, ladder=(0, 0, 0.9), sources=0.88, stripes=(0, 0, 0)))
    assert elsewhere.label == "mixed"


def test_uniform_broad_and_none():
    even = dataclasses.replace(head(), sink_free_normalised=0.97, entropy_normalised=0.97)
    assert decide(even).label == "uniform"
    # Spread evenly, but for a part that rests on the first key: no uniform head.
    sink = head(first=0.24)
    sink = dataclasses.replace(sink, sink_free_normalised=1.0, entropy_normalised=0.85)
    assert decide(sink).label == "broad"
    assert decide(dataclasses.replace(sink, entropy_normalised=0.7)).label == "none"
    blind = dataclasses.replace(head(first=0.9), sink_free_normalised=1.0)
    assert decide(blind).label == "first"


def test_nothing_measured_is_none():
    nothing = {name: numbers(math.nan) for name in ("previous", "current", "first")}
    empty = dataclasses.replace(head(), classes=nothing, sink_free_normalised=math.nan)
    found = decide(empty)
    assert (found.label, found.lead, found.runner_up) == ("none", "", "")
    assert found.checks["first"].why_not == "there is no row to score"


def test_cuts_are_checked_and_moved():
    soft = head(previous=0.3, spectrum=(0, 0.3, 0))
    assert decide(soft, dataclasses.replace(CUTS, weak=0.35)).label == "none"
    assert CUTS.to_dict()["strong"] == 0.4
    with pytest.raises(ValueError, match=r"weak must be at most strong = 0.4, got 0.5"):
        Cuts(weak=0.5)
    with pytest.raises(ValueError, match=r"margin must be a number from 0 to 1, got 2"):
        Cuts(margin=2.0)
