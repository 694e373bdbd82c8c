"""Saves and restores the state of this process's random generators as text."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparsefleet.errors import CheckpointError

__all__ = ["random_state", "set_random_state"]


def random_state() -> dict[str, Any]:
    """Return the state of torch's, Python's and NumPy's generators, for JSON.

    Threads share them: their order is deterministic only with one training thread.

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
    """Restore what `random_state` returned."""
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
        raise CheckpointError(f"not a state of random generators: {error}") from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _words(text: str) -> Any:
    return np.frombuffer(_bytes(text), np.uint32).tolist()
