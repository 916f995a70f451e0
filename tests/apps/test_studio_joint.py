"""What is said of several heads, together and one by one."""

import pytest

from apps.studio.joint import RULE, joint_rows, joint_sentence
from probes.ablation.redundancy import TOLERANCES


def rows(joint: str, *verdicts: str) -> list[dict]:
    numbers = {"delta": 7.5, "ci_low": 7.4, "ci_high": 7.6, "singles": 0.001, "last": None}
    numbers["n_sequences"] = 500
    group = {**numbers, "layer": None, "head": None, "verdict": joint}
    one = {**numbers, "delta": 0.0005, "ci_low": 0.0004, "ci_high": 0.0006, "last": 6.0}
    return [group, *({**one, "layer": 0, "head": i, "verdict": v} for i, v in enumerate(verdicts))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("needed", "redundant", "redundant"),
            "Each can be removed alone, but not with the others: redundant, not useless.",
        ),
        (("needed", "needed", "needed"), "Each is missed even alone."),
        (("useless", "useless", "useless"), "All of them can be removed without loss."),
        (
            ("needed", "redundant", "redundant", "needed", "useless"),
            "L0H0 and L0H1 can be removed alone, but not with the others: redundant, not useless. "
            "L0H2 is missed even alone. L0H3 can be removed, alone or with the others.",
        ),
        (
            ("needed", "unresolved", "unresolved", "unresolved"),
            "Each is undecided: removable alone and last, but not all combinations were tried.",
        ),
    ],
)
def test_the_sentence_has_the_joint_effect_the_sum_and_the_verdict(given, said):
    n = len(given) - 1
    assert joint_sentence(rows(*given)) == (
        f"Together these {n} heads change the loss by +7.5000 nats (95 % interval +7.4000 to "
        f"+7.6000, 500 sequences); one by one it adds up to +0.0010. {said}"
    )


def test_the_table_ends_with_the_sum_and_the_joint_effect():
    cells = joint_rows(rows("needed", "redundant", "redundant"))
    assert [row[0] for row in cells] == ["L0H0", "L0H1", "one by one, added up", "all together"]
    assert cells[0] == ["L0H0", "+5.0e-04", "+4.0e-04 to +6.0e-04", "+6.0000", "redundant"]
    assert [row[1] for row in cells[2:]] == ["+0.0010", "+7.5000"]


def test_the_rule_names_the_tolerance_of_the_loss():
    assert f"more than {TOLERANCES.get('nats', 0.01)} nats" in RULE
