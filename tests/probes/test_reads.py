"""What every measure refuses before it measures: weights, masks and ids that are no input."""

import math

import pytest
import torch

from probes.ablation import ablation_sweep
from probes.copying import copying_scores
from probes.distances import head_distances
from probes.entropy import entropy_profile
from probes.heads import score_heads
from probes.labels import label_heads
from probes.maps import attention_map
from probes.offsets import offset_spectrum
from probes.peaks import head_peaks
from probes.values import head_values

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
