"""States of random generators, saved in checkpoints and in a file that survives a kill."""

from __future__ import annotations

import base64
import contextlib
import mmap
import os
import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparsefleet.errors import CheckpointError
from sparsefleet.modes.round_outbox import grow_file

__all__ = ["KeptRandom", "random_state", "set_random_state"]


def random_state() -> dict[str, Any]:
    """Return the state of torch's, Python's and NumPy's generators, as JSON values.

    Threads share the generators, so their results are reproducible only with one training thread.

    >>> before = random_state()
    >>> drawn = torch.rand(3)
    >>> set_random_state(before)
    >>> bool((torch.rand(3) == drawn).all())
    True
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": _text(torch.get_rng_state().numpy().tobytes()),
        "python": [version, _text(np.array(words, np.uint32).tobytes()), gauss],
        "numpy": [name, _text(np.asarray(keys).tobytes()), position, has_gauss, cached],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the state that `random_state` returned."""
    try:
        torch_state = torch.frombuffer(bytearray(_bytes(state["torch"])), dtype=torch.uint8)
        version, words, gauss = state["python"]
        python_state = (version, tuple(_words(words)), gauss)
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy_state = (name, _words(keys), position, has_gauss, cached)
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot restore the state of the random generators: {error}"
        ) from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _words(text: str) -> Any:
    return np.frombuffer(_bytes(text), np.uint32).tolist()


_HEAD = struct.Struct("<QQ")  # pass, batch
_EMPTY = _HEAD.pack(0, 0)


class KeptRandom:
    """Keeps torch's random states from before the latest batch and the next one. Not thread-safe.

    path: the file that holds the states; only this user can read it. epoch: the number of the pass.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/random"
    >>> kept = KeptRandom(path, epoch=1)
    >>> kept.begin(4)
    >>> first = torch.rand(2)
    >>> kept.end(4)
    >>> KeptRandom(path, epoch=1).begin(4)
    >>> bool((torch.rand(2) == first).all())
    True
    """

    def __init__(self, path: str, *, epoch: int) -> None:
        self._path = path
        self._epoch = epoch
        self._is_new = True
        self._size = _HEAD.size + len(torch.get_rng_state())
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            grow_file(file, 2 * self._size, path)
            self._memory = mmap.mmap(file, 2 * self._size)
        finally:
            os.close(file)

    def begin(self, batch: int) -> None:
        """Store the state before this batch; the first call restores a previous process's state."""
        is_new, self._is_new = self._is_new, False
        if not (is_new and self._restore(batch)):
            self._keep(batch)

    def end(self, batch: int) -> None:
        """Store the state for the next batch; call it before this batch's gradients are sent."""
        self._keep(batch + 1)

    def close(self) -> None:
        """Remove the file, since the pass is over."""
        self._memory.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _keep(self, batch: int) -> None:
        at = batch % 2 * self._size
        self._memory[at : at + _HEAD.size] = (
            _EMPTY  # once this is written, the content is complete or absent
        )
        self._memory[at + _HEAD.size : at + self._size] = torch.get_rng_state().numpy().tobytes()
        self._memory[at : at + _HEAD.size] = _HEAD.pack(self._epoch, batch)

    def _restore(self, batch: int) -> bool:
        at = batch % 2 * self._size
        if self._memory[at : at + _HEAD.size] != _HEAD.pack(self._epoch, batch):
            return False
        found = np.frombuffer(self._memory[at + _HEAD.size : at + self._size], np.uint8)
        torch.set_rng_state(torch.from_numpy(found.copy()))
        return True
