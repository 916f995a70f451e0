"""Tables: how they are built to a schema, checked, read back, and written as CSV, JSON and Parquet.

A table is a tidy DataFrame: one row an observation, columns in a fixed order with fixed types, NaN
where a number has no meaning. What it was measured on travels in `DataFrame.attrs`, which Parquet
files keep. Nothing here measures anything; what the columns mean is in `probes.schemas`.
"""

import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probes.schemas.borrowed import BORROWED_SCHEMAS
from probes.schemas.cause import CAUSE_SCHEMAS
from probes.schemas.columns import DTYPES, Schema
from probes.schemas.film import FILM_SCHEMAS
from probes.schemas.first_order import FIRST_ORDER_SCHEMAS
from probes.schemas.heads import HEAD_SCHEMAS, HEADS
from probes.schemas.labels import LABEL_SCHEMAS, LABELS

CSV_FLOAT = "%.6g"
"""Floats in CSV files and in HTML reports, so that both show the very same numbers."""

SCHEMAS: tuple[Schema, ...] = (
    *HEAD_SCHEMAS,
    *LABEL_SCHEMAS,
    *FILM_SCHEMAS,
    *CAUSE_SCHEMAS,
    *FIRST_ORDER_SCHEMAS,
    *BORROWED_SCHEMAS,
)


def make_table(
    columns: Mapping[str, Sequence[Any] | np.ndarray], schema: Schema, provenance: Mapping[str, Any]
) -> pd.DataFrame:
    """Build a table of a schema; what it was measured on goes into its attrs."""
    frame = pd.DataFrame({name: columns[name] for name in columns})
    got = frame.dtypes.astype(str).to_dict()
    types = {c.name: DTYPES[c.kind] for c in schema.columns if c.name in got}
    others = {name: dtype for name, dtype in types.items() if got[name] != dtype}
    frame = checked_table(frame.astype(others) if others else frame, schema)
    # Last, because pandas copies attrs deeply whenever a column is taken.
    frame.attrs = {
        **provenance,
        "table": schema.name,
        "definition_version": schema.version,
    }
    return frame


def rows_table(
    rows: Sequence[Mapping[str, Any]], schema: Schema, provenance: Mapping[str, Any]
) -> pd.DataFrame:
    """Build a table of a schema from its rows, which may hold more than it has columns."""
    columns = {name: [row[name] for row in rows] for name in schema.names}
    return make_table(columns, schema, provenance)


def checked_table(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return the table if its columns and types are the schema's.

    Raises:
        ValueError: A column is missing, superfluous, misplaced or of another type; or the table was
            written by a newer version.
    """
    if list(frame.columns) != schema.names:
        raise ValueError(
            f"columns of the {schema.name} table must be {', '.join(schema.names)}, "
            f"got {', '.join(map(str, frame.columns))}"
        )
    for column, found in zip(schema.columns, frame.dtypes, strict=True):
        dtype = str(found)
        if dtype != DTYPES[column.kind]:
            raise ValueError(
                f"column {column.name!r} of the {schema.name} table must be of type "
                f"{DTYPES[column.kind]}, got {dtype}"
            )
    version = frame.attrs.get("definition_version", schema.version)
    if version > schema.version:
        raise ValueError(
            f"definition_version of the {schema.name} table must be at most {schema.version}, "
            f"got {version}; it was written by a newer headlab"
        )
    return frame


def read_table(path: Path, schema: Schema) -> pd.DataFrame:
    """Read a Parquet file and check it; attrs come back with it, older versions are upgraded."""
    return checked_table(upgraded_table(pd.read_parquet(path), schema), schema)


def upgraded_table(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return a table of an older version in today's columns: new ones are NaN, names today's."""
    if schema is HEADS and frame.attrs.get("definition_version") == 1:
        attrs = {**frame.attrs, "definition_version": 2}
        frame = frame.assign(control=math.nan).reindex(columns=schema.names)
        frame.attrs = attrs
    if schema is LABELS and frame.attrs.get("definition_version") == 1:
        attrs = {**frame.attrs, "definition_version": 2}
        frame = frame.rename(columns={"copying": "eigenvalue"})
        frame.attrs = attrs
    return frame


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """Return the table as a Parquet file; attrs go into its metadata (key PANDAS_ATTRS)."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def csv_text(frame: pd.DataFrame) -> str:
    """Return the table as CSV, six significant digits a number, nothing where it is NaN."""
    return frame.to_csv(index=False, float_format=CSV_FLOAT, lineterminator="\n")


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as plain data for JSON: None where a number is missing."""
    return [dict(row) for row in plain_rows(frame)]


def plain_rows(frame: pd.DataFrame) -> Iterator[Iterator[tuple[str, Any]]]:
    """Yield each row as (column, plain Python value) pairs."""
    columns = {str(name): frame[name].tolist() for name in frame.columns}
    for index in range(len(frame)):
        yield ((name, plain(values[index])) for name, values in columns.items())


def plain(value: Any) -> Any:
    """Return None for a missing value, and any other unchanged."""
    missing = value is pd.NA or (isinstance(value, float) and math.isnan(value))
    return None if missing else value


def digest(data: bytes) -> str:
    """Return the sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def json_text(data: Mapping[str, Any]) -> str:
    """Return JSON with sorted keys and no NaN, the same text for the same data."""
    return json.dumps(data, sort_keys=True, allow_nan=False, indent=1) + "\n"
