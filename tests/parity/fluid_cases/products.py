"""Matrix products."""

from __future__ import annotations

from .case import add, floats
from .inputs import CUBE, PAIR, PLAIN

add(
    "mul",
    {"x": floats(2, 3, 4), "y": floats(12, 5)},
    lambda f, x, y: f.layers.mul(x, y),
    whole=True,
)
add(
    "mul_cols2",
    {"x": floats(2, 3, 4), "y": floats(4, 5)},
    lambda f, x, y: f.layers.mul(x, y, x_num_col_dims=2),
    whole=True,
)
add(
    "matmul",
    {"x": floats(2, 3, 4), "y": floats(2, 5, 4)},
    lambda f, x, y: f.layers.matmul(x, y, transpose_y=True, alpha=0.5),
)
add(
    "matmul_tx",
    {"x": floats(4, 3), "y": floats(4, 5)},
    lambda f, x, y: f.layers.matmul(x, y, transpose_x=True),
    whole=True,
)
add(
    "matmul_1d", {"x": floats(4), "y": floats(4)}, lambda f, x, y: f.layers.matmul(x, y), whole=True
)
add(
    "matmul_2d_1d",
    {"x": floats(3, 4), "y": floats(4)},
    lambda f, x, y: f.layers.matmul(x, y),
    whole=True,
)
add(
    "matmul_1dt",
    {"x": floats(4), "y": floats(3)},
    lambda f, x, y: f.layers.matmul(f.layers.reshape(x, [4, 1]), f.layers.reshape(y, [1, 3])),
    whole=True,
)
add("cos_sim", PAIR, lambda f, x, y: f.layers.cos_sim(x, y))
add(
    "cos_sim_row",
    {"x": floats(4, 3), "y": floats(1, 3)},
    lambda f, x, y: f.layers.cos_sim(x, y),
    whole=True,
)
add(
    "cos_sim_lod",
    {"x": floats(4, 3), "y": floats(4, 3, seed=8)},
    lambda f, x, y: f.layers.cos_sim(x, y),
    lod={"x": [[1, 3]]},
)
add("l2_normalize", PLAIN, lambda f, x: f.layers.l2_normalize(x, axis=1))
add("l2_normalize_1d", {"x": floats(4)}, lambda f, x: f.layers.l2_normalize(x, axis=0), whole=True)
add(
    "l2_normalize_eps",
    {"x": floats(4, 3) * 1e-3},
    lambda f, x: f.layers.l2_normalize(x, axis=-1, epsilon=1e-4),
)
add("fc", PLAIN, lambda f, x: f.layers.fc(x, 5, act="sigmoid"))
add("fc_two", PAIR, lambda f, x, y: f.layers.fc([x, y], 5))
add("fc_3d", CUBE, lambda f, x: f.layers.fc(x, 5, num_flatten_dims=2))
add("fc_3d_flat", CUBE, lambda f, x: f.layers.fc(x, 5, bias_attr=False))
add("fc_neg", CUBE, lambda f, x: f.layers.fc(x, 5, num_flatten_dims=-1))
add(
    "bilinear",
    {"x": floats(4, 3), "y": floats(4, 5, seed=3)},
    lambda f, x, y: f.layers.bilinear_tensor_product(x, y, 6, act="tanh"),
)
add(
    "fsp",
    {"x": floats(2, 3, 4, 5), "y": floats(2, 2, 4, 5)},
    lambda f, x, y: f.layers.fsp_matrix(x, y),
)
add(
    "addmm",
    {"i": floats(3, 3), "x": floats(3, 4), "y": floats(4, 3)},
    lambda f, i, x, y: f.layers.addmm(i, x, y, 0.5, 2.0),
    whole=True,
)
add(
    "addcmul",
    {"i": floats(3, 3), "x": floats(3, 3), "y": floats(3, 3, seed=9)},
    lambda f, i, x, y: f.layers.addcmul(i, x, y, 0.5),
)
add("bmm", {"x": floats(2, 3, 4), "y": floats(2, 4, 3)}, lambda f, x, y: f.layers.bmm(x, y))
add("dot", {"x": floats(3, 4), "y": floats(3, 4, seed=4)}, lambda f, x, y: f.layers.dot(x, y))
add(
    "cross",
    {"x": floats(4, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.layers.cross(x, y, dim=1),
)
add(
    "kron",
    {"x": floats(2, 3), "y": floats(3, 2, seed=4)},
    lambda f, x, y: f.layers.kron(x, y),
    whole=True,
)
add("dist", {"x": floats(2, 3), "y": floats(2, 3, seed=4)}, lambda f, x, y: f.layers.dist(x, y, 2))
add("t", {"x": floats(2, 3)}, lambda f, x: f.layers.t(x))
add("diag", {"x": floats(3)}, lambda f, x: f.layers.diag(x), whole=True, forward_only=True)
add("diag_embed", {"x": floats(2, 3)}, lambda f, x: f.layers.diag_embed(x, offset=1))
add("tril", {"x": floats(4, 4)}, lambda f, x: f.layers.tril(x, -1))
add("triu", {"x": floats(4, 4)}, lambda f, x: f.layers.triu(x, 1))
add("trace", {"x": floats(4, 4)}, lambda f, x: f.layers.trace(x, 1), whole=True)
add(
    "meshgrid",
    {"x": floats(3), "y": floats(2)},
    lambda f, x, y: f.layers.meshgrid([x, y]),
    whole=True,
)
add("glu", {"x": floats(4, 6)}, lambda f, x: f.nets.glu(x))
add(
    "attention",
    {"q": floats(2, 3, 4), "k": floats(2, 5, 4, seed=2), "v": floats(2, 5, 6, seed=3)},
    lambda f, q, k, v: f.nets.scaled_dot_product_attention(q, k, v, 2),
    whole=True,
)
add(
    "attention_1",
    {"q": floats(2, 3, 4), "k": floats(2, 5, 4, seed=2), "v": floats(2, 5, 6, seed=3)},
    lambda f, q, k, v: f.nets.scaled_dot_product_attention(q, k, v),
    whole=True,
)
