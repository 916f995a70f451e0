"""What a table is described by: columns with a kind, unit and meaning; those that many share."""

from collections.abc import Mapping
from dataclasses import dataclass
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
STEP = Column(name="step", kind="whole", meaning="optimiser steps before the measurement")
PROBE = Column(name="probe", kind="text", meaning="name of the probe")
