"""Weights that are no numbers: TransformerLens's tools are not even asked."""

import pytest
import torch

from probes.borrowed.answers import Answers
from probes.borrowed.attribution import logit_attribution
from probes.borrowed.edges import edge_attribution
from probes.borrowed.lens import logit_lens
from probes.borrowed.patching import patch_activations

TOKENS = torch.tensor([[1, 2, 3, 4]])
ANSWERS = Answers.after(TOKENS, torch.tensor([2]))


@pytest.mark.parametrize(
    "tool", [patch_activations, edge_attribution, logit_lens, logit_attribution]
)
def test_weights_that_are_no_numbers_are_refused(build_model, tool):
    model = build_model().eval()
    with torch.no_grad():
        model.blocks[1].attn.W_Q[2, 0, 0] = torch.nan
    sequences = [TOKENS] if tool in (logit_lens, logit_attribution) else [TOKENS, TOKENS.flip(1)]
    with pytest.raises(ValueError, match=r"weights must be finite, got nan or inf in .*W_Q"):
        tool(model, *sequences, answers=ANSWERS)
