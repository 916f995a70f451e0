"""The command `headlab`: finds the command that was named, and turns errors into one line each.

A command is one module of apps/commands and one line here. Nothing of it is imported before it is
named, so that `headlab --help` is there at once.
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
"""What a shell reports of a program that a closed pipe, or Ctrl-C (130), has ended."""

TRACEBACK = "HEADLAB_TRACEBACK"
"""Set to 1, this variable of the environment shows where in the code an error came from."""


MAKES_SMALLER = {
    "train": "make the model, the length or --batch-size smaller",
    "probe": "take fewer or shorter sequences (--sequences, --text, --jsonl or --ids)",
    "ablate": "make --sequences smaller",
    "importance": "make --sequences smaller",
    "feeders": "make --sequences smaller",
    "prune": "make --sequences smaller",
}
"""What helps where a command ran out of memory, in flags that it has."""


@dataclass(frozen=True)
class CommandEntry:
    """A command by name, before its module is imported."""

    name: str
    """What a person types."""
    summary: str
    """What it does, in one line."""
    where: str
    """The function of its arguments that returns the exit code, as module:name."""


COMMANDS = (
    CommandEntry(
        "demo",
        "train a small GPT, see what its heads do, open the app: start here",
        "apps.commands.demo:run_demo",
    ),
    CommandEntry("train", "train a model into a run folder", "apps.commands.train:run_train"),
    CommandEntry(
        "probe", "score what each head of a run attends to", "apps.commands.probe:run_probe"
    ),
    CommandEntry(
        "ablate", "measure what breaks without heads of a model", "apps.commands.ablate:run_ablate"
    ),
    CommandEntry(
        "importance",
        "estimate what each head is worth, and how far that can be trusted",
        "apps.commands.importance:run_importance",
    ),
    CommandEntry(
        "feeders",
        "say which earlier heads the induction heads of a model live on",
        "apps.commands.feeders:run_feeders",
    ),
    CommandEntry(
        "prune", "remove heads of a run for good, as a new run", "apps.commands.prune:run_prune"
    ),
    CommandEntry(
        "generate", "let a run answer your own symbols", "apps.commands.generate:run_generate"
    ),
    CommandEntry(
        "card", "grade the labels of heads on heads that are known", "apps.commands.card:run_card"
    ),
    CommandEntry(
        "report",
        "write all tables, figures and one HTML page of a run",
        "apps.commands.report:run_report",
    ),
    CommandEntry("runs", "list the runs there are", "apps.commands.runs:run_runs"),
    CommandEntry("app", "open the app in a browser", "apps.commands.app:run_app"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, or 2 after an error that a person caused.

    Args:
        arguments: Without the name of the program; None: those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Threads that wait for each other must not burn the processor: on a busy machine two of them
    # were seen to take ten times as long as one. Torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = guarded(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as in `headlab runs | head -1`; what is still unwritten goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED_PIPE
    return code


def guarded(arguments: list[str]) -> int:
    """Run a command line; the one place where errors become a line and an exit code."""
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
    """Return what `headlab --help` says."""
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
            "Runs live in ./artifacts, or in the folder that HEADLAB_HOME names.",
            f"{TRACEBACK}=1 shows where in the code an error came from.",
        ]
    )


def version() -> str:
    """Return the version that is installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("headlab")
    except PackageNotFoundError:
        return "(not installed: run from its folder)"


def what_a_person_can_mend(error: Exception, command: str = "") -> str | None:
    """Return the line for an error that a person caused; None for a fault in the code."""
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
    """Return what an allocator says that it could not give, in one measure.

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
    """Tell whether torch could not allocate, which it reports as a RuntimeError."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, RuntimeError) and any(word in text for word in words)


if __name__ == "__main__":
    sys.exit(main())
