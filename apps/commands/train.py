"""`headlab train`: a preset and its flags, or a run to resume, into a run folder."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, Suppress, arg

from apps.commands.arguments import asks_for_help, fill_in, flag, gives, listed
from apps.commands.report import report_run
from apps.commands.runs import unfinished_names
from apps.console import is_main_process, say_facts
from apps.terminal.training_lines import train_in_terminal
from lab.checks import require_whole
from lab.config import ModelConfig, TrainConfig
from lab.naming import unknown_name
from lab.presets import PRESETS, get_preset
from lab.run_folders import Run, check_run_name, open_run, run_names, runs_home
from lab.tasks.registry import TASKS

if TYPE_CHECKING:
    from probes.film.writer import FilmSettings

ABOUT = f"""Train a model into a new run folder.

  headlab train reversal
  headlab train reversal --name wide --model.d-model 128 --steps 800
  headlab train --resume wide
  headlab train reversal --name film --probe-every 10

A preset is a whole configuration; the flags change parts of it. A task without
a preset trains with the defaults of all presets. Ctrl-C saves a checkpoint, and
--resume resumes from it. With several processes:

  torchrun --nproc-per-node 2 -m apps.cli train reversal --name wide

presets:
{listed([(entry.name, entry.summary) for entry in PRESETS])}

tasks (also --task):
{listed([(entry.name, entry.summary) for entry in TASKS])}

--seed N seeds the data and the initial weights; --model.seed gives the weights
a seed of their own. --model.d-vocab and --model.n-ctx follow the task, unless
you give them.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UncheckedModel(ModelConfig):
    """The model to train."""

    kept_heads: Suppress[tuple[tuple[int, ...], ...] | None] = None
    """No flag: pruning sets it, never a person."""

    def __post_init__(self) -> None:
        """Skip the checks: the parser would wrap the error messages of a nested config."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainForm:
    """Arguments of `headlab train`."""

    preset: Annotated[
        Positional[str | None],
        flag("PRESET", "What to train, see above.", ""),
    ] = None
    name: Annotated[
        str | None,
        flag(
            "RUN", "Name of the new run.", "(default: the preset's, with a number if it is taken)"
        ),
    ] = None
    resume: Annotated[
        str | None,
        flag("RUN", "Resume this run instead.", ""),
    ] = None
    probe_every: Annotated[
        int | None,
        flag(
            "STEPS",
            "Score all heads every STEPS steps; write film.csv and film.parquet into the run.",
            "(default: a resumed run keeps its film)",
        ),
    ] = None
    report: bool = True
    """Write the report of the run after training."""
    config: Annotated[TrainConfig, arg(name="")]


def run_train(arguments: list[str]) -> int:
    """Train what the arguments say and return the exit code."""
    form, run_dir = read_form(arguments)
    resume = form.resume is not None
    film = film_settings(form.probe_every, run_dir if resume else None)
    code = train_in_terminal(form.config, run_dir, resume=resume, film=film)
    if code == 0 and is_main_process():
        name = run_dir.name
        facts = [("report", str(report_run(open_run(run_dir))))] if form.report else []
        facts += [("next", f"headlab probe {name}"), ("", f"headlab app --run {name}")]
        say_facts(facts)
    return code


def film_settings(every: int | None, resumed: Path | None) -> "FilmSettings | None":
    """Return the settings of the film: those of --probe-every, or those of a resumed run.

    Args:
        every: The value of --probe-every; None: not given.
        resumed: The folder of the run to resume; None: the run is new.

    Raises:
        ValueError: Not a number of steps, or not that of the resumed run.
    """
    if every is not None:
        require_whole("--probe-every", every, 1)
    elif resumed is None:
        return None
    from probes.film.writer import FilmSettings, settings_of

    begun = None if resumed is None else settings_of(resumed)
    if begun is None:
        return None if every is None else FilmSettings(every=every)
    if every not in (None, begun.every):
        raise ValueError(
            f"--probe-every must be {begun.every}, as in the film of the run, to resume it, "
            f"got {every}; leave it out"
        )
    return begun


def read_form(arguments: Sequence[str]) -> tuple[TrainForm, Path]:
    """Return the filled form, its config complete, and the folder of the run.

    The defaults of the flags are those of the preset or the run that is named, so the arguments
    are read twice: once for the name, then with its defaults.
    """
    blank = TrainForm(config=unchecked(PRESETS[0].make()))
    named = [a for a in arguments if a not in ("-h", "--help")]
    first = fill_in(TrainForm, named, command="train", about=ABOUT, default=blank)
    if first.resume is not None:
        run = run_to_resume(first.resume)
        base, run_dir = run.config, run.path
    elif first.preset is not None:
        base, run_dir = get_preset(first.preset), runs_home() / (first.name or "")
    elif asks_for_help(arguments):
        base, run_dir = blank.config, runs_home()
    else:
        raise ValueError(
            "preset must be named, got none; try `headlab train reversal`, "
            "or `headlab train --resume RUN` to resume a run"
        )
    default = TrainForm(config=unchecked(base))
    form = fill_in(TrainForm, arguments, command="train", about=ABOUT, default=default)
    form = dataclasses.replace(form, config=checked(form.config))
    if form.resume is not None:
        for what, value in (("preset", form.preset), ("--name", form.name)):
            if value is not None:
                raise ValueError(
                    f"{what} must be left out with --resume, got {value!r}; "
                    "the run has its own name and configuration"
                )
        return form, run_dir
    config = with_one_seed(with_room_for_task(form.config, arguments), arguments)
    if form.name is None:
        run_dir = runs_home() / free_name(form.preset or "")
    else:
        check_run_name(form.name)
    return dataclasses.replace(form, config=config), run_dir


def unchecked(config: TrainConfig) -> TrainConfig:
    """Return a config for the parser to fill in."""
    return dataclasses.replace(config, model=UncheckedModel(**dataclasses.asdict(config.model)))


def checked(config: TrainConfig) -> TrainConfig:
    """Return the config that the parser has filled in, with the checks of its model."""
    model = ModelConfig(**dataclasses.asdict(config.model))
    return dataclasses.replace(config, model=model)


def run_to_resume(name: str) -> Run:
    """Return a run, finished or not, by its name or its folder."""
    home = runs_home()
    known = run_names(home) + unfinished_names(home)
    if "/" not in name and name not in known:
        raise ValueError(unknown_name("run", name, known))
    return open_run(name, unfinished=True)


def with_one_seed(config: TrainConfig, arguments: Sequence[str]) -> TrainConfig:
    """Return the config with --seed for the weights too, unless --model.seed is given."""
    if not gives(arguments, "--seed") or gives(arguments, "--model.seed"):
        return config
    return dataclasses.replace(config, model=dataclasses.replace(config.model, seed=config.seed))


def with_room_for_task(config: TrainConfig, arguments: Sequence[str]) -> TrainConfig:
    """Return the config with d_vocab and n_ctx that fit the task, unless they are given."""
    changed = ("--task", "--length", "--n-symbols")
    if not any(gives(arguments, flag) for flag in changed):
        return config
    from lab.tasks.registry import get_task

    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    model = config.model
    if not gives(arguments, "--model.d-vocab"):
        model = dataclasses.replace(model, d_vocab=task.d_vocab)
    if not gives(arguments, "--model.n-ctx"):
        model = dataclasses.replace(model, n_ctx=max(model.n_ctx, task.n_tokens))
    return dataclasses.replace(config, model=model)


def free_name(preset: str) -> str:
    """Return the preset's name, with a number if it is taken."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ValueError(
            "--name must be given when several processes train, got none; add --name RUN"
        )
    names = (preset if n == 1 else f"{preset}-{n}" for n in range(1, 10**6))
    return next(name for name in names if not (runs_home() / name).exists())
