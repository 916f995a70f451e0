"""The address: pure functions that translate it, and the errors in it.

No Streamlit, no torch. The address is the only state of the studio; charts show it.
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
"""Keys of an address; `abl` may be repeated, the others may not."""

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
"""Keys that users may try, and the right ones."""

HOTTEST = 5.0
"""Largest temperature that the studio offers."""

LONGEST_QUOTE = 60
"""Longest part of a foreign value that a message quotes."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One valid state of the address."""

    run: Run
    step: int
    """Step of the checkpoint."""
    ablated: tuple[str, ...] = ()
    """Labels of the ablated heads, in the order of the model."""
    mode: Mode = "zero"
    """What replaces an ablated head's output."""
    gate: float = 0.0
    """Share of its own output that an ablated head keeps; 0 removes it."""
    prompt: str = ""
    """The user's prompt; empty: the run's own example."""
    temperature: float = 0.0
    """Temperature of answers; 0 takes the most probable symbol."""

    @property
    def identity(self) -> tuple[str, str]:
        """The digests of config and weights: the key of a checkpoint's cached numbers.

        Weights alone are not enough: two runs of one seed share their first checkpoint, but
        may have different tasks.
        """
        files = self.run.files
        return files[CONFIG].sha256, files[weights_name(self.step)].sha256

    @property
    def ablation(self) -> tuple[object, ...]:
        """The key of cached numbers that depend on the ablated heads too."""
        return (*self.identity, self.ablated, self.mode, self.gate)

    @property
    def how(self) -> str:
        """The mode and the gate, in a few words."""
        return f"{self.mode}, gate {self.gate:g}" if self.gate else self.mode


def weights_name(step: int) -> str:
    """Return the name of a checkpoint's weights in the run's manifest."""
    return f"{CHECKPOINTS}/{step_name(step)}/{WEIGHTS}"


def all_steps(run: Run) -> list[int]:
    """Return the steps whose checkpoint is in the run's manifest, the last one first."""
    return [step for step in reversed(run.steps) if weights_name(step) in run.files]


def all_heads(run: Run) -> list[str]:
    """Return the labels of the heads of a run's model, layer by layer."""
    model = run.config.model
    return [head_label(a, b) for a in range(model.n_layers) for b in model.heads_of(a)]


def toggle(ablated: Iterable[str], clicked: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the ablated heads after a click, which toggles each clicked head.

    >>> toggle(["L0H1"], ["L0H0"], ["L0H0", "L0H1"])
    ['L0H0', 'L0H1']
    >>> toggle(["L0H1"], ["L0H1"], ["L0H0", "L0H1"])
    []
    """
    changed = set(ablated) ^ set(clicked)
    return [head for head in known if head in changed]


def clicked_heads(event: object, known: Sequence[str]) -> list[str]:
    """Return the known heads in a chart's selection; ignore everything else."""
    selection = event.get("selection") if isinstance(event, Mapping) else None
    points = selection.get("pick") if isinstance(selection, Mapping) else None
    names = [
        point.get("name")
        for point in (points if isinstance(points, list | tuple) else ())
        if isinstance(point, Mapping)
    ]
    return [head for head in known if head in names]


def key_complaints(asked: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one line for each unknown or repeated key of the address.

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
            counts = "first" if key == "mode" else "last"  # as in the widgets
            lines.append(f"key {key!r} must be given once, got {given}; the {counts} one counts")
    return lines


def click_complaints(asked: Sequence[str]) -> list[str]:
    """Return one line if the value of `click` is neither true nor false."""
    return complaints("value of 'click'", (value.lower() for value in asked), ("true", "false"))


def place_complaints(asked: Sequence[str], last: int) -> list[str]:
    """Return one line if the answer does not have the address's place.

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
        kind: The kind of the values, for the message.
        asked: Values as the address has them.
        known: Values that exist.
        many: Whether several are allowed; else only the last one counts, as in the widgets.
    """
    values = list(dict.fromkeys(asked))
    return [
        unknown_name(kind, quoted(value), known)
        for value in (values if many else values[-1:])
        if value not in known
    ]


def number_complaints(name: str, asked: Iterable[str], highest: float) -> list[str]:
    """Return one line if the address gives an invalid number.

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
    """Return a foreign value, shortened."""
    return value if len(value) <= LONGEST_QUOTE else value[: LONGEST_QUOTE - 3] + "..."
