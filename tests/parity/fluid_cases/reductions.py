"""Reductions."""

from __future__ import annotations

import numpy as np

from .case import add, floats, ints
from .inputs import CHANCES, CUBE, PLAIN

for n in ["sum", "mean", "max", "min", "prod"]:
    g = getattr
    add("reduce_" + n, CUBE, lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, dim=1))
    add("reduce_" + n + "_all", CUBE, lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x))
    add(
        "reduce_" + n + "_keep",
        CUBE,
        lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, dim=[0, -1], keep_dim=True),
    )
    add(
        "reduce_" + n + "_allkeep",
        CUBE,
        lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, keep_dim=True),
        forward_only=True,
    )
for n in ("all", "any"):
    add(
        "reduce_" + n,
        {"x": ints(4, 3, high=2).astype(bool)},
        lambda f, x, n=n: getattr(f.layers, "reduce_" + n)(x, dim=1),
        forward_only=True,
    )
add(
    "reduce_max_ties", {"x": np.ones((4, 3), "float32")}, lambda f, x: f.layers.reduce_max(x, dim=1)
)
add("argmax", CUBE, lambda f, x: f.layers.argmax(x, axis=-1), forward_only=True)
add("argmin", CUBE, lambda f, x: f.layers.argmin(x, axis=1), forward_only=True)
add("argmax_1d", {"x": floats(4)}, lambda f, x: f.layers.argmax(x), whole=True, forward_only=True)
add("cumsum", PLAIN, lambda f, x: f.layers.cumsum(x, axis=0))
add("cumsum_default", PLAIN, lambda f, x: f.layers.cumsum(x))
add("cumsum_ex", PLAIN, lambda f, x: f.layers.cumsum(x, axis=0, exclusive=True, reverse=True))
add(
    "mean_iou",
    {"x": ints(4, 3, high=3, dtype="int32"), "y": ints(4, 3, high=3, seed=6, dtype="int32")},
    lambda f, x, label: f.layers.mean_iou(x, label, 3),
    forward_only=True,
)
add("rank", CUBE, lambda f, x: f.layers.rank(x), forward_only=True)
add("size", CUBE, lambda f, x: f.layers.size(x), forward_only=True)
add("logsumexp", CUBE, lambda f, x: f.layers.logsumexp(x, dim=1, keepdim=True))
add("logsumexp_all", CUBE, lambda f, x: f.layers.logsumexp(x))
add("log_softmax", CUBE, lambda f, x: f.layers.log_softmax(x, axis=1))
add("accuracy", CHANCES, lambda f, x, y: f.layers.accuracy(x, y, k=2), forward_only=True)
