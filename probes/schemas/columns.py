"""What describes a table: its columns, one line each, and the columns that many tables share."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

Kind = Literal["whole", "whole or none", "number", "text", "flag", "flag or none"]

DTYPES: Mapping[Kind, str] = {
    "whole": "int64",
    "whole or none": "Int64",
    "number": "float64",
    "text": "str",
    "flag": "bool",
    "flag or none": "boolean",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what it holds, its name and meaning, and the unit where it has one of its own."""

    kind: Kind
    name: str
    meaning: str
    unit: str = ""


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


def schema(name: str, *columns: Column, version: int = 1) -> Schema:
    """Return the schema of a table from its columns, in order."""
    return Schema(name=name, version=version, columns=columns)


whole = partial(Column, "whole")
whole_or_none = partial(Column, "whole or none")
number = partial(Column, "number")
text = partial(Column, "text")
flag = partial(Column, "flag")
flag_or_none = partial(Column, "flag or none")


def ends(interval: str, prefix: str = "") -> tuple[Column, Column]:
    """Return the columns of the two ends of an interval, such as loss_ci_low and loss_ci_high."""
    return (
        number(f"{prefix}ci_low", f"lower end of {interval}"),
        number(f"{prefix}ci_high", f"upper end of {interval}"),
    )


LAYER = whole("layer", "block, from 0")
HEAD = whole("head", "head within its layer, from 0")
EACH_HEAD = (LAYER, HEAD)
STEP = whole("step", "optimiser steps before the measurement")
PROBE = text("probe", "name of the probe")
METRIC = text("metric", "name of what is measured")
MODE = text("mode", "what fills the gap: zero, mean or resample")
METRIC_AND_MODE = (METRIC, MODE)
BASELINE = number("baseline", "the metric of the whole model")
SCORE = number("score", "attention mass on the targets, mean over rows")
CHANCE_AND_KAPPA = (
    number("chance", "score of a head that spreads evenly"),
    number("kappa", "(score - chance) / (1 - chance)"),
)
INTERVAL = ends("the 95 % bootstrap interval")
N_SEQUENCES = whole("n_sequences", "sequences that were counted")
UNIT = text("unit", "unit of the numbers")
COUNT_AND_UNIT = (N_SEQUENCES, UNIT)


def rows_counted(rows: str) -> tuple[Column, Column, Column]:
    """Return the last columns of a table of means over rows: how many, in how many sequences."""
    return N_SEQUENCES, whole("n_rows", rows), UNIT
