"""Reshaping, slicing and constants."""

# ruff: noqa: ARG005  all functions of cases take all inputs
from __future__ import annotations

import numpy as np

from .case import add, floats
from .inputs import CUBE, PAIR, PLAIN, WIDE

add("cast", PLAIN, lambda f, x: f.layers.cast(x, "float64"), forward_only=True)
add("cast_int", {"x": floats(4, 3) * 5}, lambda f, x: f.layers.cast(x, "int32"), forward_only=True)
add("reshape", CUBE, lambda f, x: f.layers.reshape(x, [0, -1], act="tanh"))
add("reshape_batch", CUBE, lambda f, x: f.layers.reshape(x, [-1, 2]))
add("transpose", CUBE, lambda f, x: f.layers.transpose(x, [2, 0, 1]))
add("squeeze", {"x": floats(4, 1, 3)}, lambda f, x: f.layers.squeeze(x, [1]))
add("squeeze_neg", {"x": floats(4, 3, 1)}, lambda f, x: f.layers.squeeze(x, [-1]))
add("squeeze_all", {"x": floats(4, 1, 3, 1)}, lambda f, x: f.layers.squeeze(x, []), whole=True)
add("unsqueeze", PLAIN, lambda f, x: f.layers.unsqueeze(x, [1]))
add("unsqueeze2", PLAIN, lambda f, x: f.layers.unsqueeze(x, [0, 2]))
add("unsqueeze_neg", PLAIN, lambda f, x: f.layers.unsqueeze(x, -1))
add("flatten", CUBE, lambda f, x: f.layers.flatten(x, 2))
add("flatten0", CUBE, lambda f, x: f.layers.flatten(x, 0), whole=True)
add("concat", PAIR, lambda f, x, y: f.layers.concat([x, y], axis=1))
add("concat_neg", PAIR, lambda f, x, y: f.layers.concat([x, y], axis=-1))
add("concat_0", PAIR, lambda f, x, y: f.layers.concat([x, y]))
add(
    "concat_lod",
    PAIR,
    lambda f, x, y: f.layers.concat([x, y], axis=1),
    lod={"x": [[1, 3]], "y": [[1, 3]]},
)
add("stack", PAIR, lambda f, x, y: f.layers.stack([x, y], axis=1))
add("stack_neg", PAIR, lambda f, x, y: f.layers.stack([x, y], axis=-1))
add("split", CUBE, lambda f, x: f.layers.split(x, [1, -1], dim=1))
add("split_num", CUBE, lambda f, x: f.layers.split(x, 2, dim=-1))
add("unstack", CUBE, lambda f, x: f.layers.unstack(x, axis=1))
add("expand", PLAIN, lambda f, x: f.layers.expand(x, [2, 3]))
add("slice", PLAIN, lambda f, x: f.layers.slice(x, [0, 1], [1, 0], [3, -1]))
add("slice_big", PLAIN, lambda f, x: f.layers.slice(x, [0, 1], [-3, 1], [1000, 1000]))
add("slice_drop", CUBE, lambda f, x: x[:, 1])
add("slice_range", CUBE, lambda f, x: x[:, 1:, 0:2])
add("slice_neg", CUBE, lambda f, x: x[:, -1])
add("slice_step", CUBE, lambda f, x: x[:, :, 0:4:2])
add("slice_first", CUBE, lambda f, x: x[0])
add("shape", CUBE, lambda f, x: f.layers.shape(x), forward_only=True)
add("pad", PLAIN, lambda f, x: f.layers.pad(x, [0, 1, 2, 0], 3.0))
add("reverse", PLAIN, lambda f, x: f.layers.reverse(x, 0))
add("reverse2", PLAIN, lambda f, x: f.layers.reverse(x, [0, 1]))
add("assign", PLAIN, lambda f, x: f.layers.assign(x))
add(
    "assign_np",
    PLAIN,
    lambda f, x: f.layers.assign(np.array([[1.5, 2], [3, 4]], "float32")),
    forward_only=True,
)
add(
    "slice_tensor",
    {"x": floats(4, 3), "s": np.array([1], "int32")},
    lambda f, x, s: f.layers.slice(x, [0, 1], [s, 0], [3, 2]),
    whole=True,
)
add(
    "slice_whole_tensor",
    {"x": floats(4, 3), "s": np.array([1, 0], "int32"), "e": np.array([3, 2], "int32")},
    lambda f, x, s, e: f.layers.slice(x, [0, 1], s, e),
    whole=True,
)
add(
    "item_tensor",
    {"x": floats(4, 3), "s": np.array([1], "int32")},
    lambda f, x, s: x[s],
    whole=True,
)
add("strided_slice", CUBE, lambda f, x: f.layers.strided_slice(x, [1, 2], [0, 3], [3, 0], [2, -1]))
add("crop_tensor", CUBE, lambda f, x: f.layers.crop_tensor(x, [-1, 2, 2], [0, 1, 1]))
add("crop", CUBE, lambda f, x: f.layers.crop(x, [2, 2, 2], [0, 1, 1]))
add(
    "reshape_tensor",
    {"x": floats(4, 6), "s": np.array([2], "int32")},
    lambda f, x, s: f.layers.reshape(x, [-1, s, 3]),
    whole=True,
)
add(
    "reshape_shape",
    {"x": floats(4, 6), "s": np.array([8, 3], "int32")},
    lambda f, x, s: f.layers.reshape(x, s),
    whole=True,
)
add(
    "reshape_actual",
    {"x": floats(4, 6), "s": np.array([8, 3], "int32")},
    lambda f, x, s: f.layers.reshape(x, [-1, 3], actual_shape=s),
    whole=True,
)
add(
    "expand_tensor",
    {"x": floats(4, 3), "s": np.array([2], "int32")},
    lambda f, x, s: f.layers.expand(x, [s, 2]),
    whole=True,
)
add(
    "expand_as",
    {"x": floats(4, 1), "y": floats(4, 3)},
    lambda f, x, y: f.layers.expand_as(x, y),
    whole=True,
)
add(
    "fill_constant_tensor",
    {"s": np.array([2], "int32")},
    lambda f, s: f.layers.fill_constant([s, 3], "float32", 1.5),
    whole=True,
    forward_only=True,
)
add("flip", CUBE, lambda f, x: f.layers.flip(x, [1, 2]))
add("roll", WIDE, lambda f, x: f.layers.roll(x, 1, 0))
add("roll_flat", WIDE, lambda f, x: f.layers.roll(x, 2), whole=True)
add(
    "pad_constant_like",
    {"x": floats(4, 3), "y": floats(2, 2)},
    lambda f, x, y: f.layers.pad_constant_like(x, y, 1.5),
    whole=True,
)
add(
    "fill_constant",
    PLAIN,
    lambda f, x: f.layers.fill_constant([2, 3], "int64", 5),
    forward_only=True,
)
add(
    "fill_constant_bsl",
    PLAIN,
    lambda f, x: f.layers.fill_constant_batch_size_like(x, [1, 5], "float32", 5),
    forward_only=True,
)
add(
    "fill_constant_bsl2",
    PLAIN,
    lambda f, x: f.layers.fill_constant_batch_size_like(x, [2, -1], "int64", 5, output_dim_idx=1),
    forward_only=True,
)
add(
    "zeros_ones",
    PLAIN,
    lambda f, x: [
        f.layers.zeros([2], "int32"),
        f.layers.ones([2], "float32"),
        f.layers.zeros_like(x),
        f.layers.ones_like(x),
    ],
    forward_only=True,
)
add(
    "full",
    WIDE,
    lambda f, x: [f.layers.full([2, 3], 4, dtype="int64"), f.layers.full_like(x, 2.5)],
    forward_only=True,
)
add(
    "range",
    WIDE,
    lambda f, x: [f.layers.range(0, 10, 3, "int64"), f.layers.range(1.0, 0.0, -0.3, "float32")],
    forward_only=True,
)
add("arange", WIDE, lambda f, x: f.layers.arange(0, 5, 2, "int64"), forward_only=True)
add("linspace", WIDE, lambda f, x: f.layers.linspace(0, 10, 5, "float32"), forward_only=True)
add(
    "eye", WIDE, lambda f, x: [f.layers.eye(3), f.layers.eye(2, 3, [2], "int32")], forward_only=True
)
