"""Arguments that 1.8.5 refuses, by the type of its exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

pytestmark = pytest.mark.usefixtures("fresh_programs")
L = fluid.layers


def image() -> fluid.Variable:
    return fluid.data("image", [2, 4, 6, 6])


def one() -> fluid.Variable:
    return L.fill_constant([1], "int64", 1)


CALLS: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "loop_vars_not_a_list": (
        TypeError,
        lambda: L.while_loop(lambda i: i < 3, lambda i: i + 1, one()),
    ),
    "no_loop_vars": (ValueError, lambda: L.while_loop(lambda: one() < 3, lambda: one(), [])),
    "negative_rows": (TypeError, lambda: L.eye(-1)),
    "columns_not_whole": (TypeError, lambda: L.eye(10, num_columns=5.2)),
    "initializer": (
        TypeError,
        lambda: L.create_parameter([1, 2], "float32", default_initializer=np.arange(6)),
    ),
    "axis_of_maxout": (ValueError, lambda: L.maxout(image(), groups=2, axis=2)),
    "scale_not_a_number": (TypeError, lambda: L.resize_nearest(image(), scale="scale")),
    "negative_scale": (ValueError, lambda: L.resize_nearest(image(), scale=-0.3)),
    "seed_of_normal": (TypeError, lambda: L.Normal(0.0, 1.0).sample([2], 1.0)),
    "shape_of_uniform": (TypeError, lambda: L.Uniform(0.0, 1.0).sample(2)),
    "program_to_load": (
        TypeError,
        lambda: fluid.io.load_vars(fluid.Executor(), "nowhere", main_program="program"),
    ),
    "dtype_of_sequences": (
        TypeError,
        lambda: L.sequence_concat([fluid.data("x", [None, 1], "int32", lod_level=1)] * 2),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_are_refused_with_the_exception_of_fluid(name: str) -> None:
    wanted, call = CALLS[name]
    with pytest.raises(wanted):
        call()


def test_a_rank_table_of_a_list_with_one_variable() -> None:
    x = fluid.data("x", [None, 1], lod_level=1)
    assert L.lod_rank_table([x]).dtype == "int64"
