"""Which heads can be planted: every kind, what a labeler must call it, and where its rows attend.

A head is described here as frozen data. How it becomes weights is in
`probes.planted.one_hot_codes` and `probes.planted.planted_models`.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float64, Int
from torch import Tensor
from torch.nn import functional as F

from lab.checks import require, require_choice, require_number, require_seed, require_whole
from probes.head_classes import HEAD_CLASSES, HeadClass, shown_label
from probes.registry import get_probe, load_object

Writes = Literal["mark", "tokens", "places", "copy", "anti_copy", "nothing"]
PlaceScores = Float64[Tensor, "query_pos key_pos"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KindEntry:
    """One kind of planted head."""

    name: str
    """What `PlantedHead.kind` says."""
    summary: str
    """Where row q looks."""
    label: str = "none"
    """What a labeler must call such a head, unless it is the example of a class."""
    needs: Literal["tokens", "places"] | None = None
    """What a head of an earlier layer must have written."""
    absolute: bool = True
    """Whether it needs absolute positions, which models with rotary ones do not have."""


KINDS: tuple[KindEntry, ...] = (
    KindEntry(name="previous", summary="at q - 1", absolute=False),
    KindEntry(name="current", summary="at itself", absolute=False),
    KindEntry(name="first", summary="at key 0", absolute=False),
    KindEntry(name="offset", summary="at q - distance", absolute=False),
    KindEntry(
        name="reversal",
        summary="at 2n + 1 - q in the rows of the answer, `distance` rows late",
    ),
    KindEntry(name="uniform", label="uniform", summary="at all keys alike", absolute=False),
    KindEntry(
        name="low_rank",
        summary="around q - 1, by a cosine of two dimensions: a smeared diagonal",
        absolute=False,
    ),
    KindEntry(name="recency", summary="near by: every step back costs beta"),
    KindEntry(name="mixed", label="mixed", summary="at two places, share to 1 - share"),
    KindEntry(name="random", summary="anywhere: scores drawn from N(0, beta^2)"),
    KindEntry(name="duplicate", summary="at the earlier copies of its token"),
    KindEntry(
        name="induction",
        summary="at what follows the earlier copies: a key knows the token before it",
        needs="tokens",
        absolute=False,
    ),
    KindEntry(
        name="pointer",
        summary="`distance` after the latest copy, whose place it was told",
        needs="places",
    ),
    KindEntry(
        name="backup",
        label="first",
        summary="at key 0; at q - 1 once head `primary` of layer 0 is ablated",
    ),
)
"""Every kind of head that can be planted; the example of a class may also name a function."""

MIXABLE = ("previous", "current", "first")
"""Kinds that a mixed head can be made of."""
MIXED_MARGIN = 0.2
"""A mixed head whose parts differ by more is called by the larger one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantedHead:
    """One head to plant: where it looks, how sharply, and what it writes."""

    kind: str
    """The name of one of KINDS; or module:function (n_ctx) that gives the key of every row."""
    beta: float = 12.0
    """Gain: a target scores beta, other keys 0. low_rank: height of the cosine; recency: cost of a
    step; random: standard deviation of the scores. With rotary positions: what the target scores
    more than its neighbours."""
    distance: int = 0
    """Of an offset head, steps back; of a reversal head, rows late; of a pointer, steps on."""
    parts: tuple[str, str] = ("previous", "first")
    """The two kinds that a mixed head is made of."""
    share: float = 0.5
    """What the first part of a mixed head gets of the two."""
    rest: Literal["first", "even"] = "first"
    """What a reversal head does in rows that answer nothing: rest on key 0, or spread evenly."""
    writes: Writes = "mark"
    """mark: a constant of its own; tokens or places: what it attends to, for a later layer to read;
    copy or anti_copy: the same, for or against it in the logits; nothing: it is silent."""
    primary: int = 0
    """The head of layer 0 that a backup head stands in for."""
    seed: int = 0
    """Seed of a random head."""
    variant: str = "plain"
    """What it is an example of, in the words of a table."""

    def __post_init__(self) -> None:
        """Check every value."""
        if ":" not in self.kind:
            require_choice("planted head", self.kind, tuple(entry.name for entry in KINDS))
        require_choice("writes", self.writes, get_args(Writes))
        require_choice("rest", self.rest, ("first", "even"))
        require_number("beta", self.beta, 0.0)
        require_number("share", self.share, 1e-6, 1.0 - 1e-6)
        require_whole("primary", self.primary, 0)
        require_seed(self.seed)
        if self.kind == "offset":
            require_whole("distance", self.distance, 1)
        for part in self.parts:
            require_choice("part of a mixed head", part, MIXABLE)
        require(self.parts[0] != self.parts[1], "parts", "two different kinds", self.parts)

    @property
    def label(self) -> str:
        """What a labeler must call the head.

        >>> PlantedHead(kind="pointer", distance=-1).label
        'preceder'
        >>> PlantedHead(kind="reversal", distance=1).label
        'none'
        """
        if self.kind == "mixed" and abs(2.0 * self.share - 1.0) > MIXED_MARGIN:
            return self.parts[0] if self.share > 0.5 else self.parts[1]
        name = next((own.name for own in HEAD_CLASSES if self.is_of(own)), self.entry.label)
        return shown_label(name, "reversal")

    def is_of(self, own: HeadClass) -> bool:
        """Whether the head is of a class: its example, or one that looks where the class looks."""
        example = get_probe(own.name).example
        moved_by = self.distance if self.kind in ("offset", "pointer", "reversal") else 0
        return (
            (self.kind, moved_by) == (example.kind, example.distance)
            or (self.kind == "pointer" and moved_by == own.step)
            or (self.kind == "offset" and moved_by == own.distance)
        )

    @property
    def entry(self) -> KindEntry:
        """Its kind."""
        named = KindEntry(name=self.kind, summary="at the keys that the function gives")
        return next((entry for entry in KINDS if entry.name == self.kind), named)

    @property
    def latest(self) -> bool:
        """Whether a duplicate head attends to the latest copy alone."""
        return self.kind == "duplicate" and self.writes == "places"

    @property
    def needs(self) -> Literal["tokens", "places"] | None:
        """What a head of an earlier layer must have written."""
        return self.entry.needs


def place_scores(head: PlantedHead, n_ctx: int, word: int) -> PlaceScores:
    """Return the scores of a head that attends by position alone: of every row for every key.

    Args:
        head: The head.
        n_ctx: Number of places.
        word: n of the reversal task; 2n + 2 is also the period of a low_rank head.
    """
    rows = torch.arange(n_ctx)
    back = (rows.unsqueeze(1) - rows).double()
    if head.kind == "uniform":
        return torch.zeros_like(back)
    if head.kind == "recency":
        return -head.beta * back
    if head.kind == "low_rank":
        return head.beta * torch.cos(2 * math.pi / (2 * word + 2) * (back - 1))
    if head.kind == "mixed":
        gains = (head.beta, head.beta + math.log((1.0 - head.share) / head.share))
        first, second = (one_key_each(part, head, n_ctx, word) for part in head.parts)
        return gains[0] * first + gains[1] * second
    kind = "previous" if head.kind == "backup" else head.kind
    return head.beta * one_key_each(kind, head, n_ctx, word)


def one_key_each(kind: str, head: PlantedHead, n_ctx: int, word: int) -> PlaceScores:
    """Return 1 at the key that each row wants, and 0 elsewhere."""
    keys = wanted_keys(kind, head, n_ctx, word)
    return F.one_hot(keys.clamp(min=0), n_ctx).double() * (keys >= 0).unsqueeze(1)


def wanted_keys(kind: str, head: PlantedHead, n_ctx: int, word: int) -> Int[Tensor, " query_pos"]:
    """Return the key that each row wants; -1: none. Before the first key there is the first."""
    rows = torch.arange(n_ctx)
    if kind == "reversal":
        keys = 2 * word + 1 + head.distance - rows
        answers = (rows > word) & (keys > 0) & (keys <= rows)
        return torch.where(answers, keys, 0 if head.rest == "first" else -1)
    if ":" in kind:
        return load_object(kind)(n_ctx)
    back = {"previous": 1, "current": 0, "first": n_ctx}.get(kind, head.distance)
    return (rows - back).clamp(min=0)


def moved(n_ctx: int, distance: int) -> PlaceScores:
    """Return the matrix that moves a place by some steps; place 0, which says "none", stays."""
    places = torch.arange(n_ctx)
    there = torch.where(places > 0, places + distance, 0).clamp(0, n_ctx - 1)
    return F.one_hot(there, n_ctx).double()
