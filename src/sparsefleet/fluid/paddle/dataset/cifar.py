"""The CIFAR data set of small color images. A sample is (pixels float32[3072] in 0..1, class).

This reads the binary archives, because the Python archives would have to be unpickled.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.paddle.dataset import common

__all__ = ["fetch", "test10", "test100", "train10", "train100"]

URL_PREFIX = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_URL = f"{URL_PREFIX}cifar-10-binary.tar.gz"
CIFAR10_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
CIFAR100_URL = f"{URL_PREFIX}cifar-100-binary.tar.gz"
CIFAR100_MD5 = "03b5dce01913d631647c71ecec9e9cb8"

Reader = Callable[[], Iterator[tuple[NDArray[np.float32], int]]]

_PIXELS = 3 * 32 * 32


def train10(cycle: bool = False) -> Reader:
    """Return a reader of the 50,000 training images in 10 classes; `cycle` repeats them."""
    return _reader(_cifar10(), "data_batch", 1, cycle)


def test10(cycle: bool = False) -> Reader:
    """Return a reader of the 10,000 test images in 10 classes; `cycle` repeats them."""
    return _reader(_cifar10(), "test_batch", 1, cycle)


def train100() -> Reader:
    """Return a reader of the 50,000 training images in 100 classes."""
    return _reader(_cifar100(), "train.bin", 2)


def test100() -> Reader:
    """Return a reader of the 10,000 test images in 100 classes."""
    return _reader(_cifar100(), "test.bin", 2)


def fetch() -> None:
    """Download both archives."""
    _cifar10()
    _cifar100()


def _cifar10() -> str:
    return common.download(CIFAR10_URL, "cifar", CIFAR10_MD5)


def _cifar100() -> str:
    return common.download(CIFAR100_URL, "cifar", CIFAR100_MD5)


def _reader(path: str, part: str, num_labels: int, cycle: bool = False) -> Reader:
    """Return a reader of the images in one part of an archive.

    num_labels: number of label bytes before the pixels; the last one is the (fine) class.
    """

    def one_pass() -> Iterator[tuple[NDArray[np.float32], int]]:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if part in member.name else None
                if file is None:
                    continue
                records = np.frombuffer(file.read(), np.uint8).reshape(-1, num_labels + _PIXELS)
                for record in records:
                    pixels = record[num_labels:].astype(np.float32) / np.float32(255.0)
                    yield pixels, int(record[num_labels - 1])

    def reader() -> Iterator[tuple[NDArray[np.float32], int]]:
        yield from one_pass()
        while cycle:
            yield from one_pass()

    return reader
