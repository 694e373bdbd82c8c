"""Elementwise functions and boolean values."""

# ruff: noqa: ARG005  all functions of cases take all inputs
from __future__ import annotations

import numpy as np

from .case import add, floats, ints
from .inputs import PAIR, PICTURES, PLAIN, POSITIVE, WIDE

for n in [
    "abs",
    "exp",
    "sigmoid",
    "tanh",
    "square",
    "cos",
    "sin",
    "ceil",
    "floor",
    "relu",
    "softplus",
    "softsign",
    "logsigmoid",
    "softmax",
    "elu",
    "gelu",
    "leaky_relu",
    "swish",
    "hard_sigmoid",
    "relu6",
    "soft_relu",
    "mean",
    "round",
    "sign",
    "erf",
    "tanh_shrink",
    "brelu",
    "acos",
    "asin",
    "atan",
]:
    add(
        n,
        {"x": floats(4, 3, low=-0.95, high=0.95) * (1 if n in ("acos", "asin") else 3)},
        lambda f, x, n=n: getattr(f.layers, n)(x),
    )
for n in ["log", "sqrt", "rsqrt", "reciprocal"]:
    add(n, POSITIVE, lambda f, x, n=n: getattr(f.layers, n)(x))
for n in ["add", "sub", "mul", "div", "max", "min"]:
    add(
        "elementwise_" + n,
        PAIR,
        lambda f, x, y, n=n: getattr(f.layers, "elementwise_" + n)(x, y, act="tanh"),
    )
add(
    "elementwise_pow",
    {"x": POSITIVE["x"], "y": PAIR["y"]},
    lambda f, x, y: f.layers.elementwise_pow(x, y),
)
add(
    "elementwise_mod",
    {"x": ints(4, 3, high=20) - 9, "y": ints(4, 3, high=5) + 1},
    lambda f, x, y: f.layers.elementwise_mod(x, y),
    forward_only=True,
)
add(
    "elementwise_floordiv",
    {"x": ints(4, 3, high=20) - 9, "y": ints(4, 3, high=5) + 1},
    lambda f, x, y: f.layers.elementwise_floordiv(x, y),
    forward_only=True,
)
add(
    "elementwise_div_int",
    {"x": ints(4, 3, high=20) - 9, "y": ints(4, 3, high=5) + 1},
    lambda f, x, y: f.layers.elementwise_div(x, y),
    forward_only=True,
)
add(
    "elementwise_add_axis1",
    {"x": floats(2, 3, 4), "y": floats(3)},
    lambda f, x, y: f.layers.elementwise_add(x, y, axis=1),
    whole=True,
)
add(
    "elementwise_mul_axis0",
    {"x": floats(2, 3, 4), "y": floats(2, seed=5)},
    lambda f, x, y: f.layers.elementwise_mul(x, y, axis=0),
    whole=True,
)
add(
    "elementwise_mul_axis0_tail1",
    {"x": floats(2, 3, 4), "y": floats(2, 1, seed=5)},
    lambda f, x, y: f.layers.elementwise_mul(x, y, axis=0),
    whole=True,
)
add(
    "elementwise_add_tail",
    {"x": floats(2, 3, 4), "y": floats(3, 4)},
    lambda f, x, y: f.layers.elementwise_add(x, y),
    whole=True,
)
add(
    "elementwise_mul_col",
    {"x": floats(4, 3), "y": floats(4, 1)},
    lambda f, x, y: f.layers.elementwise_mul(x, y),
)
add(
    "elementwise_sub_small_x",
    {"x": floats(4, 1), "y": floats(4, 3)},
    lambda f, x, y: f.layers.elementwise_sub(x, y),
)
add(
    "elementwise_max_ties",
    {"x": np.ones((4, 3), "float32"), "y": np.ones((4, 3), "float32")},
    lambda f, x, y: f.layers.elementwise_max(x, y),
)
add(
    "elementwise_min_ties",
    {"x": np.ones((4, 3), "float32"), "y": np.ones((4, 3), "float32")},
    lambda f, x, y: f.layers.elementwise_min(x, y),
)
add("arith", PAIR, lambda f, x, y: (x + 1.0) * 2.0 - x / y)
add("arith_right", PAIR, lambda f, x, y: 1.0 - x * y)
add("arith_rdiv", PAIR, lambda f, x, y: 2.0 / y)
add("arith_neg", PAIR, lambda f, x, y: -x)
add("arith_pow", {"x": POSITIVE["x"], "y": PAIR["y"]}, lambda f, x, y: x**2)
add(
    "arith_int",
    {"x": ints(4, 3, high=9)},
    lambda f, x: [x * 2, x + 3, x - 1, x / 2],
    forward_only=True,
)
add("scale", PLAIN, lambda f, x: f.layers.scale(x, 2.0, 1.0))
add(
    "scale_before",
    PLAIN,
    lambda f, x: f.layers.scale(x, 2.0, 1.0, bias_after_scale=False, act="relu"),
)
add(
    "scale_int",
    {"x": ints(4, 3, high=9)},
    lambda f, x: f.layers.scale(x, 0.5, 1.0),
    forward_only=True,
)
add("clip", PLAIN, lambda f, x: f.layers.clip(x, -0.5, 0.5))
add("pow", POSITIVE, lambda f, x: f.layers.pow(x, 1.5))
add("sums", PAIR, lambda f, x, y: f.layers.sums([x, y]))
add("sum", PAIR, lambda f, x, y: f.layers.sum([x, y]))
for n in ["hard_shrink", "softshrink", "thresholded_relu", "hard_swish", "stanh", "selu"]:
    add(n, WIDE, lambda f, x, n=n: getattr(f.layers, n)(x))
add("mish", WIDE, lambda f, x: f.layers.nn.mish(x))
add("log1p", {"x": floats(4, 3, low=0.1, high=2)}, lambda f, x: f.layers.log1p(x))
for m in ["all", "channel", "element"]:
    add("prelu_" + m, PICTURES, lambda f, x, m=m: f.layers.prelu(x, m))
add("maxout", PICTURES, lambda f, x: f.layers.maxout(x, 2))
for n in ["equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"]:
    add(
        n,
        {"x": ints(4, 3, high=3), "y": ints(4, 3, high=3, seed=7)},
        lambda f, x, y, n=n: getattr(f.layers, n)(x, y),
        forward_only=True,
    )
for n in ["logical_and", "logical_or", "logical_xor"]:
    add(
        n,
        {"x": ints(4, 3, high=2).astype(bool), "y": ints(4, 3, high=2, seed=7).astype(bool)},
        lambda f, x, y, n=n: getattr(f.layers, n)(x, y),
        forward_only=True,
    )
add(
    "logical_not",
    {"x": ints(4, 3, high=2).astype(bool)},
    lambda f, x: f.layers.logical_not(x),
    forward_only=True,
)
add(
    "compare_op",
    {"x": floats(4, 3), "y": floats(4, 3, seed=8)},
    lambda f, x, y: [x < y, x >= 0.5, x == y],
    forward_only=True,
)
add(
    "pow_tensor",
    {"x": floats(4, 3, low=0.1, high=2), "k": np.array([1.5], "float32")},
    lambda f, x, k: f.layers.pow(x, k),
    whole=True,
)
add(
    "scale_tensor",
    {"x": floats(4, 3), "k": np.array([1.5], "float32")},
    lambda f, x, k: f.layers.scale(x, k, 0.5),
    whole=True,
)
add(
    "mod_float",
    {"x": floats(4, 3) * 5, "y": floats(4, 3, seed=4) * 2},
    lambda f, x, y: f.layers.elementwise_mod(x, y),
    forward_only=True,
)
add(
    "elementwise_equal",
    {"x": ints(4, 3, high=3), "y": ints(4, 3, high=3, seed=7)},
    lambda f, x, y: f.layers.elementwise_equal(x, y),
    forward_only=True,
)
add("clamp", WIDE, lambda f, x: f.layers.clamp(x, min=0.1))
add("clip_by_norm", WIDE, lambda f, x: f.layers.clip_by_norm(x, 1.0), forward_only=True)
add(
    "finite",
    WIDE,
    lambda f, x: [f.layers.isfinite(x), f.layers.has_inf(x), f.layers.has_nan(x)],
    forward_only=True,
)
add(
    "increment",
    {"x": floats(1)},
    lambda f, x: f.layers.increment(x, 2.0, in_place=False),
    whole=True,
    forward_only=True,
)
