"""The MNIST data set of handwritten digits. A sample is (pixels float32[784] in -1..1, digit)."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.paddle.dataset import common

__all__ = ["fetch", "reader_creator", "test", "train"]

URL_PREFIX = "https://dataset.bj.bcebos.com/mnist/"
TEST_IMAGE_URL = f"{URL_PREFIX}t10k-images-idx3-ubyte.gz"
TEST_IMAGE_MD5 = "9fb629c4189551a2d022fa330f9573f3"
TEST_LABEL_URL = f"{URL_PREFIX}t10k-labels-idx1-ubyte.gz"
TEST_LABEL_MD5 = "ec29112dd5afa0611ce80d1b7f02629c"
TRAIN_IMAGE_URL = f"{URL_PREFIX}train-images-idx3-ubyte.gz"
TRAIN_IMAGE_MD5 = "f68b3c2dcbeaaa9fbdd348bbdeb94873"
TRAIN_LABEL_URL = f"{URL_PREFIX}train-labels-idx1-ubyte.gz"
TRAIN_LABEL_MD5 = "d53e105ee54ea40749a09fcbcd1e9432"

Reader = Callable[[], Iterator[tuple[NDArray[np.float32], int]]]

_IMAGES, _LABELS = 2051, 2049  # magic numbers of IDX files with three and one dimensions


def train() -> Reader:
    """Return a reader of the 60,000 training samples."""
    return reader_creator(
        common.download(TRAIN_IMAGE_URL, "mnist", TRAIN_IMAGE_MD5),
        common.download(TRAIN_LABEL_URL, "mnist", TRAIN_LABEL_MD5),
        100,
    )


def test() -> Reader:
    """Return a reader of the 10,000 test samples."""
    return reader_creator(
        common.download(TEST_IMAGE_URL, "mnist", TEST_IMAGE_MD5),
        common.download(TEST_LABEL_URL, "mnist", TEST_LABEL_MD5),
        100,
    )


def reader_creator(image_filename: str, label_filename: str, buffer_size: int) -> Reader:
    """Return a reader of two IDX files, `buffer_size` samples at a time."""

    def reader() -> Iterator[tuple[NDArray[np.float32], int]]:
        images, labels = _idx(image_filename, _IMAGES), _idx(label_filename, _LABELS)
        if len(images) != len(labels):
            raise ValueError(
                f"{image_filename} has {len(images)} images, but {label_filename} has "
                f"{len(labels)} labels"
            )
        for start in range(0, len(images), buffer_size):
            part = images[start : start + buffer_size].reshape(-1, images[0].size)
            pixels = part.astype(np.float32) / 255.0 * 2.0 - 1.0
            yield from zip(pixels, map(int, labels[start : start + buffer_size]), strict=True)

    return reader


def fetch() -> None:
    """Download all files."""
    train()
    test()


def _idx(path: str, magic: int) -> NDArray[Any]:
    with gzip.open(path, "rb") as file:
        content = file.read()
    (found,) = struct.unpack_from(">I", content)
    if found != magic:
        raise ValueError(f"{path}: expected an IDX file that starts with {magic}, found {found}")
    sizes = struct.unpack_from(f">{found % 256}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes))
    return values.reshape(sizes)
