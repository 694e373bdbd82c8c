"""Lookups of elements by index."""

from __future__ import annotations

import numpy as np

from .case import add, floats, ints
from .inputs import PLAIN

add("topk", PLAIN, lambda f, x: f.layers.topk(x, 2))
add("argsort", PLAIN, lambda f, x: f.layers.argsort(x, axis=1))
add("argsort_desc", PLAIN, lambda f, x: f.layers.argsort(x, axis=0, descending=True))
add("gather", {"x": floats(4, 3), "y": np.array([2, 0, 1])}, lambda f, x, y: f.layers.gather(x, y))
add(
    "gather_col",
    {"x": floats(4, 3), "y": np.array([[2], [0]])},
    lambda f, x, y: f.layers.gather(x, y),
)
add(
    "gather_nd",
    {"x": floats(4, 3), "y": np.array([[2, 0], [1, 1]])},
    lambda f, x, y: f.layers.gather_nd(x, y),
)
add(
    "gather_nd_rows",
    {"x": floats(4, 3), "y": np.array([[[2], [0]], [[1], [1]]])},
    lambda f, x, y: f.layers.gather_nd(x, y),
)
add(
    "scatter",
    {"x": floats(4, 3), "y": np.array([2, 0]), "z": floats(2, 3, seed=9)},
    lambda f, x, y, z: f.layers.scatter(x, y, z),
    forward_only=True,
)
add(
    "scatter_add",
    {"x": floats(4, 3), "y": np.array([2, 0, 2]), "z": floats(3, 3, seed=9)},
    lambda f, x, y, z: f.layers.scatter(x, y, z, overwrite=False),
    forward_only=True,
)
add("one_hot", {"x": ints(4, 1, high=3)}, lambda f, x: f.layers.one_hot(x, 3), forward_only=True)
add("one_hot_v2", {"x": ints(4, high=3)}, lambda f, x: f.one_hot(x, 3), forward_only=True)
add(
    "one_hot_range",
    {"x": ints(4, 1, high=5)},
    lambda f, x: f.layers.one_hot(x, 3, allow_out_of_range=True),
    forward_only=True,
)
add("embedding", {"x": ints(4, 1, high=5)}, lambda f, x: f.layers.embedding(x, [5, 3]))
add(
    "embedding_pad",
    {"x": ints(4, 1, high=5)},
    lambda f, x: f.layers.embedding(x, [5, 3], padding_idx=-1),
)
add("embedding_3d", {"x": ints(4, 2, 1, high=5)}, lambda f, x: f.layers.embedding(x, [5, 3]))
add("embedding_v2", {"x": ints(4, 2, high=5)}, lambda f, x: f.embedding(x, [5, 3]))
add("where", {"x": floats(4, 3)}, lambda f, x: f.layers.where(x > 0.0), forward_only=True)
add(
    "unique",
    {"x": np.array([2, 3, 3, 1, 5, 3])},
    lambda f, x: f.layers.unique(x),
    forward_only=True,
)
add(
    "unique_with_counts",
    {"x": np.array([2, 3, 3, 1, 5, 3])},
    lambda f, x: f.layers.unique_with_counts(x),
    forward_only=True,
)
add(
    "scatter_nd_add",
    {"x": floats(3, 5), "i": np.array([[1, 1], [0, 1], [1, 1]]), "u": floats(3, seed=4)},
    lambda f, x, i, u: f.layers.scatter_nd_add(x, i, u),
)
add(
    "scatter_nd",
    {"i": np.array([[1, 1], [0, 1], [1, 1]]), "u": floats(3, seed=4)},
    lambda f, i, u: f.layers.scatter_nd(i, u, [3, 4]),
)
add(
    "index_select",
    {"x": floats(3, 5), "i": np.array([2, 0, 2])},
    lambda f, x, i: f.layers.index_select(x, i, dim=1),
)
add(
    "index_sample",
    {"x": floats(3, 5), "i": np.array([[2, 0], [1, 1], [4, 0]])},
    lambda f, x, i: f.layers.index_sample(x, i),
)
add(
    "multiplex",
    {"x": floats(4, 3), "y": floats(4, 3, seed=5), "i": np.array([[1], [0], [1], [0]], "int32")},
    lambda f, x, y, i: f.layers.multiplex([x, y], i),
)
add(
    "shard_index",
    {"x": np.array([[1], [6], [12], [19]])},
    lambda f, x: f.layers.shard_index(x, 20, 2, 0),
    forward_only=True,
)
add(
    "gather_tree",
    {"i": ints(3, 2, 2, high=9), "p": ints(3, 2, 2, high=2, seed=8)},
    lambda f, i, p: f.layers.gather_tree(i, p),
    forward_only=True,
)
add(
    "topk_tensor",
    {"x": floats(4, 3), "k": np.array([2], "int32")},
    lambda f, x, k: f.layers.topk(x, k),
    whole=True,
    forward_only=True,
)
add("nonzero", {"x": ints(4, 3, high=2)}, lambda f, x: f.layers.nonzero(x), forward_only=True)


def hash_of(f, x, size, count):
    helper = f.layer_helper.LayerHelper("hash")
    out = helper.create_variable_for_type_inference("int64")
    helper.append_op(
        type="hash",
        inputs={"X": x},
        outputs={"Out": out},
        attrs={"num_hash": count, "mod_by": size},
    )
    return out


add(
    "hash",
    {"x": ints(5, 1, high=1000)},
    lambda f, x: hash_of(f, x, 10000, 3),
    lod={"x": [[2, 3]]},
    forward_only=True,
)
add(
    "hash_2", {"x": ints(5, 2, high=1000)}, lambda f, x: hash_of(f, x, 100003, 2), forward_only=True
)
add(
    "hash_9",
    {"x": ints(5, 9, high=1000)},
    lambda f, x: hash_of(f, x, 1 << 40, 2),
    forward_only=True,
)
add(
    "hash_i32",
    {"x": ints(5, 3, high=1000, dtype="int32")},
    lambda f, x: hash_of(f, x, 1 << 20, 2),
    forward_only=True,
)
