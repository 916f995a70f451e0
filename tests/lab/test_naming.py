"""The wording about unknown names, and how heads are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.naming import head_label, parse_head, unknown_name


def test_unknown_names_suggest() -> None:
    assert unknown_name("task", "reversl", ["copy", "reversal"]) == (
        "unknown task 'reversl'; choose from copy, reversal (did you mean 'reversal'?)"
    )
    assert unknown_name("run", "x", []) == "unknown run 'x'; there is none yet"


def test_long_lists_are_cut() -> None:
    message = unknown_name("head", "L9H9", [f"L0H{i}" for i in range(20)])
    assert "and 8 more" in message
    assert message.count("L0H") == 13  # twelve shown and one suggested


@given(layer=st.integers(0, 9999), head=st.integers(0, 9999))
def test_head_labels_round_trip(layer: int, head: int) -> None:
    assert parse_head(head_label(layer, head)) == (layer, head)


@pytest.mark.parametrize(
    "wrong", ["", "L0", "0.1", "L-1H0", "l0h1", "L0H1 ", "L0H\u0661", "L99999H0"]
)
def test_what_is_not_a_head(wrong: str) -> None:
    with pytest.raises(ValueError, match="a head must be written like L0H3, got "):
        parse_head(wrong)
