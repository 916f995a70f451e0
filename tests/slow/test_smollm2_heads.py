"""The heads of SmolLM2: named, and the same ones on other sequences."""

from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import spearmanr

from apps.cli import main
from lab.hooked_gpt import HookedGPT
from lab.naming import head_label
from probes.labels.head_labels import LabelStudy, label_study
from probes.reading.inputs import repeated_pair

NAME = "smollm2-135m-instruct"
NAMED = ("previous", "first", "duplicate", "induction")
"""Classes that the model is known to have."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("smollm2_cache"),
]


@pytest.fixture(scope="module")
def studies(smollm2: HookedGPT) -> list[LabelStudy]:
    """What two disjoint sets of sequences say of all heads."""
    both = [repeated_pair(smollm2, seed=seed) for seed in (0, 1)]
    rows = [{tuple(row) for row in pair.tokens.tolist()} for pair in both]
    assert not rows[0] & rows[1]
    return [label_study(smollm2, seed=seed, pair=pair) for seed, pair in enumerate(both)]


def test_the_command_names_the_classes_that_the_model_is_known_to_have(
    smollm2_cache: Path,
    smollm2: HookedGPT,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(smollm2_cache))
    assert main(["probe", NAME]) == 0
    out = capsys.readouterr().out
    for name in NAMED:
        assert name in out.split("labels", 1)[1].splitlines()[0], out


@pytest.mark.parametrize("name", NAMED)
def test_two_sets_of_sequences_name_the_same_heads(studies: list[LabelStudy], name: str) -> None:
    top, all_of_them = [], []
    for study in studies:
        labels = study.labels[study.labels["label"] == name]
        assert len(labels) >= 3
        assert (labels["ci_low"] > 0.2).all() and labels["reason"].str.len().gt(20).all()
        best = labels.sort_values("effect", ascending=False)[:3]
        top.append([head_label(a, b) for a, b in zip(best["layer"], best["head"], strict=True)])
        all_of_them.append(scores(study.evidence, name))
    assert set(top[0]) == set(top[1]), top
    assert spearmanr(*all_of_them).statistic >= 0.95


def scores(evidence: pd.DataFrame, name: str) -> list[float]:
    """Return one class's score for every head, in one order.

    Of effects, which most heads have none of, most ranks would be noise of the fourth digit.
    """
    return evidence[evidence["probe"] == name].sort_values(["layer", "head"])["score"].tolist()
