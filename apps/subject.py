"""The subject of a command: a run or a pretrained model, and sequences to read it on.

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
"""Suffixes of weight files; the code that reads such a file reports its errors."""

PAIRS = 64
"""Default number of repeated sequences that a model is probed on."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, and where it comes from."""

    model: "HookedGPT"
    title: str
    """Title of the output: which model it is."""
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
    """None: repeated sequences, which the probes generate."""
    attention_mask: "PositionMask | None"
    n: int
    """Number of sequences, also if they are generated later."""
    description: str
    task: str | None = None
    """Their task, if they are of one."""


def open_subject(name: str, *, checkpoint: int | None, device: str) -> Subject:
    """Load the model of a name, a folder or a file.

    Raises:
        ValueError: It does not exist, is damaged, or has weights that are not finite; or
            a checkpoint is given for a model that is not a run.
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
                f"--checkpoint works only with a run, got {checkpoint}; leave it out for this model"
            )
        subject = open_model(name, device)
    check_finite(subject.model, name)
    return subject


def is_run(name: str) -> bool:
    """Return whether a name is that of a run; a damaged run counts, and fails when opened.

    Raises:
        ValueError: A bare name that is no run, no known model and no file.
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
        # A damaged folder of headlab is reported as a damaged run.
        return not (is_there(path) and path.is_file())
    described = read_json(path / CONFIG)
    return "schema_version" in described and "step" not in described and "train" in described


def refuse_what_is_no_model(path: Path, name: str) -> None:
    """Raise ValueError for a file or a folder that is not a model, not even a damaged one."""
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
        except OSError:  # reported when the file is read
            return
        got = f"the file {quoted(name)}, which is not a GGUF file"
    raise ValueError(
        f"WHAT must be a run, a model's name ({', '.join(KNOWN)}), a folder with "
        f"{CONFIG} or a GGUF file, got {got}; `headlab runs` lists the runs"
    )


def is_there(path: Path) -> bool:
    """Return whether a path exists; False also for an invalid path."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def open_model(name: str, device: str) -> Subject:
    """Load a model that is not a run: saved by headlab, known by name, a folder or a GGUF file."""
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
    """Raise ValueError if a weight is not finite."""
    from lab.weights import weight_not_finite

    what = weight_not_finite(model)
    if what is not None:
        raise ValueError(
            f"weights must be finite, got nan or inf in {what} of {quoted(name)}; "
            "restore them from a copy or train again"
        )


def require_heads(subject: Subject, heads: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError if the model lacks one of these heads."""
    from lab.gates import HeadGates

    HeadGates.ablate(heads, like=subject.model)  # its error lists the model's heads


def require_some_heads(subject: Subject, name: str) -> None:
    """Raise ValueError if every head of a model was pruned."""
    if not subject.n_heads:
        raise ValueError(
            f"WHAT must be a model with heads, got {quoted(name)}, whose heads were all pruned; "
            "give the model that it was pruned from"
        )


def choose_input(
    subject: Subject,
    *,
    given: "Mapping[FileKind, Path]",
    sequences: int | None,
    repeated: bool = False,
    pairs: int = PAIRS,
) -> Input:
    """Return the sequences to read: those of a file, of a run's task, or repeated ones.

    Args:
        subject: The model.
        given: At most one file, by its kind.
        sequences: Number of generated sequences; None: the default.
        repeated: Generate repeated sequences for a run too.
        pairs: Default number of repeated sequences.

    Raises:
        ValueError: Several files, --sequences with a file, or an invalid file.
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
