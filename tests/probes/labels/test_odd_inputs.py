"""Labels of short and of padded sequences, and of tasks whose sources are where copies stand."""

import numpy as np
import pytest
import torch

from lab.tasks.registry import get_task
from probes.labels.head_labels import label_heads
from probes.planted import PlantedHead, plant


@pytest.mark.parametrize("task", ["copy", "induction"])
def test_position_and_content_of_the_same_cells_are_told_apart(task):
    """In these tasks the induction head looks at the very cells of the sources."""
    n = 8
    model = plant(
        [
            [PlantedHead(kind="previous", beta=30.0, writes="tokens"), PlantedHead(kind="first")],
            [
                PlantedHead(kind="induction"),
                PlantedHead(kind="offset", distance=n if task == "copy" else n - 1),
            ],
        ],
        word=n,
    ).model
    batch = get_task(task, length=n).sample(16, seed=0)
    labels = label_heads(model, batch, sequences=12)
    assert labels["label"].tolist()[2:] == ["induction", "sources"]


def test_padding_on_the_left_changes_nothing():
    """Rotary heads see distances only, so that padding can stand before them."""
    layers = [
        [
            PlantedHead(kind="previous", beta=30.0, writes="tokens"),
            PlantedHead(kind="current"),
            PlantedHead(kind="offset", distance=2),
        ],
        [PlantedHead(kind="induction"), PlantedHead(kind="first"), PlantedHead(kind="uniform")],
    ]
    model = plant(layers, rotary=True, n_ctx=24).model
    tokens = get_task("reversal", length=8).sample(12, seed=0).tokens
    pads = torch.zeros(12, 4, dtype=torch.long)
    padded = torch.cat([pads, tokens], dim=1)
    real = torch.cat([pads, torch.ones_like(tokens)], dim=1)
    plain = label_heads(model, tokens, special_ids=(0, 1), sequences=12)
    with_pads = label_heads(model, padded, special_ids=(0, 1), attention_mask=real, sequences=12)
    assert plain["label"].tolist() == [
        "previous",
        "current",
        "none",
        "induction",
        "first",
        "uniform",
    ]
    assert with_pads["label"].tolist() == plain["label"].tolist()
    np.testing.assert_allclose(with_pads["score"], plain["score"], atol=1e-9)


def test_short_sequences_make_no_sinks_of_even_heads():
    model = plant([[PlantedHead(kind="uniform"), PlantedHead(kind="first")]], n_ctx=18).model
    tokens = torch.randint(2, 28, (12, 5), generator=torch.Generator().manual_seed(0))
    labels = label_heads(model, tokens, sequences=12)
    assert labels["score"][0] > 0.3
    assert labels["label"].tolist() == ["uniform", "first"]


def test_half_on_the_first_token_is_no_previous_token_head_at_row_1():
    model = plant([[PlantedHead(kind="first", beta=3.0), PlantedHead(kind="uniform")]]).model
    tokens = torch.tensor([[0, 2, 3], [0, 4, 5]])
    labels = label_heads(model, tokens, special_ids=(0, 1), sequences=12)
    assert labels["label"].tolist()[0] == "first"


def test_model_without_room_for_blocks_has_no_labels_of_content():
    model = plant([[PlantedHead(kind="previous"), PlantedHead(kind="first")]], word=2).model
    tokens = torch.randint(2, 28, (9, 6))
    labels = label_heads(model, tokens)
    assert labels["label"].tolist() == ["previous", "first"]
    assert labels["ladder_after"].isna().all()
    assert labels.attrs["repeated_blocks"] is None
    with pytest.raises(
        ValueError, match=r"model must have room for repeated blocks of 4 .*n_ctx = 6"
    ):
        label_heads(model)
