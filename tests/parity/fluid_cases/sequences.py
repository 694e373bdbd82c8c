"""Layers over sequences."""

from __future__ import annotations

import numpy as np

from .case import add, floats, ints
from .inputs import LENGTHS, PICTURES, ROWS

for n in ["sum", "average", "sqrt", "max", "first", "last"]:
    add("sequence_pool_" + n, ROWS, lambda f, x, n=n: f.layers.sequence_pool(x, n), lod=LENGTHS)
    add(
        "sequence_pool_empty_" + n,
        ROWS,
        lambda f, x, n=n: f.layers.sequence_pool(x, n, pad_value=0.5),
        lod={"x": [[2, 0, 4]]},
    )
    add(
        "sequence_pool_2_" + n,
        ROWS,
        lambda f, x, n=n: f.layers.sequence_pool(x, n),
        lod={"x": [[2, 1], [2, 1, 3]]},
    )
add("sequence_first_step", ROWS, lambda f, x: f.layers.sequence_first_step(x), lod=LENGTHS)
add("sequence_last_step", ROWS, lambda f, x: f.layers.sequence_last_step(x), lod=LENGTHS)
add("sequence_softmax", {"x": floats(6, 1)}, lambda f, x: f.layers.sequence_softmax(x), lod=LENGTHS)
add(
    "sequence_expand",
    {"x": floats(3, 2), "y": floats(6, 1)},
    lambda f, x, y: f.layers.sequence_expand(x, y),
    lod={"y": [[2, 1, 3]]},
)
add(
    "sequence_expand_seq",
    {"x": floats(4, 1), "y": floats(8, 1)},
    lambda f, x, y: f.layers.sequence_expand(x, y, ref_level=0),
    lod={"x": [[2, 2]], "y": [[2, 2], [3, 3, 1, 1]]},
)
add(
    "sequence_expand_zero",
    {"x": floats(3, 1), "y": floats(5, 1)},
    lambda f, x, y: f.layers.sequence_expand(x, y),
    lod={"y": [[2, 0, 3]]},
)
add(
    "sequence_expand_as",
    {"x": floats(3, 2), "y": floats(6, 1)},
    lambda f, x, y: f.layers.sequence_expand_as(x, y),
    lod={"y": [[2, 1, 3]]},
)
add(
    "sequence_reshape",
    {"x": floats(6, 4)},
    lambda f, x: f.layers.sequence_reshape(x, 2),
    lod=LENGTHS,
)
add(
    "sequence_concat",
    {"x": floats(6, 3), "y": floats(4, 3, seed=4)},
    lambda f, x, y: f.layers.sequence_concat([x, y]),
    lod={"x": [[2, 1, 3]], "y": [[1, 2, 1]]},
)
add(
    "sequence_pad",
    {"x": floats(6, 3), "y": floats(1)},
    lambda f, x, y: f.layers.sequence_pad(x, y, maxlen=4),
    lod=LENGTHS,
    whole=True,
)
add(
    "sequence_pad_long",
    {"x": floats(6, 3), "y": floats(1)},
    lambda f, x, y: f.layers.sequence_pad(x, y)[0],
    lod=LENGTHS,
    whole=True,
)
add(
    "sequence_unpad",
    {"x": floats(3, 4, 2), "y": np.array([2, 1, 3])},
    lambda f, x, y: f.layers.sequence_unpad(x, y),
)
add("lod_reset", {"x": floats(6, 3)}, lambda f, x: f.layers.lod_reset(x, target_lod=[0, 4, 6]))
add(
    "lod_reset_y",
    {"x": floats(6, 3), "y": np.array([0, 2, 6], "int32")},
    lambda f, x, y: f.layers.lod_reset(x, y),
)
add(
    "lod_reset_ylod",
    {"x": floats(6, 3), "y": floats(6, 1)},
    lambda f, x, y: f.layers.lod_reset(x, y),
    lod={"y": [[1, 2], [2, 2, 2]]},
)
add("sequence_conv", ROWS, lambda f, x: f.layers.sequence_conv(x, 4, 3, act="tanh"), lod=LENGTHS)
add(
    "sequence_conv_even",
    ROWS,
    lambda f, x: f.layers.sequence_conv(x, 4, 4, padding_start=-1),
    lod=LENGTHS,
)
add("sequence_conv_pool", ROWS, lambda f, x: f.nets.sequence_conv_pool(x, 4, 3), lod=LENGTHS)
add("dynamic_gru", {"x": floats(6, 9)}, lambda f, x: f.layers.dynamic_gru(x, 3), lod=LENGTHS)
add(
    "dynamic_gru_rev",
    {"x": floats(6, 9)},
    lambda f, x: f.layers.dynamic_gru(x, 3, is_reverse=True, origin_mode=True),
    lod=LENGTHS,
)
add("row_lod_fc", ROWS, lambda f, x: f.layers.fc(x, 2), lod=LENGTHS)
add("reduce_sum_lod", ROWS, lambda f, x: f.layers.reduce_sum(x, dim=1, keep_dim=True), lod=LENGTHS)
add(
    "sequence_mask",
    {"x": np.array([2, 0, 3])},
    lambda f, x: f.layers.sequence_mask(x, maxlen=4, dtype="float32"),
    forward_only=True,
)
add(
    "sequence_mask_col",
    {"x": np.array([[2], [0], [3]])},
    lambda f, x: f.layers.sequence_mask(x, maxlen=4),
    forward_only=True,
)
add(
    "sequence_mask_long",
    {"x": np.array([2, 0, 3])},
    lambda f, x: f.layers.sequence_mask(x),
    forward_only=True,
)
add("sequence_reverse", {"x": floats(6, 3)}, lambda f, x: f.layers.sequence_reverse(x), lod=LENGTHS)
add(
    "sequence_enumerate",
    {"x": ints(6, 1, high=9)},
    lambda f, x: f.layers.sequence_enumerate(x, 2, 7),
    lod=LENGTHS,
    forward_only=True,
)
add(
    "sequence_slice",
    {"x": floats(6, 3), "o": np.array([[1], [0], [0]]), "n": np.array([[1], [1], [2]])},
    lambda f, x, o, n: f.layers.sequence_slice(x, o, n),
    lod=LENGTHS,
)
add(
    "sequence_scatter",
    {"x": floats(3, 5), "i": np.array([[0], [1], [2], [4], [4], [0]]), "u": floats(6, 1)},
    lambda f, x, i, u: f.layers.sequence_scatter(x, i, u),
    lod={"i": [[2, 1, 3]], "u": [[2, 1, 3]]},
)
add("row_conv", {"x": floats(6, 3)}, lambda f, x: f.layers.row_conv(x, 2), lod=LENGTHS)
add("row_conv_3d", {"x": floats(2, 4, 3)}, lambda f, x: f.layers.row_conv(x, 2))
add(
    "lod_append",
    {"x": floats(6, 3)},
    lambda f, x: f.layers.lod_append(x, [0, 1, 2, 3, 4, 5, 6]),
    lod=LENGTHS,
)
add(
    "add_position_encoding",
    {"x": floats(6, 4)},
    lambda f, x: f.layers.add_position_encoding(x, 0.5, 2.0),
    lod=LENGTHS,
)
add(
    "add_position_encoding_3d",
    {"x": floats(2, 3, 6)},
    lambda f, x: f.layers.add_position_encoding(x, 0.5, 2.0),
)
add("im2sequence", PICTURES, lambda f, x: f.layers.im2sequence(x, [2, 2], [2, 2]))
add("im2sequence_pad", PICTURES, lambda f, x: f.layers.im2sequence(x, [2, 3], [2, 2], [1, 0, 1, 1]))
add(
    "ctc_greedy",
    {"x": floats(6, 4)},
    lambda f, x: f.layers.ctc_greedy_decoder(x, 0),
    lod=LENGTHS,
    forward_only=True,
)
add(
    "ctc_greedy_pad",
    {"x": floats(2, 4, 3), "n": np.array([[4], [2]])},
    lambda f, x, n: f.layers.ctc_greedy_decoder(x, 0, n, -1),
    forward_only=True,
)
add(
    "fused_embedding_seq_pool",
    {"x": ints(6, 1, high=5)},
    lambda f, x: f.contrib.layers.fused_embedding_seq_pool(x, [5, 3]),
    lod=LENGTHS,
)
