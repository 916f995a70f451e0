"""Tables as files, each in three forms: CSV to read, Parquet to keep, JSON for other programs."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lab.durable import atomic_write, one_clear_error
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


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write some tables into a folder, each file whole or not at all, and return the files.

    Raises:
        OSError: The place cannot be written or is full.
    """
    files = files_of(tables)
    with one_clear_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        atomic_write(folder / name, data)
    return [folder / name for name in files]
