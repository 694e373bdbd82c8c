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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.dense_file import TensorPlace, pack_header, read_header
from sparsefleet.errors import CorruptFileError
from sparsefleet.store import Rows

__all__ = [
    "ArraySource",
    "ArrayToWrite",
    "PARTS",
    "RowWidths",
    "RowsToWrite",
    "VariableFile",
    "arrays_of_rows",
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
