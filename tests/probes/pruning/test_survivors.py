"""Heads that are left: what they did, and what they do now that others are gone."""

import pytest
import torch

from lab.gates import HeadGates
from probes.labels.head_labels import label_heads
from probes.planted import PlantedHead, plant
from probes.pruning.removing import prune_heads
from probes.pruning.survivors import survivor_labels

CERTAIN = 40.0


def test_an_induction_head_without_its_feeder_is_none() -> None:
    """L1H0 finds what L0H0 wrote; L1H1 looks for itself."""
    planted = plant(
        [
            [
                PlantedHead(kind="previous", beta=CERTAIN, writes="tokens"),
                PlantedHead(kind="current", beta=CERTAIN),
            ],
            [PlantedHead(kind="induction", beta=CERTAIN), PlantedHead(kind="previous", beta=8.0)],
        ],
        n_ctx=18,
    )
    pruned = prune_heads(planted.model, [(0, 0)])
    found = survivor_labels(planted.model, pruned, sequences=12)
    assert found[["layer", "head"]].to_numpy().tolist() == [[0, 1], [1, 0], [1, 1]]
    assert found["before"].tolist() == ["current", "induction", "previous"]
    assert found["label"].tolist()[::2] == ["current", "previous"]
    assert found["label"].tolist()[1] != "induction"
    assert found["changed"].tolist() == [False, True, False]
    assert found["before_score"].tolist()[1] > 0.9
    # Labels of the pruned model itself, and of the gated one, whose attention is the same.
    again = label_heads(pruned, sequences=12)
    assert found["label"].tolist() == again["label"].tolist()
    tokens = torch.arange(2, 14).unsqueeze(0)
    gates = HeadGates.ablate([(0, 0)], like=planted.model)
    torch.testing.assert_close(pruned(tokens), planted.model(tokens, gates=gates))


def test_models_that_do_not_belong_together() -> None:
    model = plant([[PlantedHead(kind="previous"), PlantedHead(kind="uniform")]]).model
    with pytest.raises(ValueError, match=r"heads of the pruned model must be .* got L0H1; give"):
        survivor_labels(prune_heads(model, [(0, 1)]), model)
