"""Named full configurations: what `headlab train <name>` trains. No torch.

A preset is a function that returns a whole TrainConfig; what one was chosen over is in docs/log.md.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from lab.config import ModelConfig, TrainConfig
from lab.naming import unknown_name
from lab.vocab import letter_vocab


@dataclass(frozen=True)
class PresetEntry:
    """A preset by name."""

    name: str
    """What a person types."""
    summary: str
    """What is trained, in one line."""
    make: Callable[[], TrainConfig]
    """Returns the configuration."""


def small_gpt(n_ctx: int) -> ModelConfig:
    """Return the model of all presets: 2 layers x 4 heads, d_model 64, 26 letters."""
    return ModelConfig(
        n_layers=2,
        n_heads=4,
        d_model=64,
        d_vocab=len(letter_vocab(26)),
        n_ctx=n_ctx,
        initializer_range=0.02,
    )


def reversal() -> TrainConfig:
    """Return the demo: ten letters said backwards, by heads on an anti-diagonal in layer 0."""
    return TrainConfig(
        task="reversal",
        model=small_gpt(n_ctx=32),
        steps=400,
        warmup_steps=50,
        eval_every=50,
        checkpoint_every=50,
    )


def copy() -> TrainConfig:
    """Return ten letters said again: heads at a constant distance."""
    return TrainConfig(
        task="copy",
        model=small_gpt(n_ctx=32),
        steps=400,
        warmup_steps=50,
        eval_every=50,
        checkpoint_every=50,
    )


def induction() -> TrainConfig:
    """Return a block of ten letters said twice: a previous-token head, then an induction head."""
    return TrainConfig(
        task="induction",
        model=small_gpt(n_ctx=32),
        steps=800,
        warmup_steps=50,
        eval_every=100,
        checkpoint_every=100,
    )


PRESETS = (
    PresetEntry("reversal", "ten letters said backwards: the demo", reversal),
    PresetEntry("copy", "ten letters said again", copy),
    PresetEntry("induction", "a block of ten letters said twice", induction),
)


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets.

    >>> preset_names()
    ('reversal', 'copy', 'induction')
    """
    return tuple(entry.name for entry in PRESETS)


def get_preset(name: str, *, seed: int = 0) -> TrainConfig:
    """Return a preset by name, with one seed for its data and its initial weights.

    Raises:
        ValueError: If there is no such preset.
    """
    makers = {entry.name: entry.make for entry in PRESETS}
    if name not in makers:
        raise ValueError(unknown_name("preset", name, makers))
    config = makers[name]()
    return dataclasses.replace(
        config, seed=seed, model=dataclasses.replace(config.model, seed=seed)
    )
