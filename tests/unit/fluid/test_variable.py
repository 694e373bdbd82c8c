from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.fluid.framework.dtypes import DTYPES, dtype_name
from sparsefleet.fluid.framework.variable import Variable, check_feed


@pytest.mark.parametrize("name", DTYPES)
def test_a_type_has_one_name_however_it_is_written(name: str) -> None:
    for written in (name, np.dtype(name), np.dtype(name).type, getattr(torch, name)):
        assert dtype_name(written) == name


@pytest.mark.parametrize("dtype", ["complex64", "uint64", "text", None, 7, torch.bfloat16, object])
def test_types_that_fluid_has_not_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype must be one of"):
        dtype_name(dtype)


def test_a_variable_describes_what_is_fed() -> None:
    ads = Variable("ads", [None, 1], np.int64, 1)
    assert (ads.name, ads.shape, ads.dtype, ads.lod_level) == ("ads", (-1, 1), "int64", 1)
    assert not ads.persistable
    assert not ads.stop_gradient
    ads.persistable = ads.stop_gradient = True


@pytest.mark.parametrize(
    ("name", "shape", "lod_level"),
    [("", [1], 0), (None, [1], 0), ("x", 5, 0), ("x", "12", 0), ("x", [1.5], 0), ("x", [1], -1)],
)
def test_empty_descriptions_are_refused(name: Any, shape: Any, lod_level: int) -> None:
    with pytest.raises(TypeError):
        Variable(name, shape, lod_level=lod_level)


@pytest.mark.parametrize(
    ("shape", "append", "found"),
    [
        ([1], True, (-1, 1)),
        ([], True, (-1,)),
        ([3, 32, 32], True, (-1, 3, 32, 32)),
        ([-1, 5], True, (-1, 5)),
        ([5, None], True, (5, -1)),
        ([4, 5], False, (4, 5)),
    ],
)
def test_layers_data_puts_the_batch_in_front_unless_there_is_one(
    shape: list[int | None], append: bool, found: tuple[int, ...]
) -> None:
    made = fluid.layers.data("x", shape, append_batch_size=append)
    assert made.shape == found
    assert made.stop_gradient
    check_feed(made, (99, 99, 99, 99, 99), "int8")  # never checked


def test_fluid_data_checks_what_is_fed() -> None:
    image = fluid.data("image", [None, 3, -1], "uint8")
    check_feed(image, (7, 3, 9), np.uint8)
    check_feed(image, (0, 3, 1), torch.uint8)
    with pytest.raises(ValueError, match=r"'image': got shape \(7, 3\), expected \(-1, 3, -1\)"):
        check_feed(image, (7, 3), np.uint8)
    with pytest.raises(ValueError, match=r"shape \(7, 4, 9\)"):
        check_feed(image, (7, 4, 9), np.uint8)
    with pytest.raises(ValueError, match="'image': got dtype float32, expected uint8"):
        check_feed(image, (7, 3, 9), np.float32)
