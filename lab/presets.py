"""Named full configurations: what `headlab train <name>` trains. Listing them needs no torch.

A preset is a function that returns a whole TrainConfig; docs/log.md gives the reasons.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

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


def small_gpt_on(task: str) -> TrainConfig:
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
        length=10,
        n_symbols=26,
        model=model,
        steps=320,
        batch_size=64,
        learning_rate=3e-3,
        warmup_steps=100,
        weight_decay=0.1,
        eval_every=40,
        checkpoint_every=40,
    )


def reversal() -> TrainConfig:
    """Return the demo: ten letters in reverse order; heads of layer 0 form an anti-diagonal."""
    return small_gpt_on("reversal")


def copy() -> TrainConfig:
    """Return ten letters, repeated: heads attend at a constant distance."""
    return small_gpt_on("copy")


def induction() -> TrainConfig:
    """Return a block of ten letters, repeated: heads attend after the first occurrence."""
    return small_gpt_on("induction")


def rotation() -> TrainConfig:
    """Return ten letters, rotated by three: heads attend at two constant distances."""
    return small_gpt_on("rotation")


def sorting() -> TrainConfig:
    """Return eight letters in alphabetical order: heads find a value at any position."""
    config = small_gpt_on("sorting")
    return dataclasses.replace(config, length=8, steps=640, checkpoint_every=80)


PRESETS = (
    PresetEntry("reversal", "ten letters in reverse order (the demo)", reversal),
    PresetEntry("copy", "ten letters, repeated", copy),
    PresetEntry("induction", "a block of ten letters, repeated", induction),
    PresetEntry("rotation", "ten letters, rotated by three", rotation),
    PresetEntry("sorting", "eight letters in alphabetical order", sorting),
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
