"""Dense parameters in a safetensors file, by name.

The safetensors package maps or reads whole files. Code that streams tensors larger than memory uses
the header functions here. Format: the header's length as a little-endian uint64, the header as JSON
padded with spaces, then the data.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from sparsefleet.checkpoint.folder import Folder
from sparsefleet.checkpoint.manifest import DenseEntry, FileEntry
from sparsefleet.checkpoint.names import dense_file
from sparsefleet.errors import ConfigError, CorruptFileError

__all__ = [
    "TensorHeader",
    "TensorPlace",
    "describe",
    "pack_header",
    "read_dense",
    "read_header",
    "require_tensor_type",
    "write_dense",
]

_NOTES = "__metadata__"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors package
_NAMES = {
    "bool": "BOOL",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
}
_NUMPY_TYPES = {name: np.dtype(numpy_name) for numpy_name, name in _NAMES.items()}


class TensorPlace(NamedTuple):
    """The type, shape and position of one tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int = 0
    """Offset of the tensor's first byte: relative to the first tensor in `pack_header`, and to the
    start of the file in `read_header`.
    """

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class TensorHeader(NamedTuple):
    """The parsed header of a safetensors file."""

    tensors: dict[str, TensorPlace]
    notes: dict[str, str]


def require_tensor_type(name: str, dtype: np.dtype[Any]) -> None:
    """Raise ConfigError for a tensor that safetensors cannot store."""
    if dtype.name not in _NAMES:
        raise ConfigError(
            f"tensor {name!r}: type {dtype} cannot be saved, expected one of {', '.join(_NAMES)}"
        )
    if name == _NOTES:
        raise ConfigError(
            f"a tensor cannot be named {_NOTES}, which safetensors reserves; rename it"
        )


def pack_header(
    tensors: Mapping[str, TensorPlace],
    notes: Mapping[str, str] | None = None,
    *,
    num_bytes: int = 0,
) -> bytes:
    """Return the header of a file, padded to at least `num_bytes`.

    >>> places = {"w": TensorPlace(np.dtype("float32"), (2, 3))}
    >>> len(pack_header(places)) % 8, len(pack_header(places, num_bytes=512))
    (0, 512)
    """
    fields: dict[str, object] = {_NOTES: dict(notes)} if notes else {}
    for name, place in tensors.items():
        require_tensor_type(name, place.dtype)
        fields[name] = {
            "dtype": _NAMES[place.dtype.name],
            "shape": list(place.shape),
            "data_offsets": [place.begin, place.begin + place.num_bytes],
        }
    text = json.dumps(fields, separators=(",", ":")).encode("ascii")
    size = max(len(text) + -len(text) % 8, num_bytes - _LENGTH.size)
    return _LENGTH.pack(size) + text.ljust(size)


def read_header(file: IO[bytes], location: str) -> TensorHeader:
    """Read and check a header. The tensors must fill the rest of the file without gaps."""

    def wrong(found: str) -> CorruptFileError:
        return CorruptFileError(f"{location}: expected a safetensors file, found {found}")

    file_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise wrong(f"{len(head)} bytes")
    (size,) = _LENGTH.unpack(head)
    if size > min(_MAX_HEADER_BYTES, file_bytes - _LENGTH.size):
        raise wrong(f"a header of {size} bytes in a file of {file_bytes} bytes")
    try:
        fields = json.loads(file.read(size))
    except (ValueError, RecursionError) as error:
        raise wrong(f"a header that is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise wrong("a header that is not a JSON object")
    notes = fields.pop(_NOTES, {})
    if not (isinstance(notes, dict) and all(isinstance(note, str) for note in notes.values())):
        raise wrong(f"a {_NOTES} field that is not an object of strings")
    begin_of_data = _LENGTH.size + size
    tensors = {}
    for name, entry in fields.items():
        place = _place(entry)
        if place is None:
            raise wrong(f"an invalid description of tensor {name!r}: {entry!s:.200}")
        tensors[name] = place._replace(begin=begin_of_data + place.begin)
    end = begin_of_data
    for place in sorted(tensors.values(), key=lambda place: (place.begin, place.num_bytes)):
        if place.begin != end:
            raise wrong(f"a tensor at byte {place.begin} instead of {end}")
        end += place.num_bytes
    if end != file_bytes:
        raise wrong(
            f"{file_bytes} bytes instead of {end}; the file is truncated or has trailing data"
        )
    return TensorHeader(tensors, notes)


def _place(entry: object) -> TensorPlace | None:
    """Return the type, shape and position in a header entry, or None if the entry is invalid."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return None
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(kind, str) and kind in _NUMPY_TYPES):
        return None
    if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
        return None
    place = TensorPlace(_NUMPY_TYPES[kind], tuple(shape), offsets[0])
    return place if offsets[1] - offsets[0] == place.num_bytes else None


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


Tensors = Mapping[str, NDArray[Any]]


def describe(tensors: Tensors) -> tuple[DenseEntry, ...]:
    """Return the names, types and shapes of the tensors."""
    for name, tensor in tensors.items():
        require_tensor_type(name, tensor.dtype)
    return tuple(
        DenseEntry(name, tensor.dtype.name, tuple(map(int, tensor.shape)))
        for name, tensor in tensors.items()
    )


def write_dense(folder: Folder, token: str, tensors: Tensors) -> FileEntry:
    """Write all tensors to one file, without copying them."""
    places: dict[str, TensorPlace] = {}
    begin = 0
    for name, tensor in tensors.items():
        places[name] = TensorPlace(tensor.dtype, tuple(map(int, tensor.shape)), begin)
        begin += tensor.nbytes
    head = pack_header(places)
    file = folder.create(dense_file(token))
    try:
        file.write(head)
        for tensor in tensors.values():
            little_endian = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
            if little_endian.nbytes:
                file.write(little_endian.reshape(-1).data.cast("B"))
        file.close()
    except BaseException:
        file.discard()
        raise
    return FileEntry(dense_file(token), file.num_bytes, file.checksum)


def read_dense(data: bytes, expected: tuple[DenseEntry, ...], location: str) -> dict[str, Any]:
    """Return the tensors stored in a file's bytes, which must match the manifest."""
    try:
        tensors: dict[str, NDArray[Any]] = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CorruptFileError(f"{location}: expected safetensors data, found {error}") from error
    found = {entry.name: entry for entry in describe(tensors)}
    for entry in expected:
        if found.get(entry.name) != entry:
            raise CorruptFileError(
                f"{location}: expected {_shown(entry)}, found {_shown(found.get(entry.name))}"
            )
    extra = sorted(set(found) - {entry.name for entry in expected})
    if extra:
        raise CorruptFileError(f"{location}: expected only the listed tensors, also found {extra}")
    return {entry.name: tensors[entry.name] for entry in expected}


def _shown(entry: DenseEntry | None) -> str:
    return f"{entry.name!r} {entry.dtype}{list(entry.shape)}" if entry else "none"
