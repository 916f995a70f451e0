"""What every measure refuses before it measures: weights, masks and ids that are no input."""

import math

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
from probes.labels.study import label_heads
from probes.writing.copying import copying_scores
from probes.writing.values import head_values

MEASURES = {
    "score_heads": score_heads,
    "offset_spectrum": offset_spectrum,
    "head_values": head_values,
    "head_distances": head_distances,
    "entropy_profile": entropy_profile,
    "head_peaks": lambda model, batch: head_peaks(model, batch, "previous"),
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


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 2], r"must be a tensor of ones and zeros \[batch, pos\], got \[1, 2\]"),
        ("abc", "must be a tensor of ones and zeros"),
        (torch.full((5, 14), 2.0), "must hold ones and zeros only, got 2"),
        (torch.full((5, 14), math.nan), "must hold ones and zeros only, got nan"),
        (torch.full((5, 14), -1), "must hold ones and zeros only, got -1"),
    ],
    ids=["list", "text", "two", "nan", "minus one"],
)
def test_masks_are_ones_and_zeros(small_model, repeating_batch, mask, message):
    assert repeating_batch.tokens.shape == (5, 14)
    with pytest.raises(ValueError, match=f"attention_mask {message}"):
        score_heads(small_model, repeating_batch, attention_mask=mask)


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
