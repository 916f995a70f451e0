"""Further training of a given model on the task of a run, for example after pruning.

Recipe and step are those of training; only the initial weights differ.
"""

import dataclasses

from lab.checks import require_whole
from lab.config import TrainConfig
from lab.hooked_gpt import HookedGPT
from lab.runtime import join_processes, pick_device
from lab.trainer import Trainer
from lab.training import check_step, task_of

GENTLE = 0.1
"""Share of the recipe's peak learning rate: the weights are close to a good solution."""


def fine_tuned(model: HookedGPT, recipe: TrainConfig, steps: int) -> HookedGPT:
    """Return a copy of a model after some more steps on the task of a recipe.

    Its batches are new ones (the recipe's seed + 1), its learning rate peaks at a tenth of the
    recipe's, after a warm-up of a tenth of the steps.

    Args:
        model: The initial model, which is not modified. Pruned heads have no weights, so they stay
            removed.
        recipe: Task, batch size and optimiser: the config of the model's run.
        steps: Optimiser steps.

    Raises:
        ValueError: The model does not fit the task, or the loss stops being finite.
    """
    require_whole("steps", steps, 1)
    config = dataclasses.replace(
        recipe,
        model=model.config,
        steps=steps,
        seed=recipe.seed + 1,
        learning_rate=GENTLE * recipe.learning_rate,
        warmup_steps=steps // 10,
    )
    device = pick_device(config.device)
    trainer = Trainer(config, task_of(config), device, join_processes(device))
    trainer.model.load_state_dict(model.state_dict())
    for step in range(1, steps + 1):
        check_step(trainer.step(step), config, None)
    trainer.model.tokenizer, trainer.model.provenance = model.tokenizer, model.provenance
    return trainer.model.to(model.W_E.device)
