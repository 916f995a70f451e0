"""What a command looks at: a run or a model that others trained, and sequences to read it on.

Torch is imported when a model is loaded, never with this module.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.opened_run import SEQUENCES, OpenedRun, open_for_measuring
from lab.durable import file_sha256, read_json
from lab.manifest import MANIFEST, is_file_within, read_manifest
from lab.naming import bare, counted, quoted, unknown_name
from lab.packaged import KNOWN, packaged_file
from lab.run_folders import CHECKPOINTS, CONFIG, WEIGHTS, run_names, runs_home

if TYPE_CHECKING:
    from lab.hooked_gpt import HookedGPT
    from lab.shapes import PositionMask, Tokens
    from lab.tasks.base import Batch
    from probes.reading.prompt_files import FileKind

MODEL_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
"""Endings of weights: what is wrong with one is said by what reads it."""

PAIRS = 64
"""Repeated sequences that a model is probed on, unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is looked into, and where it comes from."""

    model: "HookedGPT"
    title: str
    """What the numbers are about."""
    facts: Mapping[str, Any]
    """run, checkpoint_sha256, step and seed, as tables carry them; None where unknown."""
    opened: OpenedRun | None
    """The run, if it is one."""

    @property
    def n_heads(self) -> int:
        """Heads of all layers."""
        return len(self.model.config.heads())


@dataclass(frozen=True, kw_only=True)
class Input:
    """The sequences that a subject is read on."""

    sequences: "Batch | Tokens | None"
    """None: repeated sequences, which the probes make themselves."""
    attention_mask: "PositionMask | None"
    n: int
    """How many, or how many are to be made."""
    description: str
    task: str | None = None
    """The task that they are sequences of."""


def open_subject(name: str, *, checkpoint: int | None, device: str) -> Subject:
    """Load what a name, a folder or a file stands for.

    Raises:
        ValueError: There is no such thing, it is damaged, its weights are not finite, or a
            checkpoint is asked of a model that is no run.
    """
    if is_run(name):
        opened = open_for_measuring(name, checkpoint=checkpoint, device=device)
        facts = {
            "run": opened.run.name,
            "checkpoint_sha256": opened.sha256,
            "step": opened.step,
            "seed": opened.run.config.seed,
        }
        subject = Subject(model=opened.model, title=opened.title, facts=facts, opened=opened)
    else:
        if checkpoint is not None:
            raise ValueError(
                f"--checkpoint must be left out for a model that is no run, got {checkpoint}"
            )
        subject = open_model(name, device)
    check_finite(subject.model, name)
    return subject


def is_run(name: str) -> bool:
    """Tell whether a name is a run's; what only looks like one is refused as a run is.

    Raises:
        ValueError: A bare name that is neither a run's, nor a known model's, nor a file's here.
    """
    if name in KNOWN:
        return False
    path = Path(name)
    if os.sep not in name:
        home = runs_home()
        if name in run_names(home) or is_there(home / name / CONFIG):
            return True
        if name in ("", ".", "..") or not is_there(path):
            known = [*run_names(home), *KNOWN]
            raise ValueError(unknown_name("run or model", name, known))
    if not is_there(path / CONFIG):
        refuse_what_is_no_model(path, name)
        # What is left of a folder of headlab is refused in the words of a run.
        return not (is_there(path) and path.is_file())
    described = read_json(path / CONFIG)
    return "schema_version" in described and "step" not in described and "train" in described


def refuse_what_is_no_model(path: Path, name: str) -> None:
    """Raise ValueError for a file or a folder that neither is nor was a model."""
    if not is_there(path):
        return
    if path.is_dir():
        if any(is_there(path / left) for left in (MANIFEST, CHECKPOINTS, WEIGHTS)):
            return
        got = f"the folder {quoted(name)} without {CONFIG}"
    else:
        if path.suffix.lower() in MODEL_FILES or not path.is_file():
            return
        try:
            with path.open("rb") as file:
                if file.read(4) == b"GGUF":
                    return
        except OSError:  # said when the file is read
            return
        got = f"the file {quoted(name)}, which is none"
    raise ValueError(
        f"WHAT must be a run, a model's name ({', '.join(KNOWN)}), a folder with "
        f"{CONFIG} or a GGUF file, got {got}; `headlab runs` lists the runs"
    )


def is_there(path: Path) -> bool:
    """Tell whether a path leads to something; one that no file can have does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def open_model(name: str, device: str) -> Subject:
    """Load a model that is no run: saved by headlab, known by name, a folder or a GGUF file."""
    from lab.hooked_gpt import HookedGPT
    from lab.runtime import pick_device

    where, path = str(pick_device(device)), Path(name)
    digest = None
    if is_there(path / CONFIG) and is_file_within(path / MANIFEST, path):
        model = HookedGPT.load(path, device=where)
        digest = read_manifest(path)[WEIGHTS].sha256
    else:
        model = HookedGPT.from_pretrained(name, device=where)
        file = packaged_file(KNOWN[name], name) if name in KNOWN else path
        digest = file_sha256(file) if file.is_file() else None
    config = model.config
    size = f"{counted(config.n_layers, 'layer')} x {counted(config.n_heads, 'head')}"
    title = f"{bare(path.name or name)}: {size}"
    if model.provenance:
        title += f" ({model.provenance})"
    facts = {"run": None, "checkpoint_sha256": digest, "step": None, "seed": None}
    return Subject(model=model, title=title, facts=facts, opened=None)


def check_finite(model: "HookedGPT", name: str) -> None:
    """Raise ValueError if a weight is no finite number: then no score would be one."""
    from lab.weights import weight_not_finite

    what = weight_not_finite(model)
    if what is not None:
        raise ValueError(
            f"weights must be finite, got nan or inf in {what} of {quoted(name)}; "
            "restore them from a copy or train again"
        )


def require_heads(subject: Subject, heads: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError if the model has not one of these heads."""
    from lab.gates import HeadGates

    HeadGates.ablate(heads, like=subject.model)  # says which heads there are


def require_some_heads(subject: Subject, name: str) -> None:
    """Raise ValueError if every head of a model was pruned: what its heads do cannot be asked."""
    if not subject.n_heads:
        raise ValueError(
            f"WHAT must be a model with heads, got {quoted(name)}, all of whose heads are gone; "
            "look at the model that it was made of"
        )


def choose_input(
    subject: Subject,
    *,
    given: "Mapping[FileKind, Path]",
    sequences: int | None,
    repeated: bool = False,
    pairs: int = PAIRS,
) -> Input:
    """Return the sequences to look at: those of a file, of a run's task, or repeated ones.

    Args:
        subject: Whose they are.
        given: At most one file, by its kind.
        sequences: How many, of those that are generated; None: the default.
        repeated: Repeated ones, also of a run.
        pairs: How many repeated ones, unless told otherwise.

    Raises:
        ValueError: Several files, a number beside a file, or something wrong with the file.
    """
    if len(given) > 1:
        flags = " and ".join(f"--{kind}" for kind in given)
        raise ValueError(f"prompts must come from one file, got {flags}; give one of them")
    for kind, path in given.items():
        if repeated:
            raise ValueError(f"--repeated must be left out with --{kind}; give one of the two")
        if sequences is not None:
            raise ValueError(
                f"--sequences must be left out with --{kind}, got {sequences}; every line counts"
            )
        from probes.reading.prompt_files import read_prompts

        task = None if subject.opened is None else subject.opened.task
        read = read_prompts(path, kind, subject.model, task=task)
        return Input(
            sequences=read.sequences,
            attention_mask=read.attention_mask,
            n=len(read.sequences),
            description=read.description,
            task=None if task is None else task.name,
        )
    if subject.opened is not None and not repeated:
        n = SEQUENCES if sequences is None else sequences
        config = subject.opened.run.config
        return Input(
            sequences=subject.opened.unseen(n),
            attention_mask=None,
            n=n,
            description=f"{counted(n, 'unseen sequence')} of {config.task}; "
            "all begin with id 0 <bos>",
            task=config.task,
        )
    n = pairs if sequences is None else sequences
    return Input(
        sequences=None, attention_mask=None, n=n, description=counted(n, "repeated sequence")
    )
