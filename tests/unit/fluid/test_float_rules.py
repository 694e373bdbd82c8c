"""Rules for shapes agree with runs of the operators on empty tensors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework.block import Block
from sparsefleet.fluid.framework.operator import Operator
from sparsefleet.fluid.lowering import shapes
from sparsefleet.fluid.lowering.registry import find_op, op_types

L = fluid.layers

CTR = """
import sys
from sparsefleet import fluid
L = fluid.layers
ids = L.data("ids", [1], dtype="int64", lod_level=1)
label = L.data("label", [1], dtype="int64")
rows = L.sequence_pool(L.embedding(ids, [100, 8], is_sparse=True), "sum")
hidden = L.fc(L.concat([rows, L.data("dense", [13])], axis=1), 16, act="relu")
predict = L.fc(hidden, 2, act="softmax")
loss = L.mean(L.cross_entropy(predict, label))
L.accuracy(predict, label)
L.auc(predict, label)
fluid.optimizer.Adam(0.1).minimize(loss)
assert "sympy" not in sys.modules and "torch._dynamo" not in sys.modules
"""


def build() -> None:
    x = fluid.data("x", [None, 4, 6])
    flat = fluid.data("flat", [None, 6])
    wide = fluid.data("wide", [None, None, 6], "float64")
    label = fluid.data("label", [None, 1], "int64")
    for name in ("relu", "sigmoid", "tanh", "square", "sqrt", "exp", "log", "abs", "gelu"):
        getattr(L, name)(x)
    for name in ("floor", "ceil", "round", "cos", "sin", "rsqrt", "reciprocal", "softplus"):
        getattr(L, name)(wide)
    for name in ("softsign", "relu6", "elu", "stanh", "swish", "leaky_relu", "hard_sigmoid"):
        getattr(L, name)(flat)
    for name in ("acos", "asin", "atan", "erf", "logsigmoid", "sign", "tanh_shrink"):
        getattr(L, name)(x)
    L.pow(x, 2.0)
    L.scale(x, 2.0)
    L.clip(x, 0.0, 1.0)
    L.dropout(x, 0.5)
    for axis in (-1, 1, 0):
        L.softmax(wide, axis=axis)
    for name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"):
        for dim in (None, 0, [1], [0, -1], [0, 1, 2]):
            for keep in (False, True):
                getattr(L, name)(wide, dim=dim, keep_dim=keep)
    L.mean(wide)
    L.layer_norm(x, begin_norm_axis=1)
    L.layer_norm(x, begin_norm_axis=2, scale=False)
    L.transpose(wide, [2, 0, 1])
    predict = L.softmax(flat)
    L.cross_entropy(predict, label)
    L.cross_entropy(predict, flat, soft_label=True)
    L.softmax_with_cross_entropy(flat, label, return_softmax=True)
    L.softmax_with_cross_entropy(flat, predict, soft_label=True)
    L.sigmoid_cross_entropy_with_logits(flat, predict)
    one = L.fc(flat, 1, act="sigmoid")
    L.log_loss(one, fluid.data("seen", [None, 1]))
    L.topk(x, 2)
    L.accuracy(predict, label, k=2)
    L.embedding(label, [10, 3])
    fluid.embedding(label, [10, 3])
    fluid.embedding(fluid.data("ids", [None, None], "int64"), [10, 3])
    build_images()


def build_images() -> None:
    image, last = fluid.data("image", [None, 4, 17, 12]), fluid.data("last", [2, 17, None, 4])
    for stride, dilation in ((1, 1), (2, 1), (3, 2)):
        for padding in (0, 2, [1, 3], [0, 1, 2, 0], "SAME", "VALID"):
            settings = {"stride": stride, "dilation": dilation, "padding": padding}
            L.conv2d(image, 6, 3, groups=2, **settings)
            if padding != "SAME":  # an open size has no known sides
                L.conv2d(last, 6, [3, 2], data_format="NHWC", **settings)
    L.conv2d(image, 8, 3, groups=4, use_cudnn=False)  # depthwise
    L.conv3d(fluid.data("volume", [None, 3, 5, 6, 7]), 2, 3, padding=1)
    L.batch_norm(image)
    L.batch_norm(last, data_layout="NHWC")
    L.batch_norm(fluid.data("features", [None, 5]))


def test_each_rule_gives_the_shapes_and_types_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: set[str] = set()
    by_rule = shapes._by_float_rule

    def compared(block: Block, definition: Any, op: Operator, outputs: list[Any]) -> bool:
        found = by_rule(block, definition, op, outputs)
        if found:
            given = [(variable.shape, variable.dtype) for variable in outputs]
            inputs = [block.visible_var(name) for name in op.input_arg_names]
            shapes._probe(block, definition, op, inputs, outputs)
            assert [(variable.shape, variable.dtype) for variable in outputs] == given, str(op)
            judged.add(op.type)
        return found

    monkeypatch.setattr(shapes, "_by_float_rule", compared)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        build()
    rules = {name: definition.shape for name in op_types() if (definition := find_op(name))}
    of_floats = {name for name, rule in rules.items() if rule is not None and rule.only_floats}
    assert of_floats - judged == {"log_softmax"}, "not built above"


def test_a_ctr_program_is_built_without_the_large_parts_of_torch() -> None:
    subprocess.run([sys.executable, "-c", CTR], check=True)
