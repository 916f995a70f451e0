"""What every measure refuses before it measures: weights, masks and ids that are no input."""

import math

import pandas as pd
import pytest
import torch

from probes.ablation.table import ablation_sweep
from probes.attention.distances import head_distances
from probes.attention.entropy import entropy_profile
from probes.attention.heads import score_heads
from probes.attention.maps import attention_map
from probes.attention.offsets import offset_spectrum
from probes.attention.peaks import head_peaks
from probes.feeders.composition import composition_scores
from probes.first_order.attribution_patching import estimated_ablations
from probes.first_order.importance import head_importance
from probes.first_order.self_repair import repair_split
from probes.labels.head_labels import label_heads
from probes.writing.copying import copying_scores
from probes.writing.values import head_values

MEASURES = {
    "score_heads": score_heads,
    "offset_spectrum": offset_spectrum,
    "head_values": head_values,
    "head_distances": head_distances,
    "entropy_profile": entropy_profile,
    "head_peaks": lambda model, batch: head_peaks(model, batch, ["previous"]),
    "copying_scores": lambda model, batch: copying_scores(model),
    "label_heads": label_heads,
    "ablation_sweep": ablation_sweep,
    "head_importance": head_importance,
    "estimated_ablations": estimated_ablations,
    "composition_scores": lambda model, batch: composition_scores(model),
    "repair_split": repair_split,
    "attention_map": lambda model, batch: attention_map(model, batch, layer=0, head=0),
}


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("weight", "value"), [("W_V", math.nan), ("W_K", math.inf)])
def test_weights_that_are_no_numbers_are_refused(
    build_model, repeating_batch, measure, weight, value
):
    """In the last layer's values they change no attention at all."""
    model = build_model()
    with torch.no_grad():
        getattr(model.blocks[1].attn, weight)[0, 0, 0] = value
    wanted = rf"finite, got nan or inf in blocks.1.attn.{weight}; restore them"
    with pytest.raises(ValueError, match=wanted):
        MEASURES[measure](model, repeating_batch)


@pytest.mark.parametrize("measure", MEASURES)
def test_weights_are_read_for_finiteness_once(small_model, repeating_batch, measure, monkeypatch):
    scans = []

    def scan(model):
        scans.append(model)

    monkeypatch.setattr("probes.reading.observed_model.weight_not_finite", scan)
    for calls in (1, 2):  # at every call: weights may be edited in between
        MEASURES[measure](small_model, repeating_batch)
        assert len(scans) == calls


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 2], r"a tensor of booleans or of 0 and 1 in whole numbers, got \[1, 2\]"),
        ("abc", "a tensor of booleans or of 0 and 1 in whole numbers, got 'abc'"),
        (torch.ones(5, 14), r"in whole numbers, got float32 of shape \[5, 14\]"),
        (torch.full((5, 14), 2), "1 at real tokens and 0 at padding, got 2 to 2"),
        (torch.full((5, 14), -1), "1 at real tokens and 0 at padding, got -1 to -1"),
        (torch.ones(2, 14).bool(), r"of shape \(5, 14\), got \(2, 14\); give the tokens of"),
        (torch.zeros(1, 14).bool(), "a real token in every sequence, got a sequence of padding"),
    ],
    ids=["list", "text", "float", "two", "minus one", "rows", "padding"],
)
@pytest.mark.parametrize("measure", ["score_heads", "ablation_sweep", "head_importance"])
def test_masks_have_one_rule(small_model, repeating_batch, measure, mask, message):
    assert repeating_batch.tokens.shape == (5, 14)
    with pytest.raises(ValueError, match=f"^attention_mask must .*{message}"):
        MEASURES[measure](small_model, repeating_batch, attention_mask=mask)


MASKED = ("score_heads", "offset_spectrum", "head_values", "head_distances", "entropy_profile")


@pytest.mark.parametrize("measure", [*MASKED, "label_heads", "ablation_sweep", "head_importance"])
def test_one_row_of_a_mask_is_for_all_sequences(small_model, repeating_batch, measure):
    row = torch.ones(1, 14, dtype=torch.int64)
    row[0, :3] = 0
    found, wanted = (
        MEASURES[measure](small_model, repeating_batch, attention_mask=mask)
        for mask in (row, row.bool().expand(5, -1))
    )
    pd.testing.assert_frame_equal(found, wanted)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (0, "special_ids must be a tuple of token ids, got 0; pass"),
        ((0, 6), "an id of special_ids must be a whole number of at most 5, got 6"),
        ((-1,), "an id of special_ids must be a whole number of at least 0, got -1"),
        (("a",), "an id of special_ids must be a whole number of at least 0, got 'a'"),
    ],
    ids=str,
)
def test_special_ids_are_ids_of_the_model(small_model, repeating_batch, ids, message):
    with pytest.raises(ValueError, match=message):
        score_heads(small_model, repeating_batch.tokens, special_ids=ids)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("heads", ["L0H1", ["L0H1"], [(0, 1, 2)], [0]], ids=str)
def test_heads_are_pairs(small_model, repeating_batch, heads):
    with pytest.raises(ValueError, match=r"heads must be pairs \(layer, head\), got "):
        head_distances(small_model, repeating_batch, heads)
