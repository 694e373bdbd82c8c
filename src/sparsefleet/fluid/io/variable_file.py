"""Read and write variables in safetensors files, chunk by chunk.

An array is stored as a tensor with the same name. The rows of a table are stored as four tensors,
`<name>//keys`, `//values`, `//state` and `//counters`, and the metadata entry `<name>//optimizer`.
Reading or writing a table needs memory for only a few chunks of rows.

In shapes, N is the number of rows, D the row width, S the number of floats of optimizer state per
row, C the number of counters per row.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.dense_file import TensorPlace, pack_header, read_header
from sparsefleet.checkpoint.row_chunk import COLUMNS
from sparsefleet.errors import CorruptFileError
from sparsefleet.store import Rows, Store
from sparsefleet.store.row_streams import replace_rows, rows_per_chunk
from sparsefleet.store.table_folders import load_table_folders

__all__ = [
    "ArrayRows",
    "ArraySource",
    "ArrayToWrite",
    "FileRows",
    "FolderRows",
    "MemoryArrays",
    "PARTS",
    "RowWidths",
    "RowsToWrite",
    "SavedRows",
    "VariableFile",
    "arrays_of_rows",
    "load_saved_rows",
    "write_variables",
]


PARTS = ("keys", "values", "state", "counters")
"""The columns of a table's rows."""

_TYPES = dict(zip(PARTS, map(np.dtype, ("uint64", "float32", "float32", "uint32")), strict=True))
_COPY_BYTES = 4 << 20
_MOST = 10**19  # more digits than any size or position has


class RowWidths(NamedTuple):
    """The widths of a table's row: D values, S floats of optimizer state, and C counters."""

    dim: int
    state: int
    counters: int


@dataclass(frozen=True, slots=True)
class ArrayToWrite:
    """An array to be written to a file."""

    name: str
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowsToWrite:
    """A table to be written to a file."""

    name: str
    widths: RowWidths
    optimizer: str
    """The kind of optimizer that the rows' state belongs to."""
    chunks: Iterable[Rows]
    """The chunks of rows, read once, when the file is written."""


def write_variables(file: IO[bytes], variables: Sequence[ArrayToWrite | RowsToWrite]) -> None:
    """Write variables from the start of a seekable file.

    The number of rows is only known once the last chunk is written. A table's widest column is
    therefore written directly to its final position, and the other columns go to temporary files
    first. The header is written last, into reserved space.
    """
    notes = {f"{v.name}//optimizer": v.optimizer for v in variables if isinstance(v, RowsToWrite)}
    head_bytes = len(pack_header(_largest_places(variables), notes))
    places: dict[str, TensorPlace] = {}
    file.seek(head_bytes)
    for variable in variables:
        at = file.tell() - head_bytes
        if isinstance(variable, RowsToWrite):
            places |= _write_rows(file, variable, at)
        else:
            array = variable.array
            places[variable.name] = TensorPlace(array.dtype, array.shape, at)
            _write(file, array)
    file.seek(0)
    file.write(pack_header(places, notes, num_bytes=head_bytes))
    file.seek(0, os.SEEK_END)


def _largest_places(variables: Sequence[ArrayToWrite | RowsToWrite]) -> dict[str, TensorPlace]:
    """Return placeholder positions with the most digits possible, to reserve space for the
    header.
    """
    found = {}
    for variable in variables:
        if isinstance(variable, RowsToWrite):
            for part, shape in _shapes(variable.widths, _MOST).items():
                found[f"{variable.name}//{part}"] = TensorPlace(_TYPES[part], shape, _MOST)
        else:
            array = variable.array
            found[variable.name] = TensorPlace(array.dtype, array.shape, _MOST)
    return found


def _shapes(widths: RowWidths, count: int) -> dict[str, tuple[int, ...]]:
    return {
        "keys": (count,),
        "values": (count, widths.dim),
        "state": (count, widths.state),
        "counters": (count, widths.counters),
    }


def _write_rows(file: IO[bytes], table: RowsToWrite, at: int) -> dict[str, TensorPlace]:
    """Write a table's columns one after another, starting at position `at` in the data section."""
    widest = "state" if table.widths.state > table.widths.dim else "values"
    order = [widest, *(part for part in PARTS if part != widest)]
    count = 0
    with ExitStack() as closing:
        outputs: dict[str, IO[bytes]] = {widest: file}
        for part in order[1:]:
            outputs[part] = closing.enter_context(_temporary_file(file))
        for rows in table.chunks:
            count += len(rows.keys)
            for part, output in outputs.items():
                _write(output, getattr(rows, part))
        for part in order[1:]:
            outputs[part].seek(0)
            shutil.copyfileobj(outputs[part], file, _COPY_BYTES)
    places = {}
    shapes = _shapes(table.widths, count)
    for part in order:
        place = TensorPlace(_TYPES[part], shapes[part], at)
        places[f"{table.name}//{part}"] = place
        at += place.num_bytes
    return places


def _temporary_file(beside: IO[bytes]) -> IO[bytes]:
    """Open a temporary file on the target's disk or, if the target is in memory, in the default
    temporary folder.
    """
    path = getattr(beside, "name", None)
    folder = os.path.dirname(path) if isinstance(path, str) else None
    return tempfile.TemporaryFile(dir=folder, buffering=_COPY_BYTES // 4)


def _write(file: IO[bytes], array: NDArray[Any]) -> None:
    little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if little_endian.nbytes:
        file.write(little_endian.reshape(-1).data.cast("B"))


class ArraySource(Protocol):
    """Named arrays that can be read in parts."""

    @property
    def location(self) -> str:
        """Return where the arrays come from; used in messages."""

    @property
    def notes(self) -> Mapping[str, str]: ...

    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> NDArray[Any]: ...

    def slices(self, names: Sequence[str], size: int) -> Iterator[list[NDArray[Any]]]:
        """Yield the next `size` rows of each array, until all rows have been read."""


class VariableFile:
    """A file of variables. Opening the file reads and checks only the header.

    Raises CorruptFileError if the file does not hold variables, or if it changes between two reads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._stamp = _stamp(file)
            try:
                self._places, self._notes = read_header(file, str(path))
            except CorruptFileError as error:
                file.seek(0)
                if file.read(1) == b"\x80":
                    raise CorruptFileError(
                        f"{error}; it looks like a pickle, which is not loaded because loading a "
                        "pickle can run code"
                    ) from error
                raise

    @property
    def location(self) -> str:
        return str(self._path)

    @property
    def notes(self) -> Mapping[str, str]:
        return self._notes

    @property
    def names(self) -> list[str]:
        """Return the names of the tensors, in the order of the file's header."""
        return list(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def read(self, name: str) -> NDArray[Any]:
        """Return a whole tensor."""
        place = self._places[name]
        with self._open() as file:
            return self._read(file, place, place.begin, place.shape)

    def slices(self, names: Sequence[str], size: int) -> Iterator[list[NDArray[Any]]]:
        places = [self._places[name] for name in names]
        count = places[0].shape[0]
        with self._open() as file:
            for begin in range(0, count, size):
                num = min(size, count - begin)
                yield [
                    self._read(
                        file,
                        place,
                        place.begin + begin * (place.num_bytes // count),
                        (num, *place.shape[1:]),
                    )
                    for place in places
                ]

    def _open(self) -> IO[bytes]:
        file = self._path.open("rb", buffering=0)
        if _stamp(file) != self._stamp:
            file.close()
            raise CorruptFileError(f"{self._path}: the file was replaced while it was being read")
        return file

    def _read(
        self, file: IO[bytes], place: TensorPlace, begin: int, shape: tuple[int, ...]
    ) -> NDArray[Any]:
        made = np.empty(shape, place.dtype.newbyteorder("<"))
        if made.nbytes:
            view = made.reshape(-1).data.cast("B")
            file.seek(begin)
            done = 0
            while done < len(view):
                read = file.readinto(view[done:])  # type: ignore[attr-defined]
                if not read:
                    raise CorruptFileError(f"{self._path}: the file ended while it was being read")
                done += read
        return made.astype(place.dtype, copy=False)


def _stamp(file: IO[bytes]) -> tuple[int, int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def arrays_of_rows(name: str, widths: RowWidths, chunks: Iterable[Rows]) -> dict[str, Any]:
    """Return all rows as arrays in memory, named as in a file."""
    columns: dict[str, list[NDArray[Any]]] = {
        part: [np.empty((0, *shape[1:]), _TYPES[part])]
        for part, shape in _shapes(widths, 0).items()
    }
    for rows in chunks:
        for part in PARTS:
            columns[part].append(getattr(rows, part))
    return {f"{name}//{part}": np.concatenate(parts) for part, parts in columns.items()}


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
