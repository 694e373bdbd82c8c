"""Boston house prices. A sample is (13 centered features, price), as float64 arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.paddle.dataset import common

__all__ = ["feature_names", "fetch", "load_data", "test", "train"]

URL = "http://paddlemodels.bj.bcebos.com/uci_housing/housing.data"
MD5 = "d4accdce7a25600298819f8e28e8d593"

feature_names = [
    "CRIM",
    "ZN",
    "INDUS",
    "CHAS",
    "NOX",
    "RM",
    "AGE",
    "DIS",
    "RAD",
    "TAX",
    "PTRATIO",
    "B",
    "LSTAT",
]

Array = NDArray[np.float64]
Reader = Callable[[], Iterator[tuple[Array, Array]]]


def train() -> Reader:
    """Return a reader of the first four fifths of the data."""
    return _reader(load_data(fetch())[0])


def test() -> Reader:
    """Return a reader of the last fifth of the data."""
    return _reader(load_data(fetch())[1])


def fetch() -> str:
    """Download the file if needed."""
    return common.download(URL, "uci_housing", MD5)


def load_data(filename: str, feature_num: int = 14, ratio: float = 0.8) -> tuple[Array, Array]:
    """Return training and test rows [N, feature_num], with the price last.

    Each feature is centered and divided by its range.
    """
    with open(filename, encoding="ascii") as file:
        numbers = np.array(file.read().split(), np.float64)
    if numbers.size % feature_num:
        raise ValueError(
            f"{filename}: {numbers.size} numbers cannot be split into rows of {feature_num}; the "
            "file may be truncated"
        )
    rows = numbers.reshape(-1, feature_num)
    features = rows[:, :-1]
    spread = features.max(axis=0) - features.min(axis=0)
    rows[:, :-1] = (features - features.mean(axis=0)) / spread
    middle = int(len(rows) * ratio)
    return rows[:middle], rows[middle:]


def _reader(rows: Array) -> Reader:
    def reader() -> Iterator[tuple[Array, Array]]:
        for row in rows:
            yield row[:-1], row[-1:]

    return reader
