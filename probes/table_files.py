"""Tables as files, each in three forms: CSV to read, Parquet to keep, JSON for other programs."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lab.durable import atomic_write, made_folder, one_clear_error
from lab.naming import quoted
from probes.tables import csv_text, json_rows, json_text, parquet_bytes

MOST_JSON_ROWS = 100_000
"""A table of more rows has no JSON file: nobody reads one, and it would be ten times as large."""


def files_of(tables: Mapping[str, pd.DataFrame]) -> dict[str, bytes]:
    """Return the files of some tables by name: NAME.csv, NAME.parquet and NAME.json.

    Parquet and JSON say what the table was measured on; JSON is {"provenance": ..., "rows": [...]},
    with null where a number has no meaning.
    """
    files: dict[str, bytes] = {}
    for name, frame in tables.items():
        files[f"{name}.csv"] = csv_text(frame).encode()
        files[f"{name}.parquet"] = parquet_bytes(frame)
        if len(frame) <= MOST_JSON_ROWS:
            told = {"provenance": dict(frame.attrs), "rows": json_rows(frame)}
            files[f"{name}.json"] = json_text(told).encode()
    return files


def write_whole(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files that belong together into a new or empty folder, all or none.

    Raises:
        ValueError: The folder is not empty: tables of two measurements must not mix.
        OSError: The place cannot be written or is full.
    """
    with one_clear_error(folder), made_folder(folder):
        if any(folder.iterdir()):
            raise ValueError(
                f"folder for tables must be new or empty, got {quoted(str(folder))}, which holds "
                "files; choose another"
            )
        paths = [folder / name for name in files]
        try:
            for path, data in zip(paths, files.values(), strict=True):
                atomic_write(path, data)
        except BaseException:
            for path in paths:
                path.unlink(missing_ok=True)
            raise
    return paths
