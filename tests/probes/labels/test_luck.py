"""What chance finds: how often label_study discovers something where there is nothing."""

import dataclasses

import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from probes.head_classes import CONTENT
from probes.labels.evidence import gather_evidence
from probes.labels.head_labels import content_tests, label_heads, label_study
from probes.planted import PlantedHead, plant
from probes.reading.inputs import repeated_pair
from probes.reading.observed_model import probe_input
from probes.tables import json_rows

SMALL = {"n_layers": 2, "n_heads": 4, "d_model": 32, "d_vocab": 40, "n_ctx": 22}


def test_small_effect_is_significant_and_no_label():
    """Repeats raise the mass on their follower by a few hundredths, in every sequence a bit."""
    head = PlantedHead(kind="induction", beta=0.6)
    model = plant([[PlantedHead(kind="previous", beta=30.0, writes="tokens")], [head]]).model
    pair = repeated_pair(model, n_sequences=64)
    # Mix the arms: in two of three sequences the blocks do not repeat.
    half = torch.arange(64)[:, None] % 3 > 0
    mixed = dataclasses.replace(pair, tokens=torch.where(half, pair.control, pair.tokens))
    study = label_study(model, pair=mixed)
    (own,) = (
        row for row in json_rows(study.evidence) if (row["layer"], row["probe"]) == (1, "induction")
    )
    assert own["effect"] == pytest.approx(0.02, abs=0.005)
    assert own["q_value"] < 0.01
    assert study.labels["tested"][1] == "induction"
    assert study.labels["q_value"][1] == own["q_value"]
    assert study.labels["label"][1] not in CONTENT


def null_discoveries(n_models, **sizes):
    """How many random models have a discovery where neither arm repeats anything."""
    found = 0
    for seed in range(n_models):
        model = HookedGPT(ModelConfig(seed=seed, **sizes))
        pair = repeated_pair(model, n_sequences=16, repeats=False, seed=seed)
        x = probe_input(model, pair.tokens, pair.special_ids)
        tests = content_tests(gather_evidence(model, x, pair, on_pair=True), seed)
        assert tests.n_flips == 2**15
        found += bool((tests.q_value < 0.05).any())
    return found


def test_luck_of_random_models_is_rarely_a_discovery():
    assert null_discoveries(6, **SMALL) <= 2  # three of 6 have a chance of 0.002 at 0.05


@pytest.mark.slow
def test_luck_of_200_random_models_is_rarely_a_discovery():
    assert null_discoveries(200, **SMALL) <= 18


def test_real_repeats_are_discovered_in_random_models_and_no_label():
    model = HookedGPT(ModelConfig(**SMALL, seed=0, initializer_range=0.2))
    labels = label_heads(model)
    assert (labels["q_value"] < 0.05).any()
    assert not labels["label"].isin(CONTENT).any()
