"""Oxford flowers, images in 102 classes. A sample is (pixels float32[3 * 224 * 224], class).

Labels and parts are MATLAB files, which SciPy reads (`pip install scipy`).
"""

from __future__ import annotations

import importlib
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.paddle.dataset import common
from sparsefleet.fluid.paddle.dataset.image import load_image_bytes, simple_transform
from sparsefleet.fluid.paddle.reader import map_readers, xmap_readers

__all__ = ["fetch", "test", "test_mapper", "train", "train_mapper", "valid"]

URL_PREFIX = "http://paddlemodels.bj.bcebos.com/flowers/"
DATA_URL, DATA_MD5 = f"{URL_PREFIX}102flowers.tgz", "52808999861908f626f3c1f4e79d11fa"
LABEL_URL, LABEL_MD5 = f"{URL_PREFIX}imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"
SETID_URL, SETID_MD5 = f"{URL_PREFIX}setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"

TRAIN_FLAG, TEST_FLAG, VALID_FLAG = "tstid", "trnid", "valid"
"""The parts in setid.mat. As in Paddle, the largest part, meant for tests, is used for training."""

Sample = tuple[bytes, int]
Mapper = Callable[[Sample], Any]
Reader = Callable[[], Iterator[Any]]

_MEAN = (103.94, 116.78, 123.68)  # means of blue, green and red over ImageNet
_THREADS = 4


def _pixels(is_train: bool, sample: Sample) -> tuple[NDArray[np.float32], int]:
    picture = simple_transform(load_image_bytes(sample[0]), 256, 224, is_train, mean=_MEAN)
    return picture.flatten(), sample[1]


train_mapper: Mapper = partial(_pixels, True)
test_mapper: Mapper = partial(_pixels, False)


def train(
    mapper: Mapper = train_mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> Reader:
    """Return a reader of the training images; `cycle` repeats them.

    mapper: converts (encoded image, class) to a sample.
    use_xmap: apply the mapper in threads, up to `buffered_size` samples ahead, in any order.
    """
    return _reader(TRAIN_FLAG, mapper, buffered_size, use_xmap, cycle)


def test(
    mapper: Mapper = test_mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> Reader:
    """Return a reader of the test images; see `train`."""
    return _reader(TEST_FLAG, mapper, buffered_size, use_xmap, cycle)


def valid(mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True) -> Reader:
    """Return a reader of the validation images; see `train`."""
    return _reader(VALID_FLAG, mapper, buffered_size, use_xmap, False)


def fetch() -> None:
    """Download the three files."""
    _files()


def _files() -> tuple[str, str, str]:
    return (
        common.download(DATA_URL, "flowers", DATA_MD5),
        common.download(LABEL_URL, "flowers", LABEL_MD5),
        common.download(SETID_URL, "flowers", SETID_MD5),
    )


def _reader(part: str, mapper: Mapper, buffered_size: int, use_xmap: bool, cycle: bool) -> Reader:
    data_path, label_path, part_path = _files()
    labels = _matrix(label_path, "labels")
    class_of = {
        f"jpg/image_{number:05d}.jpg": int(labels[number - 1]) - 1
        for number in _matrix(part_path, part)
    }

    def one_pass() -> Iterator[Sample]:
        with tarfile.open(data_path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name in class_of else None
                if file is not None:
                    yield file.read(), class_of[member.name]

    def samples() -> Iterator[Sample]:
        yield from one_pass()
        while cycle:
            yield from one_pass()

    if use_xmap:
        return xmap_readers(mapper, samples, _THREADS, buffered_size)
    return map_readers(mapper, samples)


def _matrix(path: str, name: str) -> NDArray[Any]:
    try:
        scipy_io = importlib.import_module("scipy.io")
    except ImportError as error:
        raise ImportError(
            f"reading {path} requires the scipy package; run `pip install scipy`"
        ) from error
    row: NDArray[Any] = scipy_io.loadmat(path)[name][0]
    return row
