"""A card says every number of its row, and why one is missing."""

from typing import Any

import pytest

from probes.labels.evidence_card import card_facts, card_title
from probes.schemas.columns import DTYPES
from probes.schemas.labels import LABELS


def row(**changes: Any) -> dict[str, Any]:
    """Return a row of the labels table in which every number is another one."""
    values: dict[str, Any] = {}
    for place, column in enumerate(LABELS.columns):
        kind = DTYPES[column.kind]
        values[column.name] = {"int64": place, "float64": 0.001 * (place + 1), "bool": False,
                               "str": f"{column.name}-text"}[kind]  # fmt: skip
    return values | changes


def test_every_number_of_the_row_is_on_the_card():
    facts = dict(card_facts(row(mixture="previous 0.50, first 0.49")))
    text = " ".join(f"{name} {value}" for name, value in facts.items())
    for column in LABELS.columns:
        if DTYPES[column.kind] == "float64" and column.name not in (
            "p_value", "q_value", "p_max_t", "sink_mass", "sink_value_share", "argmax_share",
        ):  # fmt: skip
            assert f"{row()[column.name]:.3f}" in text, column.name
    for column in ("p_value", "q_value", "p_max_t"):
        assert f"{row()[column]:.2g}" in facts["content test"]
    assert "previous 0.50, first 0.49" in facts["mixture"]
    assert "(probe-text has no test; this is the clearest content class)" in facts["content test"]
    assert facts["content test"].endswith("not chance; they do not mean that it is large")
    assert facts["runner-up"].endswith("over its own rows")
    assert facts["measured on"].startswith("rows-text; ")


def test_small_numbers_have_no_sign_and_one_has_no_plural():
    own = row(effect=-0.0001, ci_low=-0.0002, ci_high=-0.0001, stripe=-0.0001, probe="duplicate",
              tested="duplicate", runner_up="first", n_rows=1, n_sequences=1)  # fmt: skip
    facts = dict(card_facts(own))
    assert facts["effect"] == "0.000 (0.000 to 0.000)"
    assert "is not tested" not in facts["content test"]
    assert facts["runner-up"].endswith("over the rows of duplicate")
    assert facts["measured on"].endswith("; 1 row of 1 sequence")
    assert "-0.000" not in " ".join(facts.values())


def test_what_is_missing_says_why_and_is_never_zero():
    missing = {c.name: None for c in LABELS.columns if DTYPES[c.kind] == "float64"}
    facts = dict(card_facts(row(**missing, probe="previous", mixture="", redundant_with="")))
    assert facts["control (other content)"] == "n/a (attends to a position)"
    assert facts["content test"].startswith("n/a (no control")
    assert facts["ladder -1 / 0 / +1"] == "n/a / n/a / n/a"
    assert "mixture" not in facts and not any(name.startswith("stripes") for name in facts)
    for name, value in facts.items():
        assert "None" not in value and "nan" not in value and "0.000" not in value, name


@pytest.mark.parametrize(
    ("label", "strength", "title"),
    [("reversal", "strong", "L0H3: reversal (strong)"), ("uniform", "", "L0H3: uniform")],
)
def test_the_title_names_head_label_and_strength(label, strength, title):
    assert card_title(row(layer=0, head=3, label=label, strength=strength)) == title


def test_only_the_sources_of_a_reversal_have_its_name():
    sources = row(layer=0, head=3, label="sources", strength="strong")
    assert card_title(sources, "reversal") == "L0H3: reversal (strong)"
    assert card_title(sources, "induction") == card_title(sources) == "L0H3: sources (strong)"


def test_a_silent_head_is_said_to_be():
    assert dict(card_facts(row(silent=True)))["silent"].startswith("yes: it writes less than 1 %")
