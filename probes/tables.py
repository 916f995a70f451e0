"""The schemas of all tables that probes return, and how they are checked, labelled and written.

A table is a tidy DataFrame: one row an observation, columns in a fixed order with fixed types, NaN
where a number has no meaning. What it was measured on travels in `DataFrame.attrs`, which Parquet
files keep. Nothing here measures anything.
"""

import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lab.naming import unknown_name

Kind = Literal["whole", "whole or none", "number", "text", "flag"]

DTYPES: Mapping[Kind, str] = {
    "whole": "int64",
    "whole or none": "Int64",
    "number": "float64",
    "text": "str",
    "flag": "bool",
}

METRICS: Mapping[str, str] = {"loss": "nats", "token_accuracy": "share", "exact_match": "share"}
"""What an ablation is measured by, and its unit: a mean over answer tokens, over answer tokens,
over
sequences."""

CSV_FLOAT = "%.6g"
"""Floats in CSV files and in HTML reports, so that both show the very same numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column: its name, what it holds, in which unit."""

    name: str
    kind: Kind
    unit: str = ""
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """One kind of table."""

    name: str
    version: int
    """Raised whenever a definition changes, so that old and new numbers are not mixed up."""
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [column.name for column in self.columns]


LAYER = Column(name="layer", kind="whole", meaning="block, from 0")
HEAD = Column(name="head", kind="whole", meaning="head within its layer, from 0")
N_SEQUENCES = Column(name="n_sequences", kind="whole", meaning="sequences that were counted")
UNIT = Column(name="unit", kind="text", meaning="unit of the numbers")
CI_LOW = Column(name="ci_low", kind="number", meaning="lower end of the 95 % bootstrap interval")
CI_HIGH = Column(name="ci_high", kind="number", meaning="upper end of the 95 % bootstrap interval")

HEADS = Schema(
    name="heads",
    version=2,
    columns=(
        LAYER,
        HEAD,
        Column(name="probe", kind="text", meaning="name of the probe"),
        Column(
            name="score", kind="number", meaning="attention mass on the targets, mean over rows"
        ),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        CI_LOW,
        CI_HIGH,
        Column(
            name="control",
            kind="number",
            meaning="mass on the same cells of control tokens; NaN: none were given",
        ),
        N_SEQUENCES,
        Column(
            name="n_rows", kind="whole", meaning="query rows that were scored, over all sequences"
        ),
        UNIT,
    ),
)

ENTROPY = Schema(
    name="entropy",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="query_pos", kind="whole", meaning="position of the query row"),
        Column(name="entropy", kind="number", unit="nats", meaning="entropy of the row"),
        Column(name="normalised", kind="number", meaning="entropy / ln(keys seen)"),
        Column(name="effective_keys", kind="number", unit="keys", meaning="exp(entropy)"),
        Column(name="sink_mass", kind="number", meaning="probability of key 0"),
        Column(
            name="sink_free",
            kind="number",
            unit="nats",
            meaning="entropy with key 0 hidden, over the rows that are not silent",
        ),
        Column(name="sink_free_normalised", kind="number", meaning="sink_free / ln(keys seen - 1)"),
        Column(
            name="silent",
            kind="number",
            meaning="share of sequences whose row leaves less than 0.001 beside key 0",
        ),
        N_SEQUENCES,
        UNIT,
    ),
)

ABLATION = Schema(
    name="ablation",
    version=1,
    columns=(
        LAYER,
        Column(name="head", kind="whole or none", meaning="ablated head; none: the whole layer"),
        Column(name="heads", kind="text", meaning="all ablated heads, written L0H1,L0H2"),
        Column(name="metric", kind="text", meaning="loss, token_accuracy or exact_match"),
        Column(name="mode", kind="text", meaning="what fills the gap: zero or mean"),
        Column(name="baseline", kind="number", meaning="the metric of the whole model"),
        Column(name="ablated", kind="number", meaning="the metric without the heads"),
        Column(name="delta", kind="number", meaning="ablated - baseline"),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        UNIT,
    ),
)

ATTENTION = Schema(
    name="attention",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="query_pos", kind="whole", meaning="row"),
        Column(name="key_pos", kind="whole", meaning="column"),
        Column(name="query_token", kind="text", meaning="token of the row"),
        Column(name="key_token", kind="text", meaning="token of the column"),
        Column(name="probability", kind="number", meaning="attention of the row on the column"),
        Column(name="is_source", kind="flag", meaning="the column holds the row's answer"),
    ),
)

STEP = Column(name="step", kind="whole", meaning="optimiser steps before the measurement")
PROBE = Column(name="probe", kind="text", meaning="name of the probe")

DYNAMICS = Schema(
    name="dynamics",
    version=1,
    columns=(
        STEP,
        LAYER,
        HEAD,
        PROBE,
        Column(
            name="score", kind="number", meaning="attention mass on the targets, mean over rows"
        ),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        Column(
            name="std_error", kind="number", meaning="standard error of the score, over sequences"
        ),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows that were scored"),
        UNIT,
    ),
)

ONSETS = Schema(
    name="onsets",
    version=1,
    columns=(
        LAYER,
        HEAD,
        PROBE,
        Column(
            name="step", kind="whole", meaning="first step of the film at half of the rise or above"
        ),
        Column(name="step_before", kind="whole", meaning="the step of the film just before"),
        Column(name="score_before", kind="number", meaning="score there"),
        Column(name="score", kind="number", meaning="score at the onset"),
        Column(name="first", kind="number", meaning="score in the first frame"),
        Column(name="highest", kind="number", meaning="highest score of the film"),
        Column(name="last", kind="number", meaning="score in the last frame"),
        UNIT,
    ),
)

LABELS = Schema(
    name="labels",
    version=2,
    columns=(
        LAYER,
        HEAD,
        Column(name="label", kind="text", meaning="what the head does: a class, or none"),
        Column(
            name="strength", kind="text", meaning="strong or weak; empty where label is no class"
        ),
        Column(
            name="probe", kind="text", meaning="class of the numbers: the label, or the nearest"
        ),
        Column(name="score", kind="number", meaning="attention mass on that class's targets"),
        Column(
            name="control", kind="number", meaning="the same cells where the content is another"
        ),
        Column(name="effect", kind="number", meaning="what meets the cut: score, less its control"),
        Column(name="ci_low", kind="number", meaning="lower end of the effect's 95 % interval"),
        Column(name="ci_high", kind="number", meaning="upper end of the effect's 95 % interval"),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        Column(name="tested", kind="text", meaning="content class of the three values that follow"),
        Column(name="p_value", kind="number", meaning="sign flips over sequences, two-sided"),
        Column(
            name="q_value", kind="number", meaning="Benjamini-Hochberg over all heads and tests"
        ),
        Column(name="p_max_t", kind="number", meaning="Westfall-Young over all heads and tests"),
        Column(name="runner_up", kind="text", meaning="class that comes next"),
        Column(
            name="runner_up_score", kind="number", meaning="its effect; of first, on probe's rows"
        ),
        Column(name="mixture", kind="text", meaning="classes that share the head, with their mass"),
        Column(name="sink_mass", kind="number", meaning="probability of key 0, mean over rows"),
        Column(
            name="sink_value_share", kind="number", meaning="what key 0 adds to the output norm"
        ),
        Column(name="entropy_normalised", kind="number", meaning="entropy / ln(keys seen)"),
        Column(name="sink_free_normalised", kind="number", meaning="the same with key 0 hidden"),
        Column(name="silent", kind="flag", meaning="writes less than 1 % of its layer's median"),
        Column(name="redundant_with", kind="text", meaning="heads of one label that look alike"),
        Column(name="eigenvalue", kind="number", meaning="OV eigenvalue score, -1 .. 1"),
        Column(name="argmax_share", kind="number", meaning="rows that look most at the targets"),
        Column(
            name="ladder_before", kind="number", meaning="D(-1): what preceded the earlier copy"
        ),
        Column(name="ladder_same", kind="number", meaning="D(0): the earlier copy"),
        Column(name="ladder_after", kind="number", meaning="D(+1): what followed the earlier copy"),
        Column(name="stripe_early", kind="number", meaning="source of the answer one row early"),
        Column(name="stripe", kind="number", meaning="source of the answer; NaN: no task"),
        Column(name="stripe_plus_1", kind="number", meaning="source of the answer one row late"),
        Column(name="stripe_plus_2", kind="number", meaning="source of the answer two rows late"),
        Column(name="half_1", kind="number", meaning="effect over the first half of the sequences"),
        Column(name="half_2", kind="number", meaning="effect over the second half"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="rows scored, over all sequences"),
        Column(name="rows", kind="text", meaning="which rows of which sequences were scored"),
        Column(name="reason", kind="text", meaning="why this label, in a sentence"),
        UNIT,
    ),
)

EVIDENCE = Schema(
    name="evidence",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="probe", kind="text", meaning="class that is asked about"),
        Column(name="score", kind="number", meaning="attention mass on the class's targets"),
        Column(
            name="control", kind="number", meaning="the same cells where the content is another"
        ),
        Column(name="effect", kind="number", meaning="what meets the cut: score, less its control"),
        Column(name="ci_low", kind="number", meaning="lower end of the effect's 95 % interval"),
        Column(name="ci_high", kind="number", meaning="upper end of the effect's 95 % interval"),
        Column(name="chance", kind="number", meaning="score of a head that spreads evenly"),
        Column(name="kappa", kind="number", meaning="(score - chance) / (1 - chance)"),
        Column(name="sink_mass", kind="number", meaning="probability of key 0 on the class's rows"),
        Column(name="p_value", kind="number", meaning="sign flips over sequences, two-sided"),
        Column(
            name="q_value", kind="number", meaning="Benjamini-Hochberg over all heads and tests"
        ),
        Column(name="p_max_t", kind="number", meaning="Westfall-Young over all heads and tests"),
        Column(
            name="cut", kind="text", meaning="the cut that the lower end clears: strong or weak"
        ),
        Column(
            name="valid", kind="flag", meaning="cut, significance and shape hold: a possible label"
        ),
        Column(name="why_not", kind="text", meaning="the first condition that fails"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="rows scored, over all sequences"),
        UNIT,
    ),
)

PLANTED = Schema(
    name="planted",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="truth", kind="text", meaning="what the head is, and must be called"),
        Column(name="kind", kind="text", meaning="how it is built: see probes.planted.heads"),
        Column(name="variant", kind="text", meaning="what it is an example of"),
        Column(name="beta", kind="number", meaning="its gain: a target scores beta, other keys 0"),
        Column(name="distance", kind="whole", meaning="steps by which it looks aside"),
        Column(
            name="parts", kind="text", meaning="kinds that a mixed head is made of, with shares"
        ),
        Column(name="silent", kind="flag", meaning="it writes nothing"),
        Column(name="redundant_with", kind="text", meaning="heads of its layer that look alike"),
    ),
)

SPECTRUM = Schema(
    name="spectrum",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="offset", kind="whole", meaning="how far back the key is; 0: the token itself"),
        Column(name="mass", kind="number", meaning="attention at that distance, mean over rows"),
        Column(name="chance", kind="number", meaning="mass of a head that spreads evenly"),
        CI_LOW,
        CI_HIGH,
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows, the same for all distances"),
        UNIT,
    ),
)

PEAKS = Schema(
    name="peaks",
    version=1,
    columns=(
        LAYER,
        HEAD,
        PROBE,
        Column(name="argmax_share", kind="number", meaning="rows whose favourite key is a target"),
        CI_LOW,
        CI_HIGH,
        Column(name="p10", kind="number", meaning="mass on targets that 9 rows in 10 exceed"),
        Column(name="largest", kind="number", meaning="largest probability of a row, mean"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows that were scored"),
        UNIT,
    ),
)

DISTANCES = Schema(
    name="distances",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="other_layer", kind="whole", meaning="block of the head compared with"),
        Column(name="other_head", kind="whole", meaning="that head within its layer"),
        Column(
            name="distance", kind="number", unit="nats", meaning="Jensen-Shannon, mean over rows"
        ),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows that see more than one key"),
        UNIT,
    ),
)

VALUES = Schema(
    name="values",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="sink_mass", kind="number", meaning="probability of key 0, mean over rows"),
        Column(
            name="sink_value_share", kind="number", meaning="part of the output read from key 0"
        ),
        Column(name="output_norm", kind="number", meaning="length of what it writes, mean"),
        Column(name="layer_share", kind="number", meaning="output_norm / its layer's median"),
        Column(name="silent", kind="flag", meaning="layer_share below 0.01, or nothing written"),
        N_SEQUENCES,
        Column(name="n_rows", kind="whole", meaning="query rows after the first"),
        UNIT,
    ),
)

COPYING = Schema(
    name="copying",
    version=1,
    columns=(
        LAYER,
        HEAD,
        Column(name="eigenvalue", kind="number", meaning="OV eigenvalue score, -1 .. 1"),
        Column(name="copying", kind="number", meaning="C: logits raised of what it looks at"),
        Column(name="top5", kind="number", meaning="tokens that come out among the 5 likeliest"),
        Column(name="top5_chance", kind="number", meaning="5 / d_vocab"),
        N_SEQUENCES,
        Column(name="n_tokens", kind="whole", meaning="tokens of the sample"),
        UNIT,
    ),
)

SCHEMAS: tuple[Schema, ...] = (
    HEADS,
    ENTROPY,
    ABLATION,
    ATTENTION,
    DYNAMICS,
    ONSETS,
    SPECTRUM,
    PEAKS,
    DISTANCES,
    VALUES,
    COPYING,
    LABELS,
    EVIDENCE,
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


def get_schema(name: str) -> Schema:
    """Return a schema by name; an unknown one is an error with a suggestion."""
    for schema in SCHEMAS:
        if schema.name == name:
            return schema
    raise ValueError(unknown_name("table", name, [schema.name for schema in SCHEMAS]))


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
