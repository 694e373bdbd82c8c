"""Keeps a worker's contribution to a round outside the process, until all servers have it.

A process that dies while sending may have reached only some servers, which then apply the round.
The gradients cannot be recomputed bit for bit, since some parameters have changed. The process that
replaces it therefore sends the same bytes to the other servers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.errors import DiskFullError
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.request_sections import Gradients
from sparsefleet.store.rows import DataMark

__all__ = ["RoundOutbox", "grow_file"]

_HEAD = struct.Struct("<8sQQQ")  # magic, round, bytes of the description, bytes in total
_MAGIC = b"SFOUTBX1"
_NOTHING = b"\0" * 8
_GROWTH = 1 << 20


def grow_file(file: int, size: int, path: str) -> None:
    """Grow a file to this size before it is mapped.

    Raises DiskFullError if there is not enough space; a write to the mapped memory would otherwise
    kill the process.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        os.ftruncate(file, size)
    except OSError as error:
        if error.errno in (
            errno.EINVAL,
            errno.EOPNOTSUPP,
        ):  # a file system that cannot reserve space
            os.ftruncate(file, size)
            return
        raise DiskFullError(
            f"cannot keep {size:,} bytes in {path} for a process that may replace this one: "
            f"{error.strerror}. Free some space, or set TMPDIR to a directory on a disk; a "
            "container's /dev/shm often has only 64 MB (docker run --shm-size)"
        ) from error


class RoundOutbox:
    """One round's mini-batches in a memory-mapped file. Not thread-safe.

    path: the file, which only this user can read.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/outbox"
    >>> ones = np.ones((1, 2), np.float32)
    >>> RoundOutbox(path).put(7, [({"t": (np.array([5], np.uint64), ones)}, {})], [(0, 1, 2, 3)])
    >>> batches, data = RoundOutbox(path).find(7)
    >>> batches[0][0]["t"][1].tolist(), data
    ([[1.0, 1.0]], [(0, 1, 2, 3)])
    """

    def __init__(self, path: str) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._memory: mmap.mmap | None = None
        if size := os.fstat(self._file).st_size:
            self._memory = mmap.mmap(self._file, size)

    def put(self, number: int, batches: Sequence[Gradients], data: Sequence[DataMark]) -> None:
        """Replace the contents with the mini-batches of round `number`."""
        arrays: list[np.ndarray[Any, Any]] = []

        def place(array: np.ndarray[Any, Any]) -> list[int]:
            arrays.append(np.ascontiguousarray(array))
            return list(array.shape)

        def place_parts(gradient: Any) -> list[int]:
            """Add a dense gradient to the file, whole or in the parts that backward left."""
            if isinstance(gradient, np.ndarray):
                return place(gradient)
            return [sum(place(np.ravel(part))[0] for part in gradient)]

        described = [
            {
                "sparse": {
                    t: [place(np.asarray(k)), place(np.asarray(g))] for t, (k, g) in s.items()
                },
                "dense": {t: place_parts(g) for t, g in d.items()},
            }
            for s, d in batches
        ]
        text = json.dumps({"batches": described, "data": list(data)}).encode()
        total = _HEAD.size + len(text) + sum(array.nbytes for array in arrays)
        memory = self._room(total)
        memory[: len(_NOTHING)] = (
            _NOTHING  # once this is written, the content is complete or absent
        )
        at = _HEAD.size
        memory[at : at + len(text)] = text
        at += len(text)
        for array in arrays:
            memory[at : at + array.nbytes] = array.data.cast("B") if array.nbytes else b""
            at += array.nbytes
        memory[len(_MAGIC) : _HEAD.size] = _HEAD.pack(_MAGIC, number, len(text), total)[8:]
        memory[: len(_MAGIC)] = _MAGIC

    def find(self, number: int) -> tuple[list[Gradients], list[DataMark]] | None:
        """Return the mini-batches kept for round `number`, or None if the file has none."""
        memory = self._memory
        if memory is None or len(memory) < _HEAD.size:
            return None
        magic, found, text_bytes, total = _HEAD.unpack(memory[: _HEAD.size])
        if magic != _MAGIC or found != number or total > len(memory):
            return None
        at = _HEAD.size + text_bytes
        described = json.loads(memory[_HEAD.size : at])

        def take(shape: list[int], kind: type[np.generic]) -> Any:
            nonlocal at
            array = np.zeros(shape, kind)
            array.data.cast("B")[:] = memory[at : at + array.nbytes] if array.nbytes else b""
            at += array.nbytes
            return array

        batches: list[Gradients] = []
        for batch in described["batches"]:
            sparse: dict[str, tuple[Keys, Floats]] = {}
            for table, (keys, gradients) in batch["sparse"].items():
                sparse[table] = take(keys, np.uint64), take(gradients, np.float32)
            dense = {table: take(shape, np.float32) for table, shape in batch["dense"].items()}
            batches.append((sparse, dense))
        return batches, [tuple(mark) for mark in described["data"]]

    def close(self) -> None:
        """Remove the file, which is no longer needed."""
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        with contextlib.suppress(OSError):
            os.unlink(self._path)
            os.close(self._file)

    def _room(self, size: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < size:
            grown = -(-size // _GROWTH) * _GROWTH
            grow_file(self._file, grown, self._path)
            if self._memory is not None:
                self._memory.close()
            self._memory = mmap.mmap(self._file, grown)
        return self._memory
