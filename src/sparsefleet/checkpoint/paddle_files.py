"""Read files written by PaddlePaddle 1.x's `fluid.io.save_persistables`.

Format of a variable: uint32 0; uint64 number of sequence levels, each uint64 size and offsets;
uint32 0; int32 length and a TensorDesc message (type, dims); the data. Little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.folder import Folder, open_folder
from sparsefleet.errors import CheckpointMissingError, ConfigError, CorruptFileError

__all__ = ["TYPE_NAMES", "read_paddle_persistables"]

_PROGRAM = "__model__"
TYPE_NAMES = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
}
"""NumPy's name for each VarType.Type in framework.proto."""
_LOD_TENSOR = 7
_MAX_DESCRIPTION_BYTES = 1 << 20
_MAX_LEVELS = 1 << 10


def read_paddle_persistables(
    path: str,
    *,
    filename: str | None = None,
    names: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Read the variables of a persistables directory, by name.

    Without `filename`, each file holds the variable of the same name, and `names` selects the
    variables to read. With `filename`, that file holds all variables in the order of their names,
    but not the names themselves, which come from `names` or from the program (`__model__`) next to
    it.
    """
    folder = open_folder(path, storage_options)
    if filename is not None:
        return _read_combined(folder, filename, names)
    found = sorted(file.path for file in folder.files() if file.path != _PROGRAM)
    if not found:
        raise CheckpointMissingError(f"{folder.root}: expected variable files, found none")
    for name in names or ():
        if name not in found:
            raise CheckpointMissingError(f"{folder.locate(name)}: file not found")
    variables = {}
    for name in found if names is None else names:
        bytes_left = _Bytes(folder.read(name), folder.locate(name))
        variables[name] = _read_tensor(bytes_left)
        bytes_left.expect_end()
    return variables


def _read_combined(
    folder: Folder, filename: str, names: Sequence[str] | None
) -> dict[str, NDArray[Any]]:
    if names is None:
        if folder.size(_PROGRAM) is None:
            raise ConfigError(
                f"{folder.locate(filename)} contains variables without their names, and there is "
                f"no {_PROGRAM} that lists them; pass `names`"
            )
        names = _persistable_names(_Bytes(folder.read(_PROGRAM), folder.locate(_PROGRAM)))
    bytes_left = _Bytes(folder.read(filename), folder.locate(filename))
    variables = {name: _read_tensor(bytes_left) for name in sorted(names)}
    bytes_left.expect_end()
    return variables


class _Bytes:
    """Reads a file's bytes in order, from the beginning."""

    def __init__(self, data: bytes, location: str) -> None:
        self._left = memoryview(data)
        self.location = location

    def take(self, count: int, what: str) -> memoryview:
        if not 0 <= count <= len(self._left):
            self.fail(f"{what} of {count} bytes", f"{len(self._left)} bytes")
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def number(self, form: str, what: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form), what))[0]
        return value

    def expect(self, value: int, form: str, what: str) -> None:
        found = self.number(form, what)
        if found != value:
            self.fail(f"{what} {value}", str(found))

    def expect_end(self) -> None:
        if self._left:
            self.fail("the end of the file", f"{len(self._left)} more bytes")

    def fail(self, expected: str, found: str) -> None:
        raise CorruptFileError(
            f"{self.location}: expected a Paddle 1.x file with {expected}, found {found}"
        )

    def __len__(self) -> int:
        return len(self._left)


def _read_tensor(data: _Bytes) -> NDArray[Any]:
    data.expect(0, "<I", "version")
    levels = data.number("<Q", "number of levels")
    if levels > _MAX_LEVELS:
        data.fail(f"at most {_MAX_LEVELS} levels", str(levels))
    for _ in range(levels):
        data.take(data.number("<Q", "size of a level"), "offsets")
    data.expect(0, "<I", "version of the tensor")
    size = data.number("<i", "size of the description")
    if not 0 <= size <= _MAX_DESCRIPTION_BYTES:
        data.fail(f"a description of at most {_MAX_DESCRIPTION_BYTES} bytes", str(size))
    dtype, shape = _read_description(_Bytes(bytes(data.take(size, "description")), data.location))
    count = int(np.prod(shape, dtype=object)) if shape else 1
    raw = data.take(count * dtype.itemsize, f"{dtype.name}{list(shape)}")
    return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape).astype(dtype)


def _read_description(data: _Bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Parse a TensorDesc: 1 data_type, 2 dims, repeated or packed."""
    kind = -1
    shape: list[int] = []
    for number, value in _message(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, int):
            shape.append(value)
        elif number == 2 and isinstance(value, _Bytes):
            while value:
                shape.append(_varint(value))
    if kind not in TYPE_NAMES:
        data.fail(f"a type out of {sorted(TYPE_NAMES)}", str(kind))
    if any(size >= 1 << 63 for size in shape):
        data.fail("dims >= 0", str(shape))
    return np.dtype(TYPE_NAMES[kind]), tuple(shape)


def _varint(data: _Bytes) -> int:
    value = shift = 0
    while shift < 70:
        byte = data.take(1, "number")[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    data.fail("a number of at most 10 bytes", "more")
    return value


def _message(data: _Bytes) -> Iterator[tuple[int, int | _Bytes]]:
    """Yield the fields of a protobuf message as (number, value)."""
    while data:
        tag = _varint(data)
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, _varint(data)
        elif kind == 2:
            yield tag >> 3, _Bytes(bytes(data.take(_varint(data), "field")), data.location)
        elif kind in (1, 5):
            data.take(8 if kind == 1 else 4, "field")
        else:
            data.fail("a protobuf field", f"wire type {kind}")


def _persistable_names(program: _Bytes) -> list[str]:
    """Return the names of the persistable tensors in ProgramDesc.blocks.vars."""
    names = []
    for number, block in _message(program):
        for field, variable in _message(block) if number == 1 and isinstance(block, _Bytes) else ():
            if field == 3 and isinstance(variable, _Bytes):
                name, is_saved = _read_variable(variable)
                if is_saved:
                    names.append(name)
    return sorted(set(names))


def _read_variable(data: _Bytes) -> tuple[str, bool]:
    """Parse a VarDesc: 1 name, 2 type, 3 persistable (also set for feed and fetch lists)."""
    name, kind, is_persistable = "", -1, False
    for number, value in _message(data):
        if number == 1 and isinstance(value, _Bytes):
            name = bytes(value.take(len(value), "name")).decode("utf-8")
        elif number == 2 and isinstance(value, _Bytes):
            kind = next((v for n, v in _message(value) if n == 1 and isinstance(v, int)), -1)
        elif number == 3 and isinstance(value, int):
            is_persistable = bool(value)
    return name, is_persistable and kind == _LOD_TENSOR
