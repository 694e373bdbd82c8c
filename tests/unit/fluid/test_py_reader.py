from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import ConfigError


def batches() -> Iterator[list[tuple[list[float], int]]]:
    yield [([1.0, 2.0], 0), ([3.0, 4.0], 1)]


def test_a_reader_with_variables_of_its_own_is_started_and_read() -> None:
    reader = fluid.layers.py_reader(8, [[-1, 2], [-1, 1]], ["float32", "int64"], [0, 0], "train")
    dense, label = fluid.layers.read_file(fluid.layers.double_buffer(reader))  # type: ignore[misc]
    reader.decorate_paddle_reader(batches)
    reader.start()
    feed = reader.take_feed()
    assert feed[dense.name].numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert feed[label.name].numpy().tolist() == [[0], [1]]
    with pytest.raises(fluid.core.EOFException):
        reader.take_feed()
    reader.reset()


def test_readers_without_a_name_have_variables_of_different_names() -> None:
    names = set()
    for _ in range(2):
        one: Any = fluid.layers.read_file(fluid.layers.py_reader(8, [[-1, 1]], ["int64"], [1]))
        names.add(one.name)
        assert one.lod_level == 1
    assert len(names) == 2


def test_a_reader_for_given_variables_feeds_these() -> None:
    x = fluid.layers.data("x", [1], dtype="int64")
    reader = fluid.layers.create_py_reader_by_data(8, [x])
    assert fluid.layers.read_file(reader) is x
    reader.decorate_tensor_provider(lambda: iter([[np.array([[5]])]]))
    reader.start()
    assert reader.take_feed()["x"].numpy().tolist() == [[5]]
    reader.reset()


def test_shapes_and_types_must_be_equally_many() -> None:
    with pytest.raises(ConfigError, match="2 shapes, 1 dtypes and 2 lod_levels"):
        fluid.layers.py_reader(8, [[1], [1]], ["int64"])
