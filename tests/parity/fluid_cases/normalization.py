"""Normalization by mean and deviation."""

from __future__ import annotations

import numpy as np

from .case import add, floats
from .inputs import CUBE, PICTURES, PLAIN, WIDE

add("layer_norm", PLAIN, lambda f, x: f.layers.layer_norm(x))
add("layer_norm_axis2", CUBE, lambda f, x: f.layers.layer_norm(x, begin_norm_axis=2, act="relu"))
add("layer_norm_plain", CUBE, lambda f, x: f.layers.layer_norm(x, scale=False, shift=False))
add("batch_norm", PLAIN, lambda f, x: f.layers.batch_norm(x, act="tanh"))
add("batch_norm_4d", {"x": floats(2, 3, 4, 4)}, lambda f, x: f.layers.batch_norm(x))
add(
    "batch_norm_nhwc",
    {"x": floats(2, 4, 4, 3)},
    lambda f, x: f.layers.batch_norm(x, data_layout="NHWC"),
)
add(
    "batch_norm_test",
    {"x": floats(2, 3, 4, 4)},
    lambda f, x: f.layers.batch_norm(x, is_test=True),
    forward_only=True,
)
add("dropout_test", PLAIN, lambda f, x: f.layers.dropout(x, 0.25, is_test=True), forward_only=True)
add(
    "dropout_up_test",
    PLAIN,
    lambda f, x: f.layers.dropout(x, 0.25, is_test=True, dropout_implementation="upscale_in_train"),
    forward_only=True,
)
add(
    "group_norm",
    PICTURES,
    lambda f, x: f.layers.group_norm(x, 2, param_attr=f.ParamAttr(), bias_attr=f.ParamAttr()),
)
add(
    "group_norm_nhwc",
    {"x": floats(2, 5, 6, 4)},
    lambda f, x: f.layers.group_norm(
        x, 2, param_attr=f.ParamAttr(), bias_attr=f.ParamAttr(), data_layout="NHWC", act="tanh"
    ),
)
add("group_norm_plain", PICTURES, lambda f, x: f.layers.group_norm(x, 2), forward_only=True)
add("instance_norm", PICTURES, lambda f, x: f.layers.instance_norm(x))
add("lrn", PICTURES, lambda f, x: f.layers.lrn(x, n=3, alpha=0.5))
add("data_norm", WIDE, lambda f, x: f.layers.data_norm(x))
add(
    "data_norm_slot",
    {"x": np.array([[0, 0.5, 1, 2], [1, 2, 0, 3], [2, 1, 0, 1]], "float32")},
    lambda f, x: f.layers.data_norm(
        x, slot_dim=2, param_attr={"batch_size": 10.0, "batch_sum": 3.0, "batch_square": 20.0}
    ),
)
add(
    "spectral_norm",
    {"x": floats(4, 3)},
    lambda f, x: f.layers.shape(f.layers.spectral_norm(x)),
    whole=True,
    forward_only=True,
)
add(
    "inplace_abn",
    PICTURES,
    lambda f, x: f.layers.inplace_abn(x, act="leaky_relu", act_alpha=0.2),
    forward_only=True,
)
