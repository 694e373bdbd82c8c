"""Layers of click-rate models."""

# ruff: noqa: ARG005  all functions of cases take all inputs
from __future__ import annotations

import functools
import operator

import numpy as np

from .case import add, floats, ints
from .inputs import WIDE

TREE = np.array(
    [
        [0, 0, 0, 1, 2],
        [0, 1, 0, 3, 4],
        [0, 1, 0, 5, 6],
        [1, 2, 1, 0, 0],
        [2, 2, 1, 0, 0],
        [3, 2, 2, 0, 0],
        [4, 2, 2, 0, 0],
    ],
    "int32",
)

add(
    "cvm",
    {"x": floats(4, 5, low=0.1, high=3), "c": floats(4, 2, low=0, high=2)},
    lambda f, x, c: f.layers.continuous_value_model(x, c, True),
)
add(
    "cvm_no",
    {"x": floats(4, 5, low=0.1, high=3), "c": floats(4, 2, low=0, high=2)},
    lambda f, x, c: f.layers.continuous_value_model(x, c, False),
)


def tree_attr(f, a):
    return f.ParamAttr(trainable=False, initializer=f.initializer.NumpyArrayInitializer(a))


add(
    "tdm_child",
    {"x": np.array([[2], [3], [0], [1]], "int32")},
    lambda f, x: f.contrib.layers.tdm_child(x, 7, 2, tree_attr(f, TREE)),
    forward_only=True,
)
add(
    "tdm_child_2d",
    {"x": np.array([[2, 3], [0, 1]], "int32")},
    lambda f, x: f.contrib.layers.tdm_child(x, 7, 2, tree_attr(f, TREE)),
    forward_only=True,
)
add(
    "tdm_sampler_none",
    {"x": np.array([[0], [1], [3]], "int32")},
    lambda f, x: functools.reduce(
        operator.iadd,
        [
            list(p)
            for p in f.contrib.layers.tdm_sampler(
                x,
                [1, 0],
                [2, 4],
                4,
                tree_attr(f, np.array([[1, 3], [1, 4], [2, 5], [2, 6]], "int32")),
                tree_attr(f, np.array([[1], [2], [3], [4], [5], [6]], "int32")),
            )
        ],
        [],
    ),
    forward_only=True,
)
add(
    "filter_by_instag",
    {"x": floats(6, 3), "t": ints(4, 1, high=3), "f": np.array([1])},
    lambda f, x, t, g: f.layers.filter_by_instag(x, t, g, True),
    lod={"x": [[2, 1, 3]], "t": [[1, 1, 2]]},
    whole=True,
    forward_only=True,
)
add(
    "filter_by_instag_none",
    {"x": floats(6, 3), "t": ints(4, 1, high=3), "f": np.array([9])},
    lambda f, x, t, g: f.layers.filter_by_instag(x, t, g, True),
    lod={"x": [[2, 1, 3]], "t": [[1, 1, 2]]},
    whole=True,
    forward_only=True,
)
add(
    "partial_concat",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.partial_concat([x, y], 1, 2),
)
add(
    "partial_sum",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.partial_sum([x, y], 1, 2),
)
add(
    "fused_elemwise_activation",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.fused_elemwise_activation(x, y, ["elementwise_add", "relu"]),
)
add(
    "fused_elemwise_activation2",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.contrib.layers.fused_elemwise_activation(x, y, ["tanh", "elementwise_add"]),
)
add(
    "ctr_metric_bundle",
    {"x": floats(4, 1, low=0.1, high=0.9), "y": ints(4, 1, high=2).astype("float32")},
    lambda f, x, label: f.contrib.layers.ctr_metric_bundle(x, label),
    forward_only=True,
)
add(
    "autoincreased_step_counter",
    WIDE,
    lambda f, x: f.layers.autoincreased_step_counter(begin=3, step=2),
    forward_only=True,
)
