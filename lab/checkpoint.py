"""Models and training states on disk: folders that are written atomically and checked before use.

A checkpoint folder holds config.json, model.safetensors and, while it can be resumed from,
optimizer.safetensors and training.json; its manifest.json is written last, then the folder gets
its name in one rename. `lab.run_folders` describes the folder of a run.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.config import SCHEMA_VERSION, ModelConfig, TrainConfig
from lab.durable import atomic_dir, to_json
from lab.families.token_text import adds_bos, saved_tokenizer, write_tokenizer
from lab.manifest import (
    MANIFEST,
    FileEntry,
    is_file_within,
    read_manifest,
    read_versioned,
    seal_folder,
    verified,
)
from lab.model import GPT, AnyGPT
from lab.run_folders import CHECKPOINTS, CONFIG, OPTIMIZER, WEIGHTS, Run, open_run, step_name
from lab.tasks.registry import get_task
from lab.vocab import Vocab
from lab.weights import (
    PICKLE_SUFFIXES,
    check_header,
    expected_shapes,
    read_weights,
    reject_pickle,
    weights_bytes,
)

TRAINING = "training.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running means of the gradient and of its square."""


def save_model(model: GPT, path: str | Path) -> None:
    """Write config, weights and a transformers tokenizer, if the model has one, to a new folder.

    Raises:
        ValueError: If the folder exists.
        OSError: If the place cannot be written or is full; nothing is left behind.
    """
    with atomic_dir(Path(path)) as folder:
        write_model(model, folder)


def write_model(model: GPT, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write a model into a folder: config, weights, tokenizer, manifest.

    Args:
        model: The model.
        folder: Folder for its files.
        more: Other entries of config.json.

    Raises:
        OSError: The place cannot be written or is full.
    """
    described = {"schema_version": SCHEMA_VERSION, "model": model.config.to_dict(), **(more or {})}
    if model.provenance is not None:
        described["weights"] = model.provenance
    (folder / CONFIG).write_bytes(to_json(described))
    (folder / WEIGHTS).write_bytes(weights_bytes(model.state_dict()))
    write_tokenizer(model.tokenizer, folder)
    seal_folder(folder)


def load_model(
    path: str | Path, kind: type[AnyGPT], device: str = "cpu", step: int | None = None
) -> AnyGPT:
    """Read a model from a run folder or a checkpoint folder, checking every byte of it.

    Args:
        path: A complete run, or a folder that save_model or training wrote.
        kind: The class of the model: HookedGPT, or a subclass.
        device: Where the model goes.
        step: Of a run, the checkpoint of this step; None: the trained model.

    Returns:
        The model in evaluation mode, with the tokenizer that was saved with it or, of a run, the
        vocabulary of its task.

    Raises:
        ValueError: If the folder is incomplete or damaged, its weights are a pickle, or their
            shapes, seen in the header before memory is taken, disagree with the config.
    """
    folder = Path(path)
    if folder.is_file():
        reject_pickle(folder)
        raise ValueError(
            f"model must be a run folder or a checkpoint folder, got the file {str(path)!r}; "
            "give the folder that holds it"
        )
    if step is not None:
        folder = open_run(folder, unfinished=True).checkpoint(step)
    elif not pickles(folder) and ((folder / CHECKPOINTS).is_dir() or not folder.is_dir()):
        open_run(folder)  # raises: no such run, or an incomplete one
    config, weights = checked_weights(folder)
    dtype = check_header(weights, expected_shapes(config))
    model = kind(config).to(dtype)
    model.load_state_dict(read_weights(weights))
    entries = read_manifest(folder)
    data = read_versioned(verified(folder, CONFIG, entries[CONFIG]))
    told = data.get("weights")
    model.provenance = told if isinstance(told, str) else None
    model.tokenizer = saved_tokenizer(folder, entries)
    if model.tokenizer is None:
        model.tokenizer = task_vocab(data.get("train"), config)
    else:
        model.cfg.default_prepend_bos = adds_bos(model.tokenizer)
    return model.to(device).eval()


def task_vocab(train: object, config: ModelConfig) -> Vocab | None:
    """Return the symbols of a run's task, if the run names a task of this vocabulary size."""
    if not isinstance(train, dict):
        return None
    try:
        trained = TrainConfig.from_dict(train)
        task = get_task(trained.task, length=trained.length, n_symbols=trained.n_symbols)
    except (ValueError, TypeError):  # a task that is not registered here
        return None
    return task.vocab if len(task.vocab) == config.d_vocab else None


def checked_weights(folder: Path) -> tuple[ModelConfig, Path]:
    """Return config and weights file of a folder after checking both against the manifest."""
    weights = folder / WEIGHTS
    for path in [weights] if is_file_within(weights, folder) else pickles(folder):
        reject_pickle(path)
    entries = read_manifest(folder)
    for name in (CONFIG, WEIGHTS):
        if name not in entries:
            raise ValueError(
                f"{MANIFEST} must list {name}, got {str(folder / MANIFEST)!r} without it; "
                "restore the folder from a copy"
            )
    return read_model_config(folder, entries), verified(folder, WEIGHTS, entries[WEIGHTS])


def pickles(folder: Path) -> list[Path]:
    """Return the files of a folder with a suffix of pickles."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICKLE_SUFFIXES)


def read_model_config(folder: Path, entries: dict[str, FileEntry]) -> ModelConfig:
    """Read the model's description from the config.json of a run or of a checkpoint."""
    path = verified(folder, CONFIG, entries[CONFIG])
    data = read_versioned(path)
    train = data.get("train")
    model = data.get("model", train.get("model", {}) if isinstance(train, dict) else {})
    try:
        return ModelConfig.from_dict(model)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def save_checkpoint(
    run_dir: Path,
    config: TrainConfig,
    step: int,
    model: GPT,
    optimizer: torch.optim.AdamW,
) -> Path:
    """Write the checkpoint of a step into a run folder and return its own folder.

    Raises:
        OSError: If the place cannot be written or is full; earlier checkpoints are untouched.
    """
    final = run_dir / CHECKPOINTS / step_name(step)
    if final.exists():  # it already holds this state
        return final
    described: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "step": step}
    described |= {"model": config.model.to_dict(), "train": config.to_dict()}
    state = {"schema_version": SCHEMA_VERSION, "optimizer": "AdamW", "step": step}
    with atomic_dir(final) as folder:
        (folder / CONFIG).write_bytes(to_json(described))
        (folder / WEIGHTS).write_bytes(weights_bytes(model.state_dict()))
        (folder / OPTIMIZER).write_bytes(weights_bytes(moments(model, optimizer)))
        (folder / TRAINING).write_bytes(to_json(state))
        seal_folder(folder)
    return final


def moments(model: GPT, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return AdamW's two moments of every parameter; zeros before its first step."""
    named = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for moment in MOMENTS:
            named[f"{moment}.{name}"] = state.get(moment, torch.zeros_like(parameter))
    return named


def moment_shapes(model: GPT) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor that an optimizer.safetensors of the model holds."""
    for name, parameter in model.named_parameters():
        for moment in MOMENTS:
            yield f"{moment}.{name}", tuple(parameter.shape)


def load_checkpoint(folder: Path, model: GPT, optimizer: torch.optim.AdamW) -> int:
    """Load a checkpoint into a model and its optimiser, and return its step.

    Raises:
        ValueError: If the checkpoint is damaged, has another config, or has weights only.
    """
    config, weights = checked_weights(folder)
    if config != model.config:
        raise ValueError(
            f"checkpoint must be of the model in training, got another config in {str(folder)!r}; "
            "resume with the config of the run"
        )
    entries = read_manifest(folder)
    if OPTIMIZER not in entries or TRAINING not in entries:
        raise ValueError(stripped(folder))
    saved = verified(folder, OPTIMIZER, entries[OPTIMIZER])
    step = read_versioned(verified(folder, TRAINING, entries[TRAINING])).get("step")
    if not isinstance(step, int) or folder.name != step_name(step):
        raise ValueError(
            f"{TRAINING} must name the step of its folder, got {step!r} in {str(folder)!r}; "
            "restore it from a copy or train again"
        )
    check_header(weights, expected_shapes(config))
    check_header(saved, moment_shapes(model))
    model.load_state_dict(read_weights(weights))
    if step:
        held = read_weights(saved)
        names = {parameter: name for name, parameter in model.named_parameters()}
        grouped = [p for group in optimizer.param_groups for p in group["params"]]
        state = {
            index: {"step": torch.tensor(float(step))}
            | {moment: held[f"{moment}.{names[parameter]}"] for moment in MOMENTS}
            for index, parameter in enumerate(grouped)
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    return step


def stripped(folder: Path) -> str:
    """Return the message for a checkpoint without training state."""
    return (
        f"run must have its training state to be resumed, got {str(folder)!r} with weights only "
        "(stripped); train again under another name"
    )


def can_resume(run: Run) -> bool:
    """Return whether the last checkpoint of a run has training state.

    Raises:
        ValueError: If the run has no checkpoint, or its last one is damaged.
    """
    return {OPTIMIZER, TRAINING} <= read_manifest(run.checkpoint()).keys()
