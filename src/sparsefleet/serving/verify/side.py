"""The interface to whatever an export is compared with.

In shapes, N is the number of keys, D the row width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.manifest import Schema
from sparsefleet.serving.export.torch_engine import Layer
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["FoundRows", "Role", "Side", "TableFacts", "Trace"]

Role = Literal["training", "online"]


class TableFacts(NamedTuple):
    """A side's description of a table. None means that a value is not reported."""

    dim: int
    rows: int | None = None
    format: str | None = None


class FoundRows(NamedTuple):
    """Rows that were requested by key or streamed."""

    keys: Keys
    """uint64[N]"""
    found: NDArray[np.bool_]
    """bool[N]: which keys have a row"""
    values: Floats
    """float32[N, D]; rows that were not found have arbitrary values"""


class Trace(NamedTuple):
    """The intermediate values of a prediction."""

    inputs: Arrays
    """The arrays that the model received, by graph name."""
    layers: list[Layer]
    """The layers in order; only the lookups if the engine reports no others."""


class Side:
    """A copy of the model to compare with the export. Methods return None for anything it cannot
    report.

    role: "training" means that the export should equal this side; "online" means that this side
        should equal the export.
    """

    role: Role = "online"

    def __init__(self, name: str) -> None:
        self.name = name
        """The name or URL that the user gave."""

    def version(self) -> str | None:
        """Return the `ExportManifest.digest` of the export that the side has loaded."""
        return None

    def updated(self) -> float | None:
        """Return when the newest active update was made, in seconds since 1970."""
        return None

    def schema(self) -> Schema | None:
        """Return the schema of the side's inputs and targets."""
        return None

    def settings(self) -> Mapping[str, str] | None:
        """Return the engine, precision, versions and other settings that may change predictions."""
        return None

    def checksums(self) -> Mapping[str, str] | None:
        """Return the SHA-256 of each file by part, such as "graph" or "rows of table 'ads'"."""
        return None

    def dense(self) -> Arrays | None:
        """Return dense parameters and buffers by name."""
        return None

    def tables(self) -> Mapping[str, TableFacts] | None:
        """Return the side's tables by name."""
        return None

    def stream(self, table: str) -> Iterator[FoundRows] | None:
        """Yield all rows of a table, in no particular order."""
        del table
        return None

    def fetch(self, table: str, keys: Keys) -> FoundRows:
        """Return the rows for keys, uint64[N]. Sides with tables must implement it or `stream`."""
        raise ConfigError(
            f"side '{self.name}' has tables but cannot return {len(keys)} rows of '{table}'; "
            "implement `fetch` or `stream`"
        )

    def predict(self, arrays: Arrays) -> Arrays | None:
        """Return the targets for these inputs, both by graph name."""
        del arrays
        return None

    def trace(self, arrays: Arrays) -> Trace | None:
        """Return the intermediate values of a prediction for a few examples."""
        del arrays
        return None

    def takes(self, example: Mapping[str, Any]) -> bool | None:
        """Return whether the side accepts an example, which may lack values."""
        del example
        return None

    def close(self) -> None:
        """Free all resources."""
