"""Fed numbers that the type of a variable cannot represent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.data import hash64, hash_ids

TEXTS = [str(number) for number in range(20)]


@pytest.mark.parametrize("lod_level", [0, 1])
def test_hashes_of_texts_are_fed_by_bit_pattern(lod_level: int) -> None:
    ads = fluid.data("ads", [None, 1], "int64", lod_level=lod_level)
    samples = [([hash64(text)],) for text in TEXTS]
    fed = fluid.DataFeeder([ads], fluid.CPUPlace()).feed(samples)["ads"]
    assert fed.numpy()[:, 0].tolist() == hash_ids(TEXTS).tolist()


def test_arrays_of_hashes_are_fed_by_bit_pattern() -> None:
    ads = fluid.data("ads", [None, 1], "int64")
    hashes = np.array([[hash64(text)] for text in TEXTS], np.uint64)
    loader = fluid.io.DataLoader.from_generator([ads], 2)
    loader.set_batch_generator(lambda: iter([[hashes]]), fluid.CPUPlace())
    (feed,) = loader
    assert feed["ads"].numpy()[:, 0].tolist() == hash_ids(TEXTS).tolist()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", 0.7),
        ("int64", 2**64),
        ("int64", float("nan")),
        ("uint8", 300),
        ("int32", 2**64 - 1),
    ],
)
def test_nothing_is_cut_off(dtype: str, value: Any) -> None:
    feeder = fluid.DataFeeder([fluid.data("x", [None, 1], dtype)], fluid.CPUPlace())
    with pytest.raises(ValueError, match="values fed to 'x' cannot be converted to"):
        feeder.feed([([1],), ([value],)])


def test_whole_floats_are_integers() -> None:
    feeder = fluid.DataFeeder([fluid.data("x", [None, 1], "int64")], fluid.CPUPlace())
    assert feeder.feed([([1.0],), ([2],)])["x"].numpy().tolist() == [[1], [2]]
