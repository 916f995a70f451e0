"""Arguments of commands that read a model: which model, which sequences."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from apps.commands.arguments import CheckpointStep, Device, flag
from lab.checks import require_whole
from lab.packaged import KNOWN

if TYPE_CHECKING:
    from probes.reading.prompt_files import FileKind

WHAT_THERE_IS = f"""\
WHAT is a run, a pretrained model ({", ".join(KNOWN)}),
a folder that save_pretrained or headlab wrote, or a GGUF file."""
"""The sentence of a help text about WHAT."""


@dataclass(frozen=True, kw_only=True)
class ModelForm:
    """A model, and the folder for results."""

    what: Annotated[Positional[str], flag("WHAT", "The model to read (see above).")]
    checkpoint: CheckpointStep = None
    sequences: int | None = None
    """Sequences to read the model on; each command has its own default."""
    seed: Annotated[int, flag("N", "Seed of everything that is drawn.")] = 0
    out: Annotated[
        str | None,
        flag("DIR", "Also write the results into this new folder: CSV, Parquet and JSON.", ""),
    ] = None
    device: Device = "auto"

    def check_numbers(self) -> None:
        """Raise ValueError for an invalid number, before anything is opened."""
        if self.sequences is not None:
            require_whole("--sequences", self.sequences, 1)
        require_whole("--seed", self.seed, 0)


@dataclass(frozen=True, kw_only=True)
class SubjectForm(ModelForm):
    """A model, and the sequences that it is read on."""

    text: Annotated[
        Path | None,
        flag(
            "FILE",
            "Read the model on these prompts, one per line; for a run, symbols of its task.",
            "",
        ),
    ] = None
    jsonl: Annotated[
        Path | None,
        flag(
            "FILE",
            'The same from JSON lines: a text, a list of ids, or {"text": ...}, {"ids": ...}.',
            "",
        ),
    ] = None
    ids: Annotated[
        Path | None,
        flag("FILE", "The same from lines of token ids, with spaces or commas between.", ""),
    ] = None
    repeated: bool = False
    """Read a run on repeated random tokens, as other models are read."""

    @property
    def files(self) -> "dict[FileKind, Path]":
        """The files of prompts that are given, by kind."""
        given: dict[FileKind, Path | None] = {
            "text": self.text,
            "jsonl": self.jsonl,
            "ids": self.ids,
        }
        return {kind: path for kind, path in given.items() if path is not None}
