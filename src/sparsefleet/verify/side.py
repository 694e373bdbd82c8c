"""What an export is compared with: one interface, whatever it is.

Letters: N keys, D row width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.layer_trace import Layer
from sparsefleet.export.schema import Schema
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["FoundRows", "Role", "Side", "TableFacts", "Trace"]

Role = Literal["training", "online"]


class TableFacts(NamedTuple):
    """What a side says of a table; None: it does not say."""

    dim: int
    rows: int | None = None
    format: str | None = None


class FoundRows(NamedTuple):
    """Rows of keys that were asked for, or that came by."""

    keys: Keys
    """uint64[N]"""
    found: NDArray[np.bool_]
    """bool[N]: which keys have a row"""
    values: Floats
    """float32[N, D]; rows that were not found are of no account"""


class Trace(NamedTuple):
    """A prediction from the inside."""

    inputs: Arrays
    """What the model was fed, by the names of arrays in the graph."""
    layers: list[Layer]
    """In order; only lookups, where the engine cannot tell more."""


class Side:
    """One of the places where the model lives. What it cannot tell is None.

    role: "training": the export should be what this side has. "online": this side should have
        what the export is.
    """

    role: Role = "online"

    def __init__(self, name: str) -> None:
        self.name = name
        """As people wrote it."""

    def version(self) -> str | None:
        """`Manifest.digest` of the export it has loaded."""
        return None

    def updated(self) -> float | None:
        """When the newest update that is in force was made, seconds since 1970."""
        return None

    def schema(self) -> Schema | None:
        """What it takes and gives."""
        return None

    def settings(self) -> Mapping[str, str] | None:
        """Engine, precision, versions and whatever else may change a prediction."""
        return None

    def checksums(self) -> Mapping[str, str] | None:
        """SHA-256 of the files it has loaded, by their part: "graph", "rows of table 'ads'"."""
        return None

    def dense(self) -> Arrays | None:
        """Dense parameters and buffers by name."""
        return None

    def tables(self) -> Mapping[str, TableFacts] | None:
        """Its tables by name."""
        return None

    def stream(self, table: str) -> Iterator[FoundRows] | None:
        """All rows of a table, in no particular order."""
        del table
        return None

    def fetch(self, table: str, keys: Keys) -> FoundRows:
        """The rows of keys, uint64[N]. Sides that have tables have this or `stream`."""
        raise ConfigError(
            f"side '{self.name}' has tables, but no way to get {len(keys)} rows of '{table}': "
            "give it `fetch` or `stream`"
        )

    def predict(self, arrays: Arrays) -> Arrays | None:
        """Targets of inputs, by their names in the graph."""
        del arrays
        return None

    def trace(self, arrays: Arrays) -> Trace | None:
        """The same with a look inside, for a few examples."""
        del arrays
        return None

    def takes(self, example: Mapping[str, Any]) -> bool | None:
        """Whether it predicts for an example that may lack values, instead of refusing it."""
        del example
        return None

    def close(self) -> None:
        """Frees what it holds."""
