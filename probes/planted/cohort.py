"""Many planted models: a fixed draw for every seed, of all kinds, hard variants and architectures.

A labeler's thresholds are chosen on models of TUNING_SEEDS, and graded on those of CARD_SEEDS.
Every seed gives two models of two layers with eight heads each; kinds follow each other as in a
pack of cards, so that any hundred seeds have about equally many of each. A class that no pack has
comes in a third model, so that the heads of the others stay as they were drawn.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from lab.checks import require_seed
from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from probes.head_classes import HEAD_CLASSES, shown_label
from probes.planted.heads import MIXABLE, PlantedHead, Writes
from probes.planted.planted_models import Norm, Planted, plant
from probes.registry import get_probe

TUNING_SEEDS = range(100)
"""Seeds of the models that thresholds may be chosen on."""
CARD_SEEDS = range(100, 200)
"""Seeds of the models that labels are graded on."""
MODELS_A_SEED = 2
N_LAYERS, N_HEADS = 2, 8
"""Sizes of every model here."""
ROTARY_EVERY = 5
"""One model in this number has rotary positions."""
GAINS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0)
"""Gains of heads that have a label."""
SHARP_GAINS = GAINS[4:]
"""Gains of heads that must have none, and of those in which something else is hard."""
CERTAIN = 40.0
"""Gain of the heads that write what later layers read."""
WRITERS = (
    PlantedHead(kind="previous", beta=CERTAIN, writes="tokens", variant="writer"),
    PlantedHead(kind="duplicate", beta=CERTAIN, writes="places", variant="writer"),
)
"""The heads of the first layer that others read; with rotary positions the first one alone."""
WORDS = (6, 7, 8, 9, 10)
"""Lengths of the reversal task's words."""

Draw = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A head of the pack, but for what is drawn anew each time it is dealt."""

    head: PlantedHead
    """What is fixed."""
    gains: tuple[float, ...] = SHARP_GAINS
    """Where its gain is drawn from."""

    def deal(self, draw: Draw, word: int) -> tuple[PlantedHead, ...]:
        """Return the head; a twin comes twice."""
        head = dataclasses.replace(self.head, beta=float(draw.choice(self.gains)))
        if head.variant == "far offset":
            head = dataclasses.replace(head, distance=int(draw.integers(3, 6)))
        elif head.variant == "two off":
            head = dataclasses.replace(head, distance=int(draw.choice([-2, 2])))
        elif head.variant in ("silent", "twin"):
            kind = str(draw.choice(["previous", "current", "first"]))
            head = dataclasses.replace(head, kind=kind)
        elif head.kind == "mixed":
            first, second = (str(part) for part in draw.permutation(MIXABLE)[:2])
            even = head.variant == "mixture"
            share = draw.uniform(0.46, 0.54) if even else draw.choice([0.3, 0.7])
            head = dataclasses.replace(head, parts=(first, second), share=float(share))
        elif head.kind == "random":
            head = dataclasses.replace(head, seed=int(draw.integers(2**31)))
        elif head.kind == "low_rank":
            # beta of the recipe is what a target scores more than its neighbours.
            head = dataclasses.replace(head, beta=head.beta / self.drop(word))
        return (head, head) if head.variant == "twin" else (head,)

    def drop(self, word: int) -> float:
        """Return what one step beside the target costs a low_rank head of gain 1."""
        turning = self.head.variant == "soft turn"
        return 1.0 if turning else 1.0 - math.cos(2 * math.pi / (2 * word + 2))


def recipe(
    kind: str,
    variant: str = "plain",
    *,
    gains: tuple[float, ...] | None = None,
    distance: int = 0,
    rest: Literal["first", "even"] = "first",
    writes: Writes = "mark",
) -> Recipe:
    """Write a line of the pack: plain heads have every gain, hard variants sharp ones."""
    if gains is None:
        gains = GAINS if variant == "plain" else SHARP_GAINS
    if kind == "offset":
        distance = distance or 2
    head = PlantedHead(kind=kind, variant=variant, distance=distance, rest=rest, writes=writes)
    return Recipe(head=head, gains=gains)


ALIKE = (
    recipe("previous"),
    recipe("current"),
    recipe("first"),
    recipe("uniform"),
    recipe("offset", "offset 2"),
    recipe("offset", "far offset"),
    recipe("previous", "silent", writes="nothing"),
    recipe("previous", "twin"),
)
"""What every model can have, whatever its positions are."""
DECK = (
    *ALIKE,
    recipe("current"),
    recipe("first"),
    recipe("uniform"),
    recipe("reversal"),
    recipe("reversal", "even rest", rest="even"),
    recipe("reversal", "one row late", distance=1),
    recipe("reversal", "one row early", distance=-1),
    recipe("duplicate"),
    recipe("low_rank", "low rank", gains=(0.4, 0.5, 0.6, 0.7)),
    recipe("recency", "recency", gains=(0.3, 0.4, 0.5, 0.6)),
    recipe("random", "scale 1", gains=(1.0,)),
    recipe("random", "scale 3", gains=(3.0,)),
    recipe("random", "scale 9", gains=(9.0,)),
    recipe("mixed", "mixture"),
    recipe("mixed", "mixture"),
    recipe("mixed", "lopsided"),
    recipe("previous", "silent", writes="nothing"),
)
"""Heads of either layer."""
LATER_DECK = (
    recipe("induction", writes="copy"),
    recipe("pointer", distance=-1),
    recipe("pointer", distance=-1),
    recipe("pointer", "told the place", distance=0),
    recipe("pointer", "told the place", distance=1),
    recipe("pointer", "two off"),
    recipe("backup", "backup"),
)
"""Heads that read what the first layer has written."""
SOFT_TURN = recipe("low_rank", "soft turn", gains=(0.4, 0.5, 0.6, 0.7))
ROTARY_DECK = (*ALIKE, SOFT_TURN, SOFT_TURN)
ROTARY_LATER = (recipe("induction", "turned", writes="copy"),)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A model to plant."""

    layers: tuple[tuple[PlantedHead, ...], ...]
    word: int
    norm: Norm
    rotary: bool
    kv_heads: int | None
    rotate: int | None

    def build(self, dtype: torch.dtype = torch.float32) -> Planted:
        """Return the model; its vocabulary is as large as a repeated block and its control need."""
        return plant(
            self.layers,
            word=self.word,
            d_vocab=2 * self.word + 6,
            norm=self.norm,
            rotary=self.rotary,
            kv_heads=self.kv_heads,
            rotate=self.rotate,
            dtype=dtype,
        )


def planted_cohort(seed: int) -> Iterator[Planted]:
    """Yield the planted models of a seed, in float32."""
    for number in range(MODELS_A_SEED):
        yield cohort_plan(seed, number).build()
    if new := new_cards():
        yield new_plan(seed, new).build()


def cohort_plan(seed: int, number: int) -> Plan:
    """Return what the models of a seed are made of; number 1 has a norm, number 0 none."""
    require_seed(seed)
    draw = np.random.default_rng((seed, number))
    model = MODELS_A_SEED * seed + number
    rotary = model % ROTARY_EVERY == ROTARY_EVERY - 1
    place = model // ROTARY_EVERY if rotary else model - model // ROTARY_EVERY
    word = int(draw.choice(WORDS))
    norms: tuple[Norm, ...] = ("LN", "LN", "LN", "RMS") if number else (None,)
    first = [*WRITERS[: 1 if rotary else 2]]
    room = N_LAYERS * N_HEADS - len(first) - N_HEADS // 2
    anywhere = dealt(ROTARY_DECK if rotary else DECK, room * place, draw, word)
    layers = [shuffled(filled(first, anywhere), draw)]
    later = dealt(ROTARY_LATER if rotary else LATER_DECK, N_HEADS // 2 * place, draw, word)
    second = [head for (head,) in itertools.islice(later, N_HEADS // 2)]
    marked = [i for i, head in enumerate(layers[0]) if head.writes == "mark"]
    second = [dataclasses.replace(head, primary=int(draw.choice(marked))) for head in second]
    layers.append(shuffled(filled(second, anywhere), draw))
    return Plan(
        layers=tuple(layers),
        word=word,
        norm=norms[int(draw.integers(len(norms)))],
        rotary=rotary,
        kv_heads=(None, 4, 2)[int(draw.integers(3))],
        rotate=seed if number or draw.random() < 0.5 else None,
    )


def new_cards() -> tuple[Recipe, ...]:
    """Return a card for each class that is missing from every pack."""
    known = {card.head.label for card in (*DECK, *LATER_DECK)}
    new = [c.name for c in HEAD_CLASSES if shown_label(c.name, "reversal") not in known]
    examples = [get_probe(name).example for name in new]
    return tuple(recipe(one.kind, distance=one.distance) for one in examples)


def new_plan(seed: int, new: tuple[Recipe, ...]) -> Plan:
    """Return a model whose second layer has the heads of new classes."""
    draw = np.random.default_rng((seed, MODELS_A_SEED))
    word = int(draw.choice(WORDS))
    first = filled([*WRITERS], dealt(ALIKE, 0, draw, word))
    second = filled([], dealt(new, N_HEADS * seed, draw, word))
    return Plan(
        layers=(shuffled(first, draw), shuffled(second, draw)),
        word=word,
        norm=None,
        rotary=False,
        kv_heads=None,
        rotate=seed,
    )


def filled(heads: list[PlantedHead], more: Iterator[tuple[PlantedHead, ...]]) -> list[PlantedHead]:
    """Return a layer: some heads, and as many more as there is room for."""
    heads = list(heads)
    while len(heads) < N_HEADS:
        dealt_now = next(more)
        if len(heads) + len(dealt_now) <= N_HEADS:
            heads += dealt_now
    return heads


def dealt(
    deck: tuple[Recipe, ...], start: int, draw: Draw, word: int
) -> Iterator[tuple[PlantedHead, ...]]:
    """Yield heads from a place of an endless pack: every round has each card once."""
    for place in itertools.count(start):
        turn, card = divmod(place, len(deck))
        yield deck[order_of(turn, len(deck))[card]].deal(draw, word)


@functools.cache
def order_of(turn: int, n_cards: int) -> tuple[int, ...]:
    """Return the order of the cards in a turn of the pack."""
    return tuple(np.random.default_rng(turn).permutation(n_cards).tolist())


def shuffled(heads: list[PlantedHead], draw: Draw) -> tuple[PlantedHead, ...]:
    """Return a layer's heads in another order."""
    return tuple(heads[i] for i in draw.permutation(len(heads)))


def random_model(number: int) -> HookedGPT:
    """Return a model with random initial weights.

    One number after the other, models differ in key heads, norm, positions and standard deviation
    of the weights; all have MLPs.
    """
    norms: tuple[Norm, ...] = ("LN", "RMS")
    return HookedGPT(
        ModelConfig(
            n_layers=N_LAYERS,
            n_heads=N_HEADS,
            n_key_value_heads=(None, 4)[number % 2],
            d_model=64,
            d_vocab=28,
            n_ctx=22,
            normalization_type=norms[number // 2 % 2],
            positional_embedding_type=("standard", "rotary")[number // 4 % 2],
            initializer_range=(0.02, None)[number // 8 % 2],
            seed=number,
        )
    )
