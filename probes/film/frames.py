"""A training as a film: the scores of all heads at many of its steps, and where each head sets in.

Every frame reads the same sequences and the same cells, so that what changes is the model. How a
film is kept in the folder of a run that is still trained is `probes.film.writer`'s.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float64
from torch import Tensor

from lab.checks import require_whole
from lab.config import TrainConfig
from lab.hooked_gpt import HookedGPT
from lab.run_folders import Run
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.attention.heads import target_masses
from probes.attention.targets import ProbeInput, Targets
from probes.reading.observed_model import (
    SPECIAL_IDS,
    ReadableModel,
    head_ids,
    observe_layers,
    provenance,
    slices_of,
)
from probes.reading.pattern_reads import LayerReads
from probes.registry import ProbeEntry, choose_probes, load_function
from probes.schemas.film import DYNAMICS, ONSETS
from probes.tables import checked_table, make_table, plain_rows, rows_table

FILM_SEQUENCES = 64
"""Sequences in every frame: enough for a standard error of a hundredth or two, and quick."""

LEAST_RISE = 0.2
"""A head whose chance-corrected score rises by less over the whole film has no onset."""

FILM_DIGITS = "{:.9g}"
"""Numbers of a film, in its CSV file as in its Parquet file: what a float32 can tell apart."""

MOST_CHOSEN = 2**22
"""Numbers of the cells of all probes that are chosen in whole matrices: 32 MB."""

Summary = Float64[np.ndarray, "probe column"]
CellChoice = Float64[Tensor, "batch cell probe"]


class Camera:
    """Takes frames: each probe's mean mass for every head, always on the same sequences."""

    def __init__(
        self,
        batch: Batch,
        probes: Iterable[str] | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        """Find the cells of every probe once.

        Args:
            batch: Sequences of the task that is learnt.
            probes: Names from `probes.registry`; None: all.
            device: Where the model is.
        """
        self.entries: tuple[ProbeEntry, ...] = choose_probes(probes, has_sources=True)
        whole = ProbeInput(tokens=batch.tokens, sources=batch.sources, special_ids=SPECIAL_IDS)
        functions = [load_function(entry) for entry in self.entries]
        self.tokens = batch.tokens
        self.parts: list[tuple[ProbeInput, list[Targets], CellChoice | None]] = []
        for x in slices_of(whole, torch.device(device)):
            targets = [function(x) for function in functions]
            self.parts.append((x, targets, chosen_cells(x, targets)))
        by_probe = list(zip(*(targets for _, targets, _ in self.parts), strict=True))
        self.rows = np.stack([joined([t.n_rows for t in some]) for some in by_probe])
        self.chance = np.array([joined([t.chance for t in some]).sum() for some in by_probe])

    def frame(self, model: ReadableModel, step: int) -> str:
        """Return the frame of a step: lines of CSV in the columns of the dynamics table.

        score = mean over the scored rows of all sequences of the mass on the targets; std_error is
        that of a ratio of sums over sequences; NaN (nothing in CSV) where no row is scored.
        """
        heads, masses = self.masses(model)
        score, error = mean_and_error(masses, self.rows)
        n_rows = self.rows.sum(axis=1)
        lines = []
        for column, (layer, head) in enumerate(heads):
            for i, entry in enumerate(self.entries):
                chance = self.chance[i] / n_rows[i] if n_rows[i] else math.nan
                # Chance 1 means that no other score was possible: nothing to correct.
                beyond = (score[i, column] - chance) / (1 - chance) if chance < 1.0 else math.nan
                numbers = (score[i, column], chance, beyond, error[i, column])
                counts = (int((self.rows[i] > 0).sum()), int(n_rows[i]))
                cells = [step, layer, head, entry.name, *map(written, numbers), *counts, entry.unit]
                lines.append(",".join(map(str, cells)) + "\n")
        return "".join(lines)

    def masses(
        self, model: ReadableModel
    ) -> tuple[tuple[tuple[int, int], ...], Float64[np.ndarray, "probe batch column"]]:
        """Return (layer, head) of every column, and each sequence's mass on each probe's cells."""
        heads: tuple[tuple[int, int], ...] = ()
        parts = []
        for x, targets, chosen in self.parts:
            if chosen is None:
                heads, of_probes = target_masses(model, x.tokens, targets, x.real)
                parts.append(np.stack(of_probes))
            else:
                heads, mass = matrix_masses(model, x, chosen)
                parts.append(mass)
        return heads, np.concatenate(parts, axis=1)

    def provenance(self, model: ReadableModel) -> dict[str, Any]:
        """Return what the frames were measured on."""
        return provenance(model, self.tokens)


def chosen_cells(x: ProbeInput, targets: list[Targets]) -> CellChoice | None:
    """Return 1 at the cells of each probe, where whole matrices are small enough to build them.

    Then all probes are one product with the matrix, which is several times as fast as reading
    cells, and frames have to be cheap.
    """
    batch, n_pos = x.tokens.shape
    size = batch * n_pos * n_pos * len(targets)
    if size > MOST_CHOSEN or x.tokens.device.type == "mps":  # there is no float64 on the latter
        return None
    shape = (batch, n_pos * n_pos, len(targets))
    chosen = torch.zeros(shape, dtype=torch.float64, device=x.tokens.device)
    for probe, of_probe in enumerate(targets):
        sequence, cell = (of_probe.key_pos >= 0).nonzero(as_tuple=True)
        rows, keys = of_probe.query_pos[sequence, cell], of_probe.key_pos[sequence, cell]
        chosen[sequence, rows * n_pos + keys, probe] = 1.0
    return chosen


def matrix_masses(
    model: ReadableModel, x: ProbeInput, chosen: CellChoice
) -> tuple[tuple[tuple[int, int], ...], Float64[np.ndarray, "probe batch column"]]:
    """Return what `Camera.masses` does for a few sequences, from whole matrices."""
    heads: list[tuple[int, int]] = []
    layers: list[Float64[Tensor, "batch head probe"]] = []

    def observe(layer: int, reads: LayerReads) -> None:
        heads.extend((layer, head) for head in head_ids(model, layer, reads.n_heads))
        layers.append(reads.pattern().double().flatten(2) @ chosen)

    observe_layers(model, x.tokens, observe, x.real)
    masses = rearrange(torch.cat(layers, dim=1), "batch column probe -> probe batch column")
    return tuple(heads), masses.cpu().numpy()


def joined(parts: Iterable[Tensor]) -> np.ndarray:
    """Return numbers of the slices of a batch, one after the other."""
    return np.concatenate([part.cpu().double().numpy() for part in parts])


def mean_and_error(
    masses: Float64[np.ndarray, "probe batch column"], rows: Float64[np.ndarray, "probe batch"]
) -> tuple[Summary, Summary]:
    """Return sum(mass) / sum(rows) over sequences, and its standard error.

    The error of a ratio: sqrt(n / (n - 1) * sum_b (mass_b - score * rows_b)^2) / sum(rows), over
    the n sequences that have a row; NaN for fewer than two.
    """
    total = rows.sum(axis=1)[:, None]
    n = (rows > 0).sum(axis=1)[:, None].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = masses.sum(axis=1) / total
        rest = masses - score[:, None] * rows[:, :, None]
        squares = np.where(rows[:, :, None] > 0, rest, 0.0) ** 2
        wide = np.where(n > 1, n / (n - 1), math.nan) * squares.sum(axis=1)
        return score, np.sqrt(wide) / total


def written(value: float) -> str:
    """Write a number of a film; nothing where it is NaN.

    >>> written(0.1 + 0.2), written(float("nan"))
    ('0.3', '')
    """
    return "" if math.isnan(value) else FILM_DIGITS.format(value)


def dynamics_table(frames: Iterable[str], facts: Mapping[str, Any]) -> pd.DataFrame:
    """Return the dynamics table of some frames: one row per step, layer, head and probe."""
    lines = (line.split(",") for frame in frames for line in frame.splitlines())
    cells = list(zip(*lines, strict=True)) or [()] * len(DYNAMICS.columns)
    read = {"whole": int, "number": number, "text": str}
    columns = {
        column.name: [read[column.kind](cell) for cell in of_column]
        for column, of_column in zip(DYNAMICS.columns, cells, strict=True)
    }
    return make_table(columns, DYNAMICS, facts)


def number(cell: str) -> float:
    """Read what `written` wrote."""
    return float(cell) if cell else math.nan


def camera_of(
    config: TrainConfig,
    *,
    sequences: int = FILM_SEQUENCES,
    probes: Iterable[str] | None = None,
    device: torch.device | str = "cpu",
) -> Camera:
    """Return the camera of a run: on the first of the sequences that it is evaluated on."""
    require_whole("sequences", sequences, 1)
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    batch = task.sample(sequences, seed=config.seed, split="test")
    return Camera(batch, probes, device=device)


def film_checkpoints(
    run: Run,
    *,
    sequences: int = FILM_SEQUENCES,
    probes: Iterable[str] | None = None,
    device: str = "cpu",
) -> pd.DataFrame:
    """Score all heads at every checkpoint of a run: one row per step, layer, head and probe.

    Args:
        run: A run, finished or not.
        sequences: Unseen sequences of its task, the same for all checkpoints.
        probes: Names from `probes.registry`; None: all.
        device: Where the models go.

    Raises:
        ValueError: The run has no checkpoint, one is damaged, or a probe is unknown.
    """
    run.checkpoint()  # raises if there is no checkpoint
    camera = camera_of(run.config, sequences=sequences, probes=probes, device=device)
    frames: list[str] = []
    facts: dict[str, Any] = {}
    for step in run.steps:
        model = HookedGPT.load(run.path, device=device, step=step)
        frames.append(camera.frame(model, step))
        facts = camera.provenance(model)
    return dynamics_table(frames, {**facts, "run": run.name, "seed": run.config.seed})


def find_onsets(film: pd.DataFrame, *, least_rise: float = LEAST_RISE) -> pd.DataFrame:
    """Find where heads set in: one row per layer, head and probe whose score rises.

    The onset is the first step of the film whose chance-corrected score (kappa) is at or above the
    middle between the first and the highest one, in this frame and in the next. What is seen first
    there began between that step and the one before. Heads whose kappa rises by less than
    `least_rise` have no onset, and no row; neither does a film of one frame.

    Range: training steps, between two frames of the film.

    Source: ours. Films come from `headlab train --probe-every N` and `headlab probe RUN
    --all-checkpoints`.

    Caveat: An onset is as fine as the film's steps: the table says which step of the film came
    before.

    Args:
        film: A dynamics table.
        least_rise: Smallest rise of kappa from the first frame to the highest.
    """
    checked_table(film, DYNAMICS)
    rows = []
    for _, one in film.groupby(["layer", "head", "probe"], sort=False):
        one = one.sort_values("step")
        at = onset_index(one["kappa"].to_numpy(), least_rise)
        if at is None:
            continue
        score = one["score"].tolist()
        rows.append(
            {
                "layer": one["layer"].iloc[0],
                "head": one["head"].iloc[0],
                "probe": one["probe"].iloc[0],
                "step": one["step"].iloc[at],
                "step_before": one["step"].iloc[at - 1],
                "score_before": score[at - 1],
                "score": score[at],
                "first": score[0],
                "highest": max(score),
                "last": score[-1],
                "unit": one["unit"].iloc[0],
            }
        )
    return rows_table(rows, ONSETS, {str(key): value for key, value in film.attrs.items()})


def onset_index(kappa: Float64[np.ndarray, " frame"], least_rise: float) -> int | None:
    """Return the index of the frame where a score sets in; None: it never does.

    >>> onset_index(np.array([0.0, 0.6, 0.1, 0.7, 1.0, 0.9]), 0.2)
    3
    """
    if len(kappa) < 2 or np.isnan(kappa).any():
        return None
    low, high = kappa[0], kappa.max()
    if high - low < least_rise:
        return None
    above = kappa >= (low + high) / 2
    stays = above & np.append(above[1:], True)
    # The highest frame is above; alone in the middle of a film it does not stay.
    found = np.flatnonzero(stays[1:]) + 1
    return int(found[0]) if len(found) else None


def onset_rows(onsets: pd.DataFrame) -> list[dict[str, Any]]:
    """Return onsets as plain data, earliest first."""
    rows = [dict(row) for row in plain_rows(onsets)]
    return sorted(rows, key=lambda row: (row["step"], row["layer"], row["head"]))
