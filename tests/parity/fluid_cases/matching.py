"""Matrices of two texts, trees and hashed pyramids."""

from __future__ import annotations

import numpy as np

from .case import add, floats, ints

LENGTHS = {"x": [[2, 3]], "y": [[3, 1]]}


def match(f, x, y):
    return f.contrib.layers.match_matrix_tensor(x, y, 2)[0]


def convolved(f, x, y):
    return f.contrib.layers.var_conv_2d(match(f, x, y), x, y, 2, 3, [3, 2], [1, 2])


def pooled(f, x, y):
    return f.contrib.layers.sequence_topk_avg_pooling(match(f, x, y), x, y, [1, 2, 3], 2)


for name, build in (
    ("match_matrix_tensor", match),
    ("var_conv_2d", convolved),
    ("sequence_topk_avg_pooling", pooled),
):
    add(name, {"x": floats(5, 4), "y": floats(4, 4, seed=3)}, build, lod=LENGTHS)
add(
    "tree_conv",
    {
        "nodes": floats(2, 6, 4),
        "edges": np.array(
            [
                [[1, 2], [1, 3], [1, 4], [2, 5], [3, 6]],
                [[1, 2], [2, 3], [2, 4], [4, 5], [4, 6]],
            ],
            "int32",
        ),
    },
    lambda f, nodes, edges: f.contrib.layers.tree_conv(nodes, edges, 3, 2, 3),
    whole=True,
    forward_only=True,  # 1.8.5 sums the gradients of nodes over the wrong trees
)
add(
    "search_pyramid_hash",
    {"x": ints(8, 1, high=50, dtype="int32")},
    lambda f, x: f.contrib.layers.search_pyramid_hash(
        x, 8, 40, 4, 2, 0.5, False, False, 1, 1, 1, 0.1, f.ParamAttr(name="hash_w", learning_rate=0)
    ),
    lod={"x": [[5, 1, 2]]},
    forward_only=True,
)
