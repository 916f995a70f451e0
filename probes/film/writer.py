"""The film of a run that is being trained, kept in its folder: no gap and no repeat, come what may.

In the folder, `film.json` says what is filmed, from the first moment on, and `film.csv` grows by a
frame every few steps. When the run is complete both are sealed, with `film.parquet` beside them. A
run that was killed and resumed ends with the bytes of one that was not. Frames are defined in
`probes.film.frames`.
"""

import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.checks import require, require_whole
from lab.config import SCHEMA_VERSION, TrainConfig
from lab.durable import atomic_write, one_clear_error, sync
from lab.hooked_gpt import HookedGPT
from lab.manifest import MANIFEST, is_file_within, read_versioned
from lab.naming import quoted
from lab.run_folders import checkpoint_steps, open_run, update_derived
from lab.training import StepRecord
from probes.film.frames import (
    FILM_SEQUENCES,
    Camera,
    camera_of,
    dynamics_table,
    find_onsets,
    onset_rows,
)
from probes.reading.observed_model import model_device
from probes.registry import get_probe, probe_names
from probes.schemas.film import DYNAMICS
from probes.tables import json_text, parquet_bytes

logger = logging.getLogger(__name__)

SETTINGS = "film.json"
FRAMES = "film.csv"
FILM = "film.parquet"
HEADER = ",".join(DYNAMICS.names) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class FilmSettings:
    """What is filmed of a run."""

    every: int
    """Steps between frames; step 0 and the last step always have one."""
    sequences: int = FILM_SEQUENCES
    """Unseen sequences that every frame reads."""
    probes: tuple[str, ...] = dataclasses.field(default_factory=probe_names)
    """Names of the probes."""

    def __post_init__(self) -> None:
        """Check every value."""
        require_whole("every", self.every, 1)
        require_whole("sequences", self.sequences, 1)
        named = isinstance(self.probes, tuple) and len(self.probes) > 0
        require(named, "probes", "names", self.probes)
        for name in self.probes:
            get_probe(name)

    def due(self, config: TrainConfig) -> list[int]:
        """Return the steps that have a frame."""
        return sorted({*range(0, config.steps, self.every), config.steps})

    def to_bytes(self, **more: Any) -> bytes:
        """Return film.json."""
        known = dataclasses.asdict(self) | {"schema_version": SCHEMA_VERSION}
        return json_text(known | more).encode()


def settings_of(run_dir: Path) -> FilmSettings | None:
    """Return what is filmed of the run in a folder; None: nothing.

    Raises:
        ValueError: Its film.json is damaged or too new.
    """
    path = run_dir / SETTINGS
    if not is_file_within(path, run_dir):
        return None
    data = read_versioned(path)
    try:
        return FilmSettings(
            every=data["every"], sequences=data["sequences"], probes=tuple(data["probes"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{SETTINGS} must say what is filmed, got {quoted(str(error))} in {str(run_dir)!r}; "
            "restore it from a copy, or remove it to continue without a film"
        ) from None


class FilmWriter:
    """Films a training: show it every record. Use it in a `with` block.

    Useful pattern:

        with FilmWriter(config, FilmSettings(every=10), run_dir) as film:
            for record in train(config, run_dir=run_dir, files=film.files):
                film.see(record)
            film.finish()

    Without a run folder the film is in memory only: `film.table()`.
    """

    def __init__(
        self, config: TrainConfig, settings: FilmSettings, run_dir: Path | None = None
    ) -> None:
        self.config, self.settings, self.run_dir = config, settings, run_dir
        self.due = settings.due(config)
        """The steps that are to have a frame, in order."""
        self.frames: dict[int, str] = {}
        """The lines of each frame by its step, in order."""
        self._facts: dict[str, Any] = {}
        self._camera: Camera | None = None
        self._began = False
        self._held = contextlib.ExitStack()

    def __enter__(self) -> "FilmWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def files(self) -> dict[str, bytes]:
        """What a new run folder has to hold from the first moment on."""
        return {SETTINGS: self.settings.to_bytes()}

    @property
    def lost(self) -> list[int]:
        """The steps so far that should have a frame but have no checkpoint to take it from."""
        last = max(self.frames, default=-1)
        return [step for step in self.due if step < last and step not in self.frames]

    def see(self, record: StepRecord) -> None:
        """Take a frame of the model if one is due after this step.

        The first record says where training begins or resumes: frames of later steps are dropped,
        because the model was taken back, and those that a killed process did not come to are taken
        from the checkpoints.
        """
        if not self._began:
            self._begin(record)
            self._began = True
        if record.step in self.due and record.step not in self.frames:
            self._take(record.step, record.model)
            if not record.final:  # the folder of the last record is sealed: see finish
                self._append(self.frames[record.step])

    def table(self) -> pd.DataFrame:
        """Return the dynamics table so far."""
        return dynamics_table(self.frames.values(), self._facts)

    def finish(self) -> None:
        """Seal the film of a complete run: film.csv, film.parquet and film.json with the onsets.

        Raises:
            ValueError: The run is not complete.
            OSError: The place cannot be written or is full; the run is still complete.
        """
        if self.run_dir is None or not self._facts:  # nothing was filmed: it was all there
            return
        table = self.table()
        onsets = onset_rows(find_onsets(table))
        files = {
            FRAMES: self._text().encode("ascii"),
            FILM: parquet_bytes(table),
            SETTINGS: self.settings.to_bytes(onsets=onsets),
        }
        update_derived(self.run_dir, files)

    def _begin(self, record: StepRecord) -> None:
        folder = self.run_dir
        sealed = folder is not None and (folder / MANIFEST).is_file()
        if folder is not None:
            # A complete run tells its last record again; a sealed film has that frame already.
            whole = sealed and FILM in open_run(folder).files
            self.frames = self._kept(folder, record.step if whole else record.step - 1)
        for step in self.due:
            if step < record.step and step not in self.frames:
                model = self._model_of(step, record.model)
                if model is not None:
                    self._take(step, model)
        self.frames = dict(sorted(self.frames.items()))
        if folder is None or sealed:
            return
        if not (folder / SETTINGS).is_file():
            atomic_write(folder / SETTINGS, self.settings.to_bytes())
        atomic_write(folder / FRAMES, self._text().encode("ascii"))
        with one_clear_error(folder / FRAMES):
            # No buffer: one that could not be written would be tried again while closing.
            file = (folder / FRAMES).open("ab", buffering=0)
            self._file = self._held.enter_context(file)

    def _text(self) -> str:
        return HEADER + "".join(self.frames.values())

    def _kept(self, run_dir: Path, start: int) -> dict[int, str]:
        """Return the whole frames of the folder up to the step that training resumes from."""
        if not is_file_within(run_dir / FRAMES, run_dir):
            return {}
        found = read_frames(run_dir / FRAMES, self.config, self.settings)
        wanted = set(self.due)
        return {step: text for step, text in found.items() if step <= start and step in wanted}

    def _model_of(self, step: int, like: HookedGPT) -> HookedGPT | None:
        """Return the model as it was after a step, if it can still be had."""
        if self.run_dir is None:
            # The initial weights are a function of the config; later ones are gone.
            return HookedGPT(self.config.model).to(model_device(like)).eval() if not step else None
        if step not in checkpoint_steps(self.run_dir):
            return None
        try:
            return HookedGPT.load(self.run_dir, device=str(model_device(like)), step=step)
        except ValueError as error:
            logger.warning("the film has no frame of step %d: %s", step, error)
            return None

    def _take(self, step: int, model: HookedGPT) -> None:
        if self._camera is None:
            self._camera = camera_of(
                self.config,
                sequences=self.settings.sequences,
                probes=self.settings.probes,
                device=model_device(model),
            )
        name = None if self.run_dir is None else self.run_dir.name
        self._facts = {
            **self._camera.provenance(model),
            "run": name,
            "seed": self.config.seed,
            "every": self.settings.every,
        }
        self.frames[step] = self._camera.frame(model, step)

    def _append(self, frame: str) -> None:
        """Add a frame to film.csv: on the disk before the next step, as no checkpoint holds it."""
        if self.run_dir is None:
            return
        with one_clear_error(self.run_dir / FRAMES):
            left = frame.encode("ascii")
            while left:
                left = left[self._file.write(left) :]
            sync(self.run_dir / FRAMES)


def read_frames(path: Path, config: TrainConfig, settings: FilmSettings) -> dict[int, str]:
    """Return the whole frames of a film.csv by step, up to the first line that is torn or foreign.

    A frame is whole if it has a line for every head and probe, in order.
    """
    heads = config.model.heads()
    expected = [(layer, head, name) for layer, head in heads for name in settings.probes]
    with path.open(newline="", encoding="ascii", errors="replace") as file:
        lines = file.readlines()
    frames: dict[int, str] = {}
    if not lines or lines[0] != HEADER or not expected:
        return frames
    for start in range(1, len(lines), len(expected)):
        some = lines[start : start + len(expected)]
        step = some[0].partition(",")[0]
        found = [line.split(",") for line in some if line.endswith("\n")]
        wanted = [[step, str(layer), str(head), name] for layer, head, name in expected]
        whole = all(len(cells) == len(DYNAMICS.names) for cells in found)
        if not whole or [cells[:4] for cells in found] != wanted or not step.isdecimal():
            break
        frames[int(step)] = "".join(some)
    return frames
