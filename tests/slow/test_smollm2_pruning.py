"""Half of SmolLM2's heads removed: what is left of it, and what random heads would have left."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.hooked_gpt import HookedGPT
from lab.naming import parse_head
from lab.python_topics import TopicSequences, topic_sequences
from probes.pruning.curves import pruning_curve, random_band
from probes.pruning.plan import PruningPlan
from probes.pruning.pruned_run import export_pruned_model

HALF = 135

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def held_out(smollm2: HookedGPT) -> TopicSequences:
    return topic_sequences(smollm2.tokenizer, "held-out", n_sequences=8, n_tokens=48)


@pytest.fixture(scope="module")
def curve(smollm2: HookedGPT, held_out: TopicSequences) -> pd.DataFrame:
    """Perplexity against heads kept, found on other topics than it is reported on."""
    selection = topic_sequences(smollm2.tokenizer, "selection", n_sequences=8, n_tokens=48)
    assert not set(selection.topics) & set(held_out.topics)
    assert "376 of their " in held_out.description  # 8 x 47 tokens of text behind BOS
    return pruning_curve(
        smollm2,
        selection.tokens,
        "one-shot",
        held_out=held_out.tokens,
        plan=PruningPlan(steps=[45, HALF, 225], normalise="none", metrics="loss"),
    )


def test_perplexity_against_heads_kept_with_the_random_band(curve: pd.DataFrame) -> None:
    own = curve[curve["order"] == "one-shot"].set_index("n_removed")
    band = random_band(curve).set_index("n_removed")
    assert own["n_kept"].tolist() == [270, 225, HALF, 45]
    assert band["n_orders"].tolist() == [20] * 4
    perplexity = np.exp(own["held_out"])
    assert 20 < perplexity[0] < 100
    # Removed at random, the same number of heads leaves far less.
    for gone in (45, HALF):
        assert own.loc[gone, "ci_low"] <= own.loc[gone, "held_out"] <= own.loc[gone, "ci_high"]
        assert own.loc[gone, "held_out"] < band.loc[gone, "low"]
        assert perplexity[gone] > perplexity[0]
    assert (
        own["n_parameters"].is_monotonic_decreasing and own["cache_bytes"].is_monotonic_decreasing
    )


def test_half_of_the_heads_are_really_gone(
    smollm2: HookedGPT, held_out: TopicSequences, curve: pd.DataFrame, tmp_path: Path
) -> None:
    own = curve[curve["order"] == "one-shot"].set_index("n_removed")
    gone = [
        parse_head(label)
        for step in own.loc[:HALF, "removed"]
        for label in step.split(",")
        if label
    ]
    assert len(gone) == HALF
    proof = export_pruned_model(smollm2, gone, tmp_path / "half", held_out.tokens)
    assert proof.holds
    # A query head is two matrices and no bias of Llama's; a key head goes with the last reader.
    queries = HALF * (2 * 576 * 64 + 64)
    assert proof.parameters_before - proof.parameters_after >= queries
    assert proof.parameters_after == own.loc[HALF, "n_parameters"]
    assert proof.cache_bytes_after == own.loc[HALF, "cache_bytes"] < proof.cache_bytes_before
    assert min(proof.latency_ms_before, proof.latency_ms_after) > 0
    small = HookedGPT.load(tmp_path / "half")
    assert small.to_string(small.to_tokens("The capital")[0]) == "The capital"
    again = export_pruned_model(small, small.config.heads()[:1], tmp_path / "less", held_out.tokens)
    assert again.holds and again.heads.count("L") == 1
    assert again.heads_gone_before.count("L") == HALF
