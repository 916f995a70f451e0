"""A command's results as one folder: every table in three formats, and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.console import is_main_process, say, say_facts
from lab.run_folders import update_derived

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NOTED = ("model", "input", "scored", "selection", "ablated", "interval")
"""Facts printed below a figure."""


def write_and_say(
    out: Path,
    tables: "Mapping[str, pd.DataFrame]",
    figures: "Mapping[str, Figure] | None" = None,
    facts: Mapping[str, Any] | None = None,
    *,
    within: str | None = None,
) -> None:
    """Write tables and figures into a new folder, all or none, and print their names.

    Args:
        out: The folder, as `check_out` returns it.
        tables: Tables by name, each written as CSV, Parquet and JSON.
        figures: Figures by name, each written as PNG, with facts in small print.
        facts: Attributes of the tables: the model, its origin, its input.
        within: Folder inside a run or a saved model, whose manifest then lists the files; None:
            `out` is a new folder.
    """
    if not is_main_process():
        return
    from probes.plots import png_bytes
    from probes.table_files import files_of, write_whole

    facts = facts or {}
    for frame in tables.values():
        frame.attrs.update(facts)
    note = note_of(facts)
    pictures = {
        f"{name}.png": png_bytes(figure, note=note) for name, figure in (figures or {}).items()
    }
    files = files_of(tables) | pictures
    if within is None:
        write_whole(out, files)
    else:
        update_derived(out, {f"{within}/{name}": data for name, data in files.items()})
        out /= within
    kinds = f"{', '.join(tables)} as CSV, Parquet and JSON"
    if pictures:
        kinds += f"; {', '.join(pictures)}"
    say()
    say_facts([("wrote", f"{len(files)} files into {out}: {kinds}")])


def note_of(facts: Mapping[str, Any]) -> str:
    """Return the note below a figure: model, input and kind of interval.

    >>> note_of({"model": "tiny: step 60", "run": "tiny", "input": "50 unseen sequences"})
    'tiny: step 60 | input: 50 unseen sequences'
    """
    said = {"model": "", "selection": "chosen on: "}
    return " | ".join(
        said.get(name, f"{name}: ") + str(facts[name]) for name in NOTED if name in facts
    )
