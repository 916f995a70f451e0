"""The data that pages show: files of a run, and cached results of lab and probes.

No number is computed here. Functions that need a model import torch; this module does not, because
the first screen is drawn from files. Cached functions have small keys (digests,
labels, texts); a View enters by its digests (`hash_funcs`), a Run with an underscore not at all.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import streamlit as st

from apps.studio.address import View
from apps.studio.effects import intact_numbers
from apps.studio.models import (
    BY_ABLATION,
    BY_CHECKPOINT,
    gates_of,
    heads_of,
    reference,
    task_of,
    unseen,
    weights,
)
from lab.durable import read_json
from lab.naming import head_label
from lab.run_folders import Run, check_run_name, list_runs, runs_home
from lab.vocab import SPECIAL_SYMBOLS

if TYPE_CHECKING:
    from apps.studio.pruning import Curve
    from lab.gates import GateTensors, HeadGates
    from lab.hooked_gpt import HookedGPT

FIRST_SCREEN = "first_screen.json"
SCREEN_VERSION = 2
PROBED_SEQUENCES = 500
"""Sequences that probes read, as in a report."""

Matrix = list[list[float]]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A model on one sequence: the maps of its heads, and its answer."""

    tokens: list[str]
    """Symbols of the whole sequence, prompt and right answer."""
    maps: dict[str, Matrix]
    """Attention of each head, by its label: a row a query, in 0 .. 1."""
    expected: list[str]
    """Symbols of the right answer."""
    answer: list[str]
    """Symbols that the model generates at the view's temperature."""


@dataclass(frozen=True, kw_only=True)
class NextTokens:
    """Probabilities of the next token at each place of the right answer."""

    expected: list[str]
    """The right symbol at each place."""
    places: list[list[dict[str, Any]]]
    """At each place, rows of token, baseline and gated probability."""


def all_runs() -> list[Run]:
    """Return the complete runs of the home, by name."""
    return listed_runs(str(runs_home().resolve()))


@st.cache_data(max_entries=4, ttl=3, show_spinner=False)
def listed_runs(home: str) -> list[Run]:
    """Return the complete runs of one folder, cached for seconds."""
    del home  # the key: list_runs looks in runs_home()
    return list_runs()


def screen(view: View) -> dict[str, Any]:
    """Return the data of the Heads page before any ablation or prompt.

    It is read from the run's report if that is of this checkpoint, and measured otherwise.
    """
    entry = view.run.files.get(FIRST_SCREEN)
    if entry is not None:
        reported = read_screen(entry.sha256, view.run)
        if reported["schema_version"] == SCREEN_VERSION and reported["step"] == view.step:
            return reported
    return measured_screen(view)


@st.cache_data(max_entries=16, show_spinner=False)
def read_screen(sha256: str, _run: Run) -> dict[str, Any]:
    """Read first_screen.json after a check against the manifest.

    Raises:
        ValueError: It is damaged or of a newer version.
    """
    data = read_json(_run.file(FIRST_SCREEN))
    version = data.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCREEN_VERSION:
        raise ValueError(
            f"schema_version of {FIRST_SCREEN} must be at most {SCREEN_VERSION}, got {version!r}; "
            f"write it again with `headlab report {_run.name}`"
        )
    return data


def reported_curve(view: View) -> "Curve | None":
    """Return the pruning curve of the run's report; None if it has none for this view.

    Raises:
        ValueError: A file is damaged.
    """
    from apps.studio.pruning import FILE, SPARE_FILE, read_curve

    run = view.run
    ours = view.step == run.last_step and view.mode == "zero"
    if not ours or not {FILE, SPARE_FILE} <= set(run.files):
        return None
    return read_curve(run.file(FILE), run.file(SPARE_FILE))


@st.cache_data(max_entries=32, show_spinner="Measuring the heads", hash_funcs=BY_CHECKPOINT)
def measured_screen(view: View) -> dict[str, Any]:
    """Measure the data that a report would have of a checkpoint."""
    from probes.attention.heads import score_heads
    from probes.attention.maps import LONGEST, sequence_maps
    from probes.labels.head_labels import label_heads
    from probes.report.first_screen import screen_data, sentence_about

    run, model = view.run, weights(view)
    task, config = task_of(run), run.config
    batch = task.sample(PROBED_SEQUENCES, seed=config.seed, split="test")
    one = batch.tokens[:1, :LONGEST]
    heads, labels = score_heads(model, batch), label_heads(model, batch)
    return screen_data(
        heads,
        labels,
        sequence_maps(model, one),
        tokens=task.vocab.decode(one[0].tolist()),
        ids=one[0].tolist(),
        facts={
            "run": run.name,
            "task": config.task,
            "step": view.step,
            "checkpoint_sha256": view.identity[1],
            "n_layers": config.model.n_layers,
            "n_heads": config.model.n_heads,
        },
        accuracy=intact_numbers(view),
        sentence=sentence_about(heads, config.task, labels),
    )


def export_pruned(view: View, name: str) -> dict[str, Any]:
    """Write the model without the ablated heads as a new run, read it back and compare.

    Returns:
        The name; the certificate; and the numbers of the gated model and of the one read back.

    Raises:
        ValueError: The name is taken or invalid, or the two models differ; nothing is written.
        OSError: The folder cannot be written, or the disk is full; nothing is written.
    """
    from probes.pruning.pruned_run import export_pruned_run

    check_run_name(name)
    out = runs_home() / name
    mean = reference(view, constant=True) if view.mode == "mean" else None
    done = export_pruned_run(
        view.run,
        heads_of(view),
        out,
        unseen(view.run),
        step=view.step,
        mode=view.mode,
        reference=mean,
    )
    listed_runs.clear()
    return {
        "name": name,
        "certificate": done.certificate.to_dict(),
        "gated": asdict(done.gated),
        "pruned": asdict(done.pruned),
    }


@st.cache_data(
    max_entries=64,
    show_spinner="Reading",
    hash_funcs={View: lambda view: (view.ablation, view.temperature)},
)
def reading(view: View, text: str) -> Reading:
    """Return the maps and the answer of a view on a text.

    Raises:
        ValueError: The task cannot read the text.
    """
    from lab.config import SampleConfig
    from lab.generation import generate
    from probes.attention.maps import sequence_maps

    task = task_of(view.run)
    symbols = task.read(text)
    prompt, whole = task.prompts(symbols), task.sequences(symbols).tokens
    model, gates = weights(view), gates_of(view)
    given = prompt.shape[1]
    drawn = SampleConfig(temperature=view.temperature, seed=0)
    answer = generate(model, prompt, drawn, whole.shape[1] - given, gates=gates)
    maps = sequence_maps(GatedModel(model, gates), whole)
    return Reading(
        tokens=task.vocab.decode(whole[0].tolist()),
        maps={head_label(*head): matrix.tolist() for head, matrix in maps.items()},
        expected=task.vocab.decode(whole[0, given:].tolist()),
        answer=task.vocab.decode(answer[0, given:].tolist()),
    )


def intact(view: View) -> View:
    """Return the view with every head in place."""
    return replace(view, ablated=(), mode="zero", gate=0.0)


def prompt_problem(run: Run, text: str) -> str | None:
    """Return why a run's task cannot read a text, in one line; None if it can."""
    if not text:
        return None  # without a task, so torch is not imported
    try:
        task_of(run).read(text)
    except ValueError as error:
        return str(error)
    return None


def maps(view: View, screen: Mapping[str, Any]) -> tuple[list[str], dict[str, Matrix], float]:
    """Return the shown sequence, the heads' maps on it, and the value that means 1."""
    if view.ablated or view.prompt:
        read = reading(view, text_on_show(view, screen))
        return read.tokens, read.maps, 1.0
    return screen["sequence"]["tokens"], screen["patterns"], 255.0


def record(
    view: View,
    columns: list[tuple[str, str, dict[str, Any]]],
    answers: dict[str, list[str]],
) -> dict[str, Any]:
    """Return a comparison with all digits, and its model and view."""
    config_sha256, weights_sha256 = view.identity
    return {
        "run": view.run.name,
        "step": view.step,
        "config_sha256": config_sha256,
        "checkpoint_sha256": weights_sha256,
        "seed": view.run.config.seed,
        "heads": list(view.ablated),
        "mode": view.mode,
        "gate": view.gate,
        "temperature": view.temperature,
        **{kind: values for _, kind, values in columns},
        "answers": answers,
    }


def text_on_show(view: View, screen: Mapping[str, Any]) -> str:
    """Return the symbols to read: the user's prompt, or the run's example."""
    return view.prompt or example_text(screen, view.run)


def example_text(screen: Mapping[str, Any], run: Run) -> str:
    """Return the symbols of the run's own example, as a user would type them."""
    letters = [t for t in screen["sequence"]["tokens"] if t not in SPECIAL_SYMBOLS]
    return "".join(letters[: task_of(run).n_given])


@st.cache_data(max_entries=64, show_spinner="Reading", hash_funcs=BY_ABLATION)
def next_tokens(view: View, text: str) -> NextTokens:
    """Return the next-token probabilities along the answer, with and without the ablation."""
    from probes.writing.next_token import next_token_table

    task = task_of(view.run)
    symbols = task.read(text)
    whole, given = task.sequences(symbols).tokens, task.prompts(symbols).shape[1]
    table = next_token_table(weights(view), whole, gates=gates_of(view), vocab=task.vocab)
    columns = ["token", "baseline", "gated"]
    by_place = dict(list(table.groupby("query_pos")[columns]))
    return NextTokens(
        expected=task.vocab.decode(whole[0, given:].tolist()),
        places=[
            [dict(zip(columns, row, strict=True)) for row in by_place[place].to_numpy().tolist()]
            for place in range(given - 1, whole.shape[1] - 1)
        ],
    )


@dataclass(frozen=True)
class GatedModel:
    """A model with its gates, for probes that only hand it tokens."""

    model: "HookedGPT"
    gates: "HeadGates | GateTensors | None"

    def forward(self, input: Any, return_type: str | None = None, *, observe: Any = None) -> Any:
        """Run the model with these gates."""
        return self.model(input, return_type=return_type, gates=self.gates, observe=observe)
