"""Training on from given weights: the recipe's steps, the start left as it was."""

import dataclasses

import pytest
import torch

from lab.config import ModelConfig
from lab.evaluation import evaluate
from lab.fine_tuning import fine_tuned
from lab.hooked_gpt import HookedGPT
from lab.presets import get_preset
from lab.tasks.registry import get_task
from lab.trainer import make_optimizer


def test_one_step_by_hand() -> None:
    """One step of AdamW on the first new batch, at a tenth of the recipe's rate."""
    kept = ((0, 2), (1,))
    model = HookedGPT(
        ModelConfig(n_layers=2, n_heads=3, d_model=12, d_vocab=28, n_ctx=12, kept_heads=kept)
    ).eval()
    recipe = dataclasses.replace(
        get_preset("reversal"), model=model.config, length=4, batch_size=8, accumulate=1,
        device="cpu", precision="fp32",
    )  # fmt: skip
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tuned = fine_tuned(model, recipe, 1)
    by_hand = HookedGPT(model.config).eval()
    by_hand.load_state_dict(before)
    # A run of one step has no warm-up, and ends its cosine at once.
    rate = 0.1 * recipe.learning_rate * recipe.final_lr_share
    optimizer = make_optimizer(by_hand, dataclasses.replace(recipe, learning_rate=rate))
    task = get_task("reversal", length=4)
    batch = task.sample(8, seed=recipe.seed + 1, split="train", step=1)
    logits = by_hand(batch.tokens)[batch.loss_mask]
    answers = batch.tokens.roll(-1, dims=1)[batch.loss_mask]
    torch.nn.functional.cross_entropy(logits, answers).backward()
    torch.nn.utils.clip_grad_norm_(by_hand.parameters(), recipe.grad_clip)
    optimizer.step()
    for (name, got), expected in zip(
        tuned.state_dict().items(), by_hand.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=0, msg=name)
        assert torch.equal(model.state_dict()[name], before[name])
    held_out = task.sample(50, seed=0, split="test")
    assert evaluate(fine_tuned(model, recipe, 40), held_out).loss < evaluate(model, held_out).loss


def test_what_cannot_be_trained_on() -> None:
    recipe = get_preset("reversal")
    small = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=28, n_ctx=4))
    with pytest.raises(ValueError, match="n_ctx must be at least 22 for reversal"):
        fine_tuned(small, recipe, 1)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        fine_tuned(small, recipe, 0)
