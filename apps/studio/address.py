"""What the address says: pure functions between its words and heads, and what is wrong with it.

No Streamlit, no torch. The address is the only state of the studio; a chart is a view of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lab.naming import head_label, unknown_name
from lab.run_folders import CHECKPOINTS, CONFIG, WEIGHTS, Run, step_name

Mode = Literal["zero", "mean", "resample"]
MODES: tuple[str, ...] = get_args(Mode)

KEYS: tuple[str, ...] = (
    "run",
    "ckpt",
    "prompt",
    "T",
    "abl",
    "mode",
    "gate",
    "metric",
    "head",
    "click",
    "place",
)
"""What an address may say; `abl` as often as there are heads, the others once."""

MEANT = {
    "step": "ckpt",
    "checkpoint": "ckpt",
    "seq": "prompt",
    "t": "T",
    "temp": "T",
    "temperature": "T",
    "heads": "abl",
    "ablate": "abl",
    "ablated": "abl",
    "ablation": "abl",
    "value": "gate",
    "kept": "gate",
    "keep": "gate",
    "probe": "metric",
    "probes": "metric",
    "layer": "head",
}
"""Keys that people try, and the ones that they mean."""

HOTTEST = 5.0
"""Largest temperature that the studio offers."""

LONGEST_QUOTE = 60
"""Characters of a foreign value that a message repeats."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One state of the address, every part of it known to exist."""

    run: Run
    step: int
    """Step of the checkpoint."""
    ablated: tuple[str, ...] = ()
    """Labels of the ablated heads, in the order of the model."""
    mode: Mode = "zero"
    """What replaces an ablated head."""
    gate: float = 0.0
    """How much of its own output an ablated head keeps; 0 removes it whole."""
    prompt: str = ""
    """What the person typed; empty: the run's own example."""
    temperature: float = 0.0
    """At which answers are drawn; 0 takes the most probable symbol."""

    @property
    def identity(self) -> tuple[str, str]:
        """What every number of this checkpoint depends on, as a key for caches.

        Weights alone are not enough: two runs of one seed share their first checkpoint and may ask
        other questions of it.
        """
        files = self.run.files
        return files[CONFIG].sha256, files[weights_name(self.step)].sha256

    @property
    def how(self) -> str:
        """What ablation means here, in a word or three."""
        return f"{self.mode}, gate {self.gate:g}" if self.gate else self.mode


def weights_name(step: int) -> str:
    """Return how a run's manifest calls the weights of a checkpoint."""
    return f"{CHECKPOINTS}/{step_name(step)}/{WEIGHTS}"


def all_steps(run: Run) -> list[int]:
    """Return the steps whose checkpoint the run's manifest vouches for, the last one first."""
    return [step for step in reversed(run.steps) if weights_name(step) in run.files]


def all_heads(run: Run) -> list[str]:
    """Return the labels of the heads that a run's model has, layer by layer."""
    model = run.config.model
    return [head_label(a, b) for a in range(model.n_layers) for b in model.heads_of(a)]


def toggle(ablated: Iterable[str], clicked: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the ablated heads after a click: each clicked head changes sides.

    >>> toggle(["L0H1"], ["L0H0"], ["L0H0", "L0H1"])
    ['L0H0', 'L0H1']
    >>> toggle(["L0H1"], ["L0H1"], ["L0H0", "L0H1"])
    []
    """
    changed = set(ablated) ^ set(clicked)
    return [head for head in known if head in changed]


def clicked_heads(event: object, known: Sequence[str]) -> list[str]:
    """Return the known heads in a chart's selection; whatever else a browser sends is dropped."""
    selection = event.get("selection") if isinstance(event, Mapping) else None
    points = selection.get("pick") if isinstance(selection, Mapping) else None
    names = [
        point.get("name")
        for point in (points if isinstance(points, list | tuple) else ())
        if isinstance(point, Mapping)
    ]
    return [head for head in known if head in names]


def key_complaints(asked: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one line for each key of the address that says nothing here, or says it twice.

    >>> key_complaints({"heads": ["L0H1"], "run": ["tiny"]})[0].partition("; ")[0]
    "unknown key 'heads'"
    """
    lines = []
    for key, values in asked.items():
        if key not in KEYS:
            line = unknown_name("key", quoted(key), KEYS)
            meant = MEANT.get(key.lower())
            if meant is not None:
                line = f"{line.partition(' (did you mean')[0]} (did you mean {meant!r}?)"
            lines.append(line)
        elif key != "abl" and len(values) > 1:
            given = ", ".join(ascii(quoted(value)) for value in values)
            counts = "first" if key == "mode" else "last"  # as the widgets have it
            lines.append(f"key {key!r} must be given once, got {given}; the {counts} one counts")
    return lines


def click_complaints(asked: Sequence[str]) -> list[str]:
    """Return one line if the address says neither true nor false of what a click does."""
    return complaints("value of 'click'", (value.lower() for value in asked), ("true", "false"))


def place_complaints(asked: Sequence[str], last: int) -> list[str]:
    """Return one line if the address gives a place that the answer does not have.

    >>> place_complaints(["9"], 4)
    ["place must be a whole number from 1 to 4, got '9'; 1 is used"]
    """
    known = [str(place) for place in range(1, last + 1)]
    wrong = [value for value in asked if value not in known]
    rule = f"place must be a whole number from 1 to {last}"
    return [f"{rule}, got {quoted(value)!a}; 1 is used" for value in wrong[-1:]]


def complaints(
    kind: str, asked: Iterable[str], known: Sequence[str], *, many: bool = False
) -> list[str]:
    """Return one line for each value of the address that does not exist.

    Args:
        kind: What the values name, for people.
        asked: Values as the address has them.
        known: Values that exist.
        many: Whether several are allowed; else only the last one counts, as the widgets have it.
    """
    values = list(dict.fromkeys(asked))
    return [
        unknown_name(kind, quoted(value), known)
        for value in (values if many else values[-1:])
        if value not in known
    ]


def number_complaints(name: str, asked: Iterable[str], highest: float) -> list[str]:
    """Return one line if the address gives no number where one belongs.

    >>> number_complaints("temperature", ["nan"], HOTTEST)
    ["temperature must be a number from 0 to 5, got 'nan'; 0 is used"]
    """
    for value in list(asked)[-1:]:
        try:
            fits = 0.0 <= float(value) <= highest
        except ValueError:
            fits = False
        if not fits:
            return [
                f"{name} must be a number from 0 to {highest:g}, got {quoted(value)!a}; 0 is used"
            ]
    return []


def quoted(value: str) -> str:
    """Return a foreign value short enough to repeat."""
    return value if len(value) <= LONGEST_QUOTE else value[: LONGEST_QUOTE - 3] + "..."
