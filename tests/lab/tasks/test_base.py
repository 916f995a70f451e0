"""Batches: parts of them and other devices."""

import torch

from lab.tasks.reversal import Reversal


def test_a_slice_of_a_batch_is_the_batch_of_these_sequences():
    task = Reversal(length=3)
    part, want = task.sample(8, seed=0)[2:5], task.sample(3, seed=0, first=2)
    assert len(part) == 3
    for field in ("tokens", "loss_mask", "sources"):
        assert torch.equal(getattr(part, field), getattr(want, field))


def test_a_batch_moves_with_all_its_parts():
    moved = Reversal(length=3).sample(2, seed=0).to("meta")
    assert {moved.tokens.device, moved.loss_mask.device, moved.sources.device} == {
        torch.device("meta")
    }
