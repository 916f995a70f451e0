"""The command `headlab`: runs the named command, and prints each error as one line.

A command is one module of apps/commands and one line here. The module is imported only when the
command runs, so that `headlab --help` is quick.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from apps.console import one_line, say
from lab.naming import unknown_name
from probes.number_text import in_bytes

EXIT_ERROR = 2
EXIT_INTERRUPT = 130
EXIT_CLOSED_PIPE = 141
"""A shell's exit codes for a program that a closed pipe, or Ctrl-C (130), has ended."""

TRACEBACK = "HEADLAB_TRACEBACK"
"""Environment variable; 1 shows the traceback of an error."""


MAKES_SMALLER = {
    "train": "make the model, the length or --batch-size smaller",
    "probe": "take fewer or shorter sequences (--sequences, --text, --jsonl or --ids)",
    **dict.fromkeys(("ablate", "importance", "feeders", "prune"), "make --sequences smaller"),
}
"""The remedy when a command runs out of memory, in terms of its flags."""


@dataclass(frozen=True)
class CommandEntry:
    """A command by name, before its module is imported."""

    name: str
    """What a person types."""
    summary: str
    """What it does, in one line."""

    @property
    def where(self) -> str:
        """The function of its arguments that returns the exit code, as module:name."""
        return f"apps.commands.{self.name}:run_{self.name}"


COMMANDS = (
    CommandEntry("demo", "train a small GPT, see what its heads do, open the app: start here"),
    CommandEntry("train", "train a model into a run folder"),
    CommandEntry("probe", "score what each head of a run attends to"),
    CommandEntry("ablate", "ablate heads of a model and measure what breaks"),
    CommandEntry("importance", "estimate the importance of each head, and check the estimate"),
    CommandEntry("feeders", "find the earlier heads that induction heads depend on"),
    CommandEntry("prune", "remove heads of a model permanently"),
    CommandEntry("generate", "show a run's answer to your own symbols"),
    CommandEntry("card", "grade the head labels on planted heads"),
    CommandEntry("report", "write all tables, figures and one HTML page of a run"),
    CommandEntry("runs", "list the runs"),
    CommandEntry("app", "open the app in a browser"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, or 2 after a user's mistake.

    Args:
        arguments: Without the name of the program; None: those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Waiting threads must not spin: on a busy machine two of them took ten times as long as one.
    # Torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = guarded(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as in `headlab runs | head -1`; discard unwritten output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED_PIPE
    return code


def guarded(arguments: list[str]) -> int:
    """Run a command line; turn errors into one line and an exit code."""
    try:
        return dispatch(arguments)
    except SystemExit as stop:  # the parser, after --help or a wrong flag
        return stop.code if isinstance(stop.code, int) else EXIT_ERROR
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"headlab: stopped{f'; {stop}' if str(stop) else ''}\n")
        return EXIT_INTERRUPT
    except BrokenPipeError:
        raise
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        message = what_a_person_can_mend(error, arguments[0])
        if message is None or os.environ.get(TRACEBACK) == "1":
            raise
        sys.stdout.flush()
        sys.stderr.write(f"headlab: error: {message}\n")
        return EXIT_ERROR


def dispatch(arguments: list[str]) -> int:
    """Run the command that the arguments name."""
    if not arguments or arguments[0] in ("-h", "--help"):
        say(overview())
        return 0
    name, *rest = arguments
    if name == "--version":
        say(f"headlab {version()}")
        return 0
    where = {entry.name: entry.where for entry in COMMANDS}
    if name not in where:
        raise ValueError(unknown_name("command", name, where))
    module, _, function = where[name].partition(":")
    return getattr(import_module(module), function)(rest)


def overview() -> str:
    """Return the text of `headlab --help`."""
    width = max(len(entry.name) for entry in COMMANDS)
    lines = [f"  {entry.name:<{width}}  {entry.summary}" for entry in COMMANDS]
    return "\n".join(
        [
            "usage: headlab COMMAND ...",
            "",
            "Train a small GPT, see which attention heads do what, prove it by ablation.",
            "",
            "commands:",
            *lines,
            "",
            "`headlab COMMAND --help` explains a command. `headlab --version` names the version.",
            "Runs are in ./artifacts, or in the folder that HEADLAB_HOME names.",
            f"{TRACEBACK}=1 shows the traceback of an error.",
        ]
    )


def version() -> str:
    """Return the installed version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("headlab")
    except PackageNotFoundError:
        return "(not installed: run from its folder)"


def what_a_person_can_mend(error: Exception, command: str = "") -> str | None:
    """Return the message for a user's mistake; None for a fault in the code."""
    text = one_line(str(error))
    if isinstance(error, MemoryError) or is_out_of_memory(text, error):
        smaller = MAKES_SMALLER.get(command, "take a smaller model")
        return f"model and batch must fit into memory, got {wanted_memory(text)}; {smaller}"
    if isinstance(error, RuntimeError):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        place = "" if error.filename is None else f" at {one_line(repr(str(error.filename)))}"
        return f"files must be readable and writable, got {error.strerror!r}{place}"
    return text or type(error).__name__


def wanted_memory(text: str) -> str:
    """Return the amount of memory that an allocator could not provide.

    >>> wanted_memory("DefaultCPUAllocator: you tried to allocate 41339060224 bytes. Error code 12")
    'too little for 41.3 GB at once'
    >>> wanted_memory("")
    'too little'
    """
    found = re.search(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|[kKMG]i?B)", text)
    if found is None:
        return "too little"
    unit = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}[found[2][0].lower()]
    return f"too little for {in_bytes(int(float(found[1]) * unit))} at once"


def is_out_of_memory(text: str, error: Exception) -> bool:
    """Return whether a RuntimeError of torch reports a failed allocation."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, RuntimeError) and any(word in text for word in words)


if __name__ == "__main__":
    sys.exit(main())
