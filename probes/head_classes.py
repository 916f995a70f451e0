"""The one list of head classes: what a head may be called, where it looks, how it is drawn.

A class is a probe of `probes.registry` that may become a label; title, formula, caveat and planted
example are the probe's. A new class is one entry here: evidence, rules, cards, plots, planted
heads, grades and docs/probes.md read it. No torch is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadClass:
    """A class that a head may be in."""

    name: str
    """The label, which is also the name of its probe."""
    short: str
    """The label in a cell with room for five letters."""
    colour: str
    """Its colour in every chart."""
    looks: Literal["place", "task", "content"]
    """place: at a position; there is no control. task: at the sources of a task's answers; the
    control has other answers. content: near the earlier copy of its token, on blocks that repeat;
    the control has blocks that do not, and is subtracted."""
    distance: int | None = None
    """place: how many tokens back the head looks, if that is the same in every row. The other
    distances are then its neighbours, and a planted head of this kind needs no code."""
    step: int | None = None
    """content: how far behind the earlier copy the key stands. The other steps are its neighbours,
    and a planted head of this kind needs no code."""
    shape: str = ""
    """module:function(head, cuts) that says what is wrong with the cells beside its own, or returns
    an empty text; for classes without distance and step. Empty: nothing is checked."""
    detector: str = ""
    """Its name in TransformerLens's `detect_head`; empty: it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherLabel:
    """A label of heads that are in no class."""

    name: str
    """The label."""
    short: str
    """The label in a cell with room for five letters."""
    colour: str
    """Its colour in every chart."""


HEAD_CLASSES: tuple[HeadClass, ...] = (
    HeadClass(
        name="previous",
        short="prev",
        colour="#009e73",
        looks="place",
        distance=1,
        detector="previous_token_head",
    ),
    HeadClass(name="current", short="curr", colour="#56b4e9", looks="place", distance=0),
    HeadClass(
        name="first",
        short="first",
        colour="#f0e442",
        looks="place",
        shape="probes.labels.rules:looks_elsewhere",
    ),
    HeadClass(
        name="sources",
        short="src",
        colour="#0072b2",
        looks="task",
        shape="probes.labels.rules:beside_sources",
    ),
    HeadClass(
        name="duplicate",
        short="dup",
        colour="#e69f00",
        looks="content",
        step=0,
        detector="duplicate_token_head",
    ),
    HeadClass(name="preceder", short="prec", colour="#cc79a7", looks="content", step=-1),
    HeadClass(
        name="induction",
        short="ind",
        colour="#d55e00",
        looks="content",
        step=1,
        detector="induction_head",
    ),
)
"""Every class, in the order of tables and legends. The colours are Okabe and Ito's."""

OTHER_LABELS: tuple[OtherLabel, ...] = (
    OtherLabel(name="uniform", short="unif", colour="#c4ccd4"),
    OtherLabel(name="broad", short="broad", colour="#e3e8ec"),
    OtherLabel(name="mixed", short="mix", colour="#7f7f7f"),
    OtherLabel(name="none", short="-", colour="#ffffff"),
)
"""The labels of heads that are in no class, all grey."""

CLASSES_BY_NAME: Mapping[str, HeadClass] = MappingProxyType({c.name: c for c in HEAD_CLASSES})
CLASSES = tuple(CLASSES_BY_NAME)
"""The names of the classes."""
CONTENT = tuple(c.name for c in HEAD_CLASSES if c.looks == "content")
"""Classes of content, which are tested against their control."""
OTHERS = tuple(label.name for label in OTHER_LABELS)
"""Labels that are no class."""
LABEL_NAMES = (*CLASSES, *OTHERS)
"""Every label, in the order of tables."""
DISTANCES: Mapping[str, int] = MappingProxyType(
    {c.name: c.distance for c in HEAD_CLASSES if c.distance is not None}
)
"""How many tokens back the classes with a fixed distance look."""
STEPS: Mapping[str, int] = MappingProxyType(
    dict(
        sorted(
            ((c.name, c.step) for c in HEAD_CLASSES if c.step is not None),
            key=lambda pair: pair[1],
        )
    )
)
"""How far behind the earlier copy each class of content looks, the smallest step first."""
LADDER = tuple(STEPS)
"""The classes of content in the order of their steps."""


def shown_label(label: str, task: str | None) -> str:
    """Return a label as people say it: a head on the sources of a reversal is a reversal head.

    On other tasks it keeps its name: heads that are no induction heads can solve an induction task.

    >>> shown_label("sources", "reversal"), shown_label("sources", "copy")
    ('reversal', 'sources')
    """
    return "reversal" if (label, task) == ("sources", "reversal") else label
