"""Dense parameters in a safetensors file, by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from sparsefleet.checkpoint.entries import DenseEntry, FileEntry
from sparsefleet.checkpoint.folder import Folder
from sparsefleet.checkpoint.names import dense_file
from sparsefleet.errors import ConfigError, CorruptFileError

__all__ = ["describe", "read_dense", "write_dense"]

Tensors = Mapping[str, NDArray[Any]]

_SAFETENSORS_TYPE = {
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


def describe(tensors: Tensors) -> tuple[DenseEntry, ...]:
    """Names, types and shapes."""
    for name, tensor in tensors.items():
        if tensor.dtype.name not in _SAFETENSORS_TYPE:
            raise ConfigError(f"tensor {name!r}: type {tensor.dtype} cannot be saved")
        if name == "__metadata__":
            raise ConfigError("a tensor cannot be named __metadata__: safetensors uses it")
    return tuple(
        DenseEntry(name, tensor.dtype.name, tuple(map(int, tensor.shape)))
        for name, tensor in tensors.items()
    )


def write_dense(folder: Folder, token: str, tensors: Tensors) -> FileEntry:
    """Writes all tensors to one file, each from where it lies: nothing is gathered in memory."""
    header: dict[str, object] = {}
    begin = 0
    for entry in describe(tensors):
        end = begin + tensors[entry.name].nbytes
        header[entry.name] = {
            "dtype": _SAFETENSORS_TYPE[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    head = json.dumps(header, separators=(",", ":")).encode("ascii")
    head += b" " * (-len(head) % 8)
    file = folder.create(dense_file(token))
    try:
        file.write(struct.pack("<Q", len(head)) + head)
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
    """The tensors in the bytes of a file; they must be those that the manifest lists."""
    try:
        tensors: dict[str, NDArray[Any]] = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CorruptFileError(f"{location}: expected safetensors, found: {error}") from error
    found = {entry.name: entry for entry in describe(tensors)}
    for entry in expected:
        if found.get(entry.name) != entry:
            raise CorruptFileError(
                f"{location}: expected {_shown(entry)}, found {_shown(found.get(entry.name))}"
            )
    extra = sorted(set(found) - {entry.name for entry in expected})
    if extra:
        raise CorruptFileError(f"{location}: expected no tensors beside the listed, found {extra}")
    return {entry.name: tensors[entry.name] for entry in expected}


def _shown(entry: DenseEntry | None) -> str:
    return f"{entry.name!r} {entry.dtype}{list(entry.shape)}" if entry else "none"
