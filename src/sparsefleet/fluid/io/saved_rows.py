"""Saved table rows, which can be in a file, in a folder written by servers, or in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.row_chunk import COLUMNS
from sparsefleet.errors import CorruptFileError
from sparsefleet.fluid.io.variable_file import PARTS, ArraySource, RowWidths
from sparsefleet.store import Rows, Store
from sparsefleet.store.row_streams import replace_rows, rows_per_chunk
from sparsefleet.store.table_folders import load_table_folders

__all__ = [
    "ArrayRows",
    "FileRows",
    "FolderRows",
    "MemoryArrays",
    "SavedRows",
    "load_saved_rows",
]


class SavedRows(ABC):
    """Saved rows, which are read only when `chunks` is called."""

    location: str
    """Where the rows are; used in messages."""
    optimizer: str
    """The kind of optimizer that the rows' state belongs to, or empty if the rows have no state."""
    widths: RowWidths

    @abstractmethod
    def chunks(self, *, with_state: bool = True) -> Iterator[Rows]:
        """Yield the rows, about 4 MiB at a time; rows without state have a state of width 0."""

    def dense(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        """Return the rows as one array of this shape, with zeros for missing rows."""
        made = np.zeros(shape, np.float32)
        for rows in self.chunks(with_state=False):
            beyond = rows.keys >= len(made)
            if beyond.any():
                raise RuntimeError(
                    f"variable '{name}': {self.location} has a row with id {rows.keys[beyond][0]}, "
                    f"expected ids below {len(made)}, the height of its shape {tuple(shape)}; load "
                    "it into an embedding with is_sparse=True, or increase the variable's number "
                    "of rows"
                )
            made[rows.keys.astype(np.int64)] = rows.values
        return made


class FileRows(SavedRows):
    """Rows stored as the four arrays `<name>//keys`, `//values`, `//state` and `//counters`."""

    def __init__(self, source: ArraySource, name: str) -> None:
        self.location = source.location
        self.optimizer = source.notes.get(f"{name}//optimizer", "")
        self._source = source
        self._names = [f"{name}//{part}" for part in PARTS]
        for part in self._names:
            if part not in source:
                raise CorruptFileError(f"{self.location}: expected an array '{part}', found none")
        shapes = [source.shape(part) for part in self._names]
        dimensions = [len(shape) for shape in shapes]
        if dimensions != [1, 2, 2, 2] or len({shape[0] for shape in shapes}) != 1:
            raise CorruptFileError(
                f"{self.location}: variable '{name}': expected keys [N], values [N, D], state "
                f"[N, S] and counters [N, C], found shapes {', '.join(map(str, shapes))}"
            )
        self.widths = RowWidths(*(shape[1] for shape in shapes[1:]))

    def chunks(self, *, with_state: bool = True) -> Iterator[Rows]:
        for keys, values, state, counters in self._source.slices(
            self._names, rows_per_chunk(sum(self.widths))
        ):
            yield Rows(keys, values, state if with_state else state[:, :0], counters)


class ArrayRows(SavedRows):
    """An array [N, D] in which row i has the id i."""

    optimizer = ""

    def __init__(self, source: ArraySource, name: str) -> None:
        self.location = source.location
        self.widths = RowWidths(source.shape(name)[1], 0, 0)
        self._source = source
        self._name = name

    def chunks(self, *, with_state: bool = True) -> Iterator[Rows]:
        del with_state
        begin = 0
        for (values,) in self._source.slices([self._name], rows_per_chunk(self.widths.dim)):
            count = len(values)
            keys = np.arange(begin, begin + count, dtype=np.uint64)
            begin += count
            yield Rows(
                keys,
                np.ascontiguousarray(values, np.float32),
                np.empty((count, 0), np.float32),
                np.empty((count, 0), np.uint32),
            )


class FolderRows(SavedRows):
    """Rows in a checkpoint that servers wrote."""

    def __init__(self, path: str, name: str) -> None:
        self.location = path
        self.checkpoint = Checkpoint.open(path)
        self.checkpoint.verify(deep=False)
        entry = self.checkpoint.manifest.table(name, path)
        self.optimizer = "" if entry.has_values_only else str(entry.optimizer["kind"])
        self.widths = RowWidths(entry.dim, entry.state_width, len(entry.counters))
        self._name = name

    def chunks(self, *, with_state: bool = True) -> Iterator[Rows]:
        columns = [name for name in COLUMNS if with_state or name != "state"]
        return (Rows(*chunk) for chunk in self.checkpoint.rows(self._name, columns=columns))


class MemoryArrays:
    """Named arrays in memory, used as a source of rows."""

    location = "the given arrays"

    def __init__(self, arrays: Mapping[str, NDArray[Any]], notes: Mapping[str, str]) -> None:
        self._arrays = arrays
        self.notes = notes

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def read(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def slices(self, names: Sequence[str], size: int) -> Iterator[list[NDArray[Any]]]:
        for begin in range(0, len(self._arrays[names[0]]), size):
            yield [self._arrays[name][begin : begin + size] for name in names]


def load_saved_rows(store: Store, tables: Mapping[str, tuple[SavedRows, str]]) -> None:
    """Replace the rows of tables with saved rows. No pushes may run during the call.

    tables: name -> the table's saved rows and its current kind of optimizer. Rows saved with a
        different kind keep their values but get new optimizer state. Servers read folders; this
        process reads files, chunk by chunk.
    """
    folders = {n: rows for n, (rows, _) in tables.items() if isinstance(rows, FolderRows)}
    without_state = [name for name, (rows, kind) in tables.items() if rows.optimizer != kind]
    if folders:
        load_table_folders(
            store,
            {name: rows.checkpoint for name, rows in folders.items()},
            without_state=without_state,
        )
    for name, (rows, _) in tables.items():
        if name not in folders:
            replace_rows(store, name, rows.chunks(with_state=name not in without_state))
