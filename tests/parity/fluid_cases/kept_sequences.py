"""Which layers keep the sequences of their input."""

# ruff: noqa: ARG005  all functions of cases take all inputs
from __future__ import annotations

from .case import add, floats

KEPT = {"x": floats(6, 4)}

for name, build in {
    "scale": lambda f, x: f.layers.scale(x, 2.0),
    "softmax": lambda f, x: f.layers.softmax(x),
    "cast": lambda f, x: f.layers.cast(x, "float64"),
    "reshape": lambda f, x: f.layers.reshape(x, [-1, 2]),
    "reshape3": lambda f, x: f.layers.reshape(x, [-1, 2, 2]),
    "transpose": lambda f, x: f.layers.transpose(x, [1, 0]),
    "squeeze": lambda f, x: f.layers.squeeze(f.layers.unsqueeze(x, [1]), [1]),
    "flatten": lambda f, x: f.layers.flatten(x),
    "split": lambda f, x: f.layers.split(x, 2, 1),
    "stack": lambda f, x: f.layers.stack([x, x]),
    "slice": lambda f, x: f.layers.slice(x, [1], [0], [2]),
    "slice0": lambda f, x: f.layers.slice(x, [0], [0], [2]),
    "expand": lambda f, x: f.layers.expand(x, [1, 2]),
    "matmul": lambda f, x: f.layers.matmul(x, x, transpose_y=True),
    "topk": lambda f, x: f.layers.topk(x, 2)[0],
    "argmax": lambda f, x: f.layers.argmax(x, 1),
    "cumsum": lambda f, x: f.layers.cumsum(x),
    "concat0": lambda f, x: f.layers.concat([x, x]),
    "pad": lambda f, x: f.layers.pad(x, [0, 0, 1, 1]),
    "clip": lambda f, x: f.layers.clip(x, 0.0, 1.0),
    "layer_norm": lambda f, x: f.layers.layer_norm(x),
    "batch_norm": lambda f, x: f.layers.batch_norm(x),
    "dropout": lambda f, x: f.layers.dropout(x, 0.0),
    "add": lambda f, x: f.layers.elementwise_add(x, x),
    "mean": lambda f, x: f.layers.mean(x),
    "reduce0": lambda f, x: f.layers.reduce_sum(x, 0),
    "reduce1": lambda f, x: f.layers.reduce_mean(x, 1),
    "reduce_neg": lambda f, x: f.layers.reduce_max(x, -1),
    "l2": lambda f, x: f.layers.l2_normalize(x, 1),
    "square_error": lambda f, x: f.layers.square_error_cost(x, x),
    "bce": lambda f, x: f.layers.sigmoid_cross_entropy_with_logits(x, x),
    "less": lambda f, x: f.layers.less_than(x, x),
    "fill": lambda f, x: f.layers.fill_constant_batch_size_like(x, [-1, 2], "float32", 0.0),
    "zeros_like": lambda f, x: f.layers.zeros_like(x),
    "sums": lambda f, x: f.layers.sums([x, x]),
    "assign": lambda f, x: f.layers.assign(x),
    "reverse": lambda f, x: f.layers.reverse(x, 1),
    "gather": lambda f, x: f.layers.gather(x, f.layers.fill_constant([2], "int32", 1)),
    "argsort": lambda f, x: f.layers.argsort(x)[0],
    "mul2": lambda f, x: x * 2.0,
    "unsqueeze": lambda f, x: f.layers.unsqueeze(x, [2]),
    "getitem": lambda f, x: x[:, 0:2],
    "prelu": lambda f, x: f.layers.prelu(x, "all"),
    "sum_reduce_all": lambda f, x: f.layers.reduce_sum(x),
    "huber": lambda f, x: f.layers.smooth_l1(x, x),
    "cos_sim": lambda f, x: f.layers.cos_sim(x, x),
    "scatter_nd_add": lambda f, x: f.layers.log_softmax(x),
    "unstack": lambda f, x: f.layers.unstack(x, 1)[0],
    "label_smooth": lambda f, x: f.layers.label_smooth(x),
    "pool2": lambda f, x: f.layers.sequence_pool(f.layers.reduce_sum(x, 1, keep_dim=True), "sum"),
}.items():
    add("lod " + name, KEPT, build, lod={"x": [[2, 1, 3]]}, forward_only=True)
