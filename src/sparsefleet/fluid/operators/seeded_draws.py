"""The random numbers that Fluid 1.8.5 draws on a CPU with a fixed seed.

The numbers come from C++'s `minstd_rand` through libstdc++'s distributions, so a seeded program
starts with the same parameters as in Fluid 1.8.5. An operator with a seed draws the same numbers
in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["seeded_normal", "seeded_truncated_normal", "seeded_uniform"]

_MULTIPLIER, _MODULUS = 48271, 2**31 - 1
_SPAN = _MODULUS - 1  # numbers 1 .. _SPAN
_BLOCK = 1 << 16
_KINDS: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}

Floats = NDArray[Any]


def seeded_uniform(made: torch.Tensor, seed: int, low: float, high: float) -> torch.Tensor:
    """Fill a float32 or float64 tensor with numbers from low..high.

    >>> seeded_uniform(torch.empty(2), 1, 0.0, 1e6).int().tolist()
    [22, 85032]
    """
    kind = _KINDS[made.dtype]
    numbers = _canonical(seed, made.numel(), kind) * (kind(high) - kind(low)) + kind(low)
    return made.copy_(torch.from_numpy(numbers.reshape(made.shape)))


def seeded_normal(made: torch.Tensor, seed: int, mean: float, std: float) -> torch.Tensor:
    """Fill a float32 or float64 tensor from a normal distribution, by the polar method."""
    kind = _KINDS[made.dtype]
    found: list[Floats] = []
    missing, stream = made.numel(), _blocks(seed, kind)
    while missing > 0:
        pairs = (kind(2) * next(stream) - kind(1)).reshape(-1, 2)
        squares = (pairs * pairs).sum(axis=1)
        kept = (squares <= 1) & (squares != 0)
        pairs, squares = pairs[kept], squares[kept]
        factors = np.sqrt(-2 * np.log(squares) / squares)
        found.append((pairs[:, ::-1] * factors[:, None]).reshape(-1)[:missing])
        missing -= len(found[-1])
    numbers = np.concatenate([*found, np.empty(0, kind)]) * kind(std) + kind(mean)
    return made.copy_(torch.from_numpy(numbers.reshape(made.shape)))


def seeded_truncated_normal(made: torch.Tensor, seed: int, mean: float, std: float) -> torch.Tensor:
    """Fill a tensor from a normal distribution, truncated at two standard deviations."""
    seeded_uniform(made, seed, float(np.finfo(np.float32).tiny), 1.0)
    below = (1 + math.erf(-math.sqrt(2))) / 2
    places = below + (1 - 2 * below) * made.double()
    return made.copy_(torch.erfinv(2 * places - 1) * (math.sqrt(2) * std) + mean)


def _canonical(seed: int, count: int, kind: Any) -> Floats:
    """Return `count` random values in 0..1."""
    found: list[Floats] = []
    stream = _blocks(seed, kind)
    while count > 0:
        found.append(next(stream)[:count])
        count -= len(found[-1])
    return np.concatenate([*found, np.empty(0, kind)])


def _blocks(seed: int, kind: Any) -> Iterator[Floats]:
    """Yield blocks of random numbers in 0..1 indefinitely.

    A float64 uses two numbers from the generator.
    """
    powers = np.ones(_BLOCK, np.uint64)
    for place in range(_BLOCK.bit_length() - 1):  # powers[i] = multiplier ** (i + 1)
        size = 1 << place
        factor = pow(_MULTIPLIER, size, _MODULUS)
        powers[size : 2 * size] = powers[:size] * np.uint64(factor) % np.uint64(_MODULUS)
    powers = powers * np.uint64(_MULTIPLIER) % np.uint64(_MODULUS)
    state = (seed % 2**32) % _MODULUS or 1
    while True:
        drawn = powers * np.uint64(state) % np.uint64(_MODULUS)
        state = int(drawn[-1])
        whole = (drawn - np.uint64(1)).astype(kind)
        if kind is np.float32:
            yield whole / kind(_SPAN)
        else:
            yield (whole[::2] + whole[1::2] * _SPAN) / (float(_SPAN) * _SPAN)
