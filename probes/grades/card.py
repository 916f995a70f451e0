"""The labels' own report card: how often they are right on heads that are known.

`measure_card` labels planted models and models with random weights, by `probes.labels` and by the
two rivals, and grades all three on the same heads. The thresholds of `probes.labels` were chosen on
the models of `TUNING_SEEDS`; the card is measured on those of `CARD_SEEDS`, which nobody tuned on.
"""

import contextlib
import itertools
import math
import multiprocessing
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd
import torch

from lab.checks import require_whole
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from lab.vocab import SPECIAL_SYMBOLS
from probes.execution import Progress
from probes.grades.grading import (
    GRADED_HEADS,
    SCORED,
    class_grades,
    confusion,
    false_positives,
    flags,
    gain_recall,
    tabled,
    variant_grades,
)
from probes.grades.rivals import Scores, bare_means, customary_label, detector_scores
from probes.head_classes import shown_label
from probes.labels.head_labels import label_study
from probes.planted.cohort import (
    CARD_SEEDS,
    GAINS,
    N_HEADS,
    N_LAYERS,
    planted_cohort,
    random_model,
)
from probes.planted.planted_models import Planted
from probes.reading.inputs import PairedInput, repeated_pair

RANDOM_HEADS = 1_000
"""Heads of models with random weights, in which there is nothing to find."""
SEQUENCES = 64
"""Sequences of each kind that every labeler sees."""
OURS, DETECTOR, MEANS = "headlab", "detect_head at 0.4", "bare means at 0.4"
RANDOM_SEED = -1
"""What replaces the seed for models with random weights."""

KNOWN = ("truth", "variant", "beta", "silent", "redundant_with", "parts")
"""Columns of the table of planted heads that go into that of graded ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Card:
    """Everything that is on the card."""

    heads: pd.DataFrame
    """Every head and every labeler's answer: see GRADED_HEADS."""
    grades: pd.DataFrame
    """Precision, recall, F1 and PR-AUC by class."""
    confusion: pd.DataFrame
    """What heads of each kind were called."""
    recall: pd.DataFrame
    """Recall by gain."""
    variants: pd.DataFrame
    """Right answers by variant, and by what the models are made of."""
    flags: pd.DataFrame
    """What our labels say beside the class: silent, redundant, mixed."""
    false_positives: pd.DataFrame
    """Labels of heads with random weights."""

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name."""
        return {
            "heads": self.heads,
            "grades": self.grades,
            "confusion": self.confusion,
            "recall": self.recall,
            "variants": self.variants,
            "flags": self.flags,
            "false_positives": self.false_positives,
        }


def measure_card(
    seeds: Iterable[int] = CARD_SEEDS,
    *,
    random_heads: int = RANDOM_HEADS,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Card:
    """Label the planted models of some seeds, and random heads, and grade the labels.

    Args:
        seeds: Seeds of `planted_cohort`.
        random_heads: Heads of models with random weights, at least.
        jobs: Processes that share the work, of one thread each; numbers differ by rounding at most.
        progress: Called with (parts done, parts in all): a part is a seed, or a random model.
    """
    require_whole("random_heads", random_heads, 1)
    require_whole("jobs", jobs, 1)
    n_random = -(-random_heads // (N_LAYERS * N_HEADS))
    parts = [*((True, seed) for seed in seeds), *((False, number) for number in range(n_random))]
    rows: list[tuple] = []
    with contextlib.ExitStack() as stack:
        answered = map(part_rows, parts)
        if jobs > 1:
            # Leaving the block, by Ctrl-C too, ends the processes at once.
            workers = multiprocessing.get_context("spawn").Pool(jobs, start_worker)
            answered = stack.enter_context(workers).imap(part_rows, parts)
        for done, of_part in enumerate(answered, start=1):
            rows += of_part
            if progress is not None:
                progress(done, len(parts))
    return graded_card(rows)


def start_worker() -> None:
    """Leave Ctrl-C to the process that asked, and the other processors to the other workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def part_rows(part: tuple[bool, int]) -> list[tuple]:
    """Return the rows of GRADED_HEADS of (True, a seed) or (False, a random model's number)."""
    planted, number = part
    if not planted:
        return random_rows(random_model(number), number)
    models = enumerate(planted_cohort(number))
    return [row for which, one in models for row in planted_rows(one, number, which)]


def graded_card(rows: list[tuple]) -> Card:
    """Return the card of some answers, rows of GRADED_HEADS."""
    heads = tabled(rows, GRADED_HEADS)
    built, drawn = heads[heads["seed"] >= 0], heads[heads["seed"] == RANDOM_SEED]
    return Card(
        heads=heads,
        grades=class_grades(built),
        confusion=confusion(built),
        recall=gain_recall(built, GAINS),
        variants=variant_grades(built),
        flags=flags(built[built["labeler"] == OURS]),
        false_positives=false_positives(drawn),
    )


def planted_rows(planted: Planted, seed: int, number: int) -> list[tuple]:
    """Return a row of GRADED_HEADS for every head of a planted model and every labeler."""
    config = planted.model.config
    described = ", ".join(
        [
            config.normalization_type or "no norm",
            "rotary" if planted.codes.rotary else "absolute",
            f"{config.kv_heads} key heads",
            "rotated" if planted.rotated else "one code an axis",
        ]
    )
    batch = planted.task.sample(SEQUENCES, seed=seed, split="test")
    answers = all_answers(planted.model, batch, seed)
    return [
        (seed, number, *place, *(row[name] for name in KNOWN), described, *answer)
        for row in planted.truth.to_dict("records")
        for place in [(row["layer"], row["head"])]
        for answer in answers[place]
    ]


def random_rows(model: HookedGPT, number: int) -> list[tuple]:
    """Return the same for a model with random weights."""
    config = model.config
    task = get_task("reversal", length=8, n_symbols=config.d_vocab - len(SPECIAL_SYMBOLS))
    answers = all_answers(model, task.sample(SEQUENCES, seed=number, split="test"), number)
    what = "random weights"
    return [
        (RANDOM_SEED, number, *place, "none", what, math.nan, False, "", "", what, *answer)
        for place, of_head in answers.items()
        for answer in of_head
    ]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one labeler says of one head."""

    label: str
    scores: Mapping[str, float]
    """The number behind each class that it knows."""
    silent: bool = False
    redundant_with: str = ""
    mixture: str = ""

    def cells(self, labeler: str) -> tuple:
        """Return its part of a row of GRADED_HEADS."""
        said = (self.label, self.silent, self.redundant_with, self.mixture)
        return (labeler, *said, *(self.scores.get(name, math.nan) for name in SCORED))


Answers = dict[tuple[int, int], Answer]
"""By (layer, head)."""


def all_answers(model: HookedGPT, batch: Batch, seed: int) -> dict[tuple[int, int], list[tuple]]:
    """Return each head's answers, one of each labeler, on the same sequences."""
    pair = repeated_pair(model, n_sequences=SEQUENCES, seed=seed)
    by = {
        OURS: our_answers(model, batch, pair, seed),
        DETECTOR: customary_answers(detector_scores(model, pair.tokens)),
        MEANS: customary_answers(bare_means(model, batch, pair)),
    }
    return {
        place: [answers[place].cells(labeler) for labeler, answers in by.items()]
        for place in by[OURS]
    }


def our_answers(model: HookedGPT, batch: Batch, pair: PairedInput, seed: int) -> Answers:
    """Return the labels of label_heads, and the effects that they rest on."""
    study = label_study(model, batch, pair=pair, seed=seed)
    effects: dict[tuple[int, int], dict[str, float]] = {}
    for row in study.evidence.to_dict("records"):
        own = effects.setdefault((row["layer"], row["head"]), {})
        own[shown_label(row["probe"], "reversal")] = row["effect"]
    return {
        (row["layer"], row["head"]): Answer(
            label=shown_label(row["label"], "reversal"),
            scores={
                **effects[row["layer"], row["head"]],
                "uniform": row["entropy_normalised"],
            },
            silent=row["silent"],
            redundant_with=row["redundant_with"],
            mixture=row["mixture"],
        )
        for row in study.labels.to_dict("records")
    }


def customary_answers(scores: Scores) -> Answers:
    """Return the labels of a rival."""
    n_layers, n_heads = next(iter(scores.values())).shape
    answers: Answers = {}
    for layer, head in itertools.product(range(n_layers), range(n_heads)):
        own = {name: float(of[layer, head]) for name, of in scores.items()}
        answers[layer, head] = Answer(label=customary_label(own), scores=own)
    return answers
