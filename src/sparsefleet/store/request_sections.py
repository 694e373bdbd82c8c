"""Converts the arguments of store calls to a native request, which has one section per table.

In shapes, D is the row width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import ShapeError
from sparsefleet.store.arrays import Floats, Keys, as_keys, as_output, as_parts, as_values
from sparsefleet.store.table_spec import DenseSpec, TableSpec

__all__ = ["Gradients", "PushSection", "RequestSections"]

PushSection = tuple[str, Keys | None, list[Floats], bool, bool, Floats | None]
"""A section: the table, its keys (None for a dense table), gradients in parts (empty if rows are
requested), whether keys are unique, whether to add without the optimizer, and the output for dense
values or for rows after the push.
"""

Gradients = tuple[Mapping[str, tuple[Any, Any]], Mapping[str, Any]]
"""Sparse and dense gradients of one mini-batch, as accepted by ``Store.push_many``."""


class RequestSections:
    """Checks arrays against the shapes of their tables and builds the sections of requests.

    Calls ``info`` once for each table that was not defined here. Thread-safe.
    """

    def __init__(self, info: Callable[[str], _core.TableInfo]) -> None:
        self._info = info
        self._dims: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def add_table(self, spec: TableSpec | DenseSpec) -> None:
        """Remember the shape of a table, so that the servers need not be asked for it."""
        if isinstance(spec, TableSpec):
            self._dims[spec.name] = spec.dim
        else:
            self._sizes[spec.name] = spec.size

    def dim(self, table: str) -> int:
        """Return the row width of a sparse table."""
        dim = self._dims.get(table)
        if dim is None:
            info = self._info(table)
            if info.dense:
                raise ShapeError(
                    f"table '{table}' is dense and has no rows to pull or push by key; use "
                    "pull_dense and push_dense"
                )
            dim = self._dims[table] = info.dim
        return dim

    def size(self, table: str) -> int:
        """Return the number of elements of a dense table."""
        size = self._sizes.get(table)
        if size is None:
            info = self._info(table)
            if not info.dense:
                raise ShapeError(f"table '{table}' is sparse; pull and push it by keys")
            size = self._sizes[table] = info.size
        return size

    def push(
        self,
        sparse: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any] | None,
        values: Mapping[str, Any] | None,
        *,
        unique: bool,
        add: bool,
    ) -> list[PushSection]:
        """Build the sections of one push; `values` maps dense tables to output arrays."""
        sections: list[PushSection] = []
        for table, (raw_keys, raw_gradients) in sparse.items():
            keys = as_keys(table, raw_keys)
            shape = (*keys.shape, self.dim(table))
            gradients = as_values(table, "gradients", raw_gradients, shape)
            sections.append((table, keys.reshape(-1), [gradients.reshape(-1)], unique, add, None))
        for table, raw in (dense or {}).items():
            size = self.size(table)
            parts = as_parts(table, raw, size)
            out = as_output(table, values[table], (size,)) if values and table in values else None
            sections.append((table, None, parts, True, add, out))
        return sections

    def push_batches(
        self, batches: Sequence[Gradients], values: Mapping[str, Any] | None
    ) -> list[list[PushSection]]:
        """Build the sections of several mini-batches in which no key repeats."""
        return [
            self.push(sparse, dense, values, unique=True, add=False) for sparse, dense in batches
        ]

    def push_later(
        self, sparse: Mapping[str, tuple[Any, Any]], dense: Mapping[str, Any]
    ) -> list[PushSection]:
        """Build the sections of one mini-batch without asking a server.

        Tables that were not defined here are checked when the sections are pushed.
        """
        sections: list[PushSection] = []
        for table, (raw_keys, raw_gradients) in sparse.items():
            keys = as_keys(table, raw_keys)
            dim = self._dims.get(table) or (np.shape(raw_gradients) or (0,))[-1]
            gradients = as_values(table, "gradients", raw_gradients, (*keys.shape, dim))
            sections.append((table, keys.reshape(-1), [gradients.reshape(-1)], True, False, None))
        for table, raw in dense.items():
            size = self._sizes.get(table)
            if size is None:
                size = sum(map(np.size, raw)) if isinstance(raw, list) else np.size(raw)
            sections.append((table, None, as_parts(table, raw, size), True, False, None))
        return sections

    def rows_after_push(self, rows: Mapping[str, tuple[Any, Any]] | None) -> Iterator[PushSection]:
        """Build the sections that request rows in the reply to a push.

        rows: maps tables to (keys, output float32[keys.shape + (D,)]).
        """
        for table, (raw_keys, raw_out) in (rows or {}).items():
            keys = as_keys(table, raw_keys)
            out = as_output(table, raw_out, (*keys.shape, self.dim(table)))
            if keys.size:
                yield table, keys.reshape(-1), [], False, False, out.reshape(-1)
