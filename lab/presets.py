"""Named full configurations: what `headlab train <name>` trains. Listing them needs no torch.

A preset is a line of PRESETS; docs/log.md gives the reasons for its values.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lab.config import ModelConfig, TrainConfig
from lab.naming import unknown_name
from lab.tasks.registry import TASKS, get_task
from lab.vocab import letter_vocab


@dataclass(frozen=True)
class PresetEntry:
    """A preset by name."""

    name: str
    """Name on the command line."""
    summary: str
    """One line that describes the training."""
    make: Callable[[], TrainConfig]
    """Returns the configuration."""


def small_gpt_on(
    task: str, length: int = 10, steps: int = 320, checkpoint_every: int = 40
) -> TrainConfig:
    """Return the base of all presets: 2 layers x 4 heads, d_model 64, ten of 26 letters.

    A third of the 320 steps would suffice; nine checkpoints show how heads form and settle.
    """
    model = ModelConfig(
        n_layers=2,
        n_heads=4,
        d_model=64,
        d_vocab=len(letter_vocab(26)),
        n_ctx=32,
        initializer_range=0.02,
    )
    return TrainConfig(
        task=task,
        length=length,
        n_symbols=26,
        model=model,
        steps=steps,
        batch_size=64,
        learning_rate=3e-3,
        warmup_steps=100,
        weight_decay=0.1,
        eval_every=40,
        checkpoint_every=checkpoint_every,
    )


PRESETS = (
    # Heads of layer 0 form an anti-diagonal.
    PresetEntry(
        "reversal", "ten letters in reverse order (the demo)", partial(small_gpt_on, "reversal")
    ),
    # Heads attend at a constant distance.
    PresetEntry("copy", "ten letters, repeated", partial(small_gpt_on, "copy")),
    # Heads attend to the token after the first occurrence.
    PresetEntry(
        "induction", "a block of ten letters, repeated", partial(small_gpt_on, "induction")
    ),
    # Heads attend at two constant distances.
    PresetEntry("rotation", "ten letters, rotated by three", partial(small_gpt_on, "rotation")),
    # Heads find a value at any position.
    PresetEntry(
        "sorting",
        "eight letters in alphabetical order",
        partial(small_gpt_on, "sorting", length=8, steps=640, checkpoint_every=80),
    ),
)


def get_preset(name: str, *, seed: int = 0) -> TrainConfig:
    """Return a preset by name, with one seed for its data and its initial weights.

    A task without a preset gets the base of all presets, with room for its sequences.

    >>> get_preset("recall", seed=1).task
    'recall'

    Raises:
        ValueError: There is neither a preset nor a task of this name.
    """
    makers = {entry.name: entry.make for entry in PRESETS}
    tasks = [entry.name for entry in TASKS]
    if name in makers:
        config = makers[name]()
    elif name in tasks:
        config = small_gpt_on(name)
        task = get_task(name, length=config.length, n_symbols=config.n_symbols)
        n_ctx = max(config.model.n_ctx, task.n_tokens)
        model = dataclasses.replace(config.model, n_ctx=n_ctx, d_vocab=task.d_vocab)
        config = dataclasses.replace(config, model=model)
    else:
        raise ValueError(unknown_name("preset", name, {*makers, *tasks}))
    return dataclasses.replace(
        config, seed=seed, model=dataclasses.replace(config.model, seed=seed)
    )
