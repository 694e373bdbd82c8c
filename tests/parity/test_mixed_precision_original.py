"""Programs rewritten for half precision as PaddlePaddle 1.8.5 rewrites them.

mixed_precision_1_8_5.json holds, for each network and choice of lists, the casts that its
`fp16_utils.rewrite_program` inserted (source -> copy) and the variables that became float16.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsefleet import fluid
from sparsefleet.fluid.contrib.mixed_precision import AutoMixedPrecisionLists, fp16_utils

RECORDED = json.loads(Path(__file__).with_name("mixed_precision_1_8_5.json").read_text())
L = fluid.layers


def mlp() -> None:
    x, y = fluid.data("x", [None, 8]), fluid.data("y", [None, 1], "int64")
    hidden = L.dropout(L.fc(x, 16, act="relu"), 0.3)
    L.mean(L.cross_entropy(L.fc(hidden, 4, act="softmax"), y))


def convnet() -> None:
    x, y = fluid.data("x", [None, 1, 12, 12]), fluid.data("y", [None, 1], "int64")
    hidden = L.batch_norm(L.conv2d(x, 4, 3, bias_attr=False), act="relu")
    again = L.batch_norm(L.conv2d(hidden, 4, 3, padding=1))
    hidden = L.pool2d(L.elementwise_add(hidden, again, act="relu"), 2, "max", 2)
    out = L.fc(L.pool2d(hidden, pool_type="avg", global_pooling=True), 10)
    loss, softmax = L.softmax_with_cross_entropy(out, y, return_softmax=True)
    L.accuracy(softmax, y)
    L.mean(loss)


def attention() -> None:
    x, y = fluid.data("x", [None, 4, 8]), fluid.data("y", [None, 1])
    heads = [L.fc(x, 8, num_flatten_dims=2) for _ in range(2)]
    q, k = (L.transpose(L.reshape(one, [0, 4, 2, 4]), [0, 2, 1, 3]) for one in heads)
    weights = L.dropout(L.softmax(L.matmul(q, k, transpose_y=True, alpha=0.5)), 0.1)
    mixed = L.reshape(L.transpose(L.matmul(weights, k), [0, 2, 1, 3]), [0, 4, 8])
    hidden = L.layer_norm(L.elementwise_add(mixed, x), begin_norm_axis=2)
    L.mean(L.square_error_cost(L.fc(L.reduce_mean(hidden, 1), 1), y))


def embedding() -> None:
    ids, y = fluid.data("ids", [None, 1], "int64"), fluid.data("y", [None, 1])
    rows = L.embedding(ids, [20, 6])
    dense = fluid.data("d", [None, 6])
    hidden = L.fc([L.scale(L.elementwise_mul(rows, dense), 2.0), dense], 5, act="tanh")
    out = L.fc(L.concat([hidden, dense], 1), 1)
    _, places = L.topk(out, 1)
    number, chance = L.cast(places, "float32"), L.sigmoid(out)
    first = L.mean(L.sigmoid_cross_entropy_with_logits(out, y))
    assert first + L.mean(L.elementwise_mul(chance, number))


def shared() -> None:
    x, weight = fluid.data("x", [None, 8]), fluid.ParamAttr(name="w")
    hidden = L.fc(x, 8, param_attr=weight, bias_attr=False)
    hidden = L.fc(hidden, 8, param_attr=weight, bias_attr=False)
    large = L.relu(L.elementwise_add(L.exp(L.scale(hidden, 0.1)), hidden))
    part = L.slice(large, [1], [0], [4])
    flat = L.flatten(L.stack([part, part], 0))
    L.mean(L.sums([L.reduce_sum(flat), L.reduce_sum(L.leaky_relu(hidden))]))


NETWORKS: list[Callable[[], None]] = [mlp, convnet, attention, embedding, shared]
LISTS: dict[str, dict[str, Any]] = {
    "": {},
    "black_mul": {"custom_black_list": {"mul"}},
    "white_softmax": {"custom_white_list": {"softmax"}, "custom_black_list": {"relu"}},
    "names": {"custom_black_varnames": {"fc_0.tmp_0", "w"}},
}


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_the_same_casts_are_inserted(network: Callable[[], None], lists: str) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        network()
    fp16_utils.rewrite_program(main, AutoMixedPrecisionLists(**LISTS[lists]))
    block = main.global_block()
    casts = [op for op in block.ops if op.type == "cast"]
    known = RECORDED[f"{network.__name__}/{lists}"]
    assert sorted(f"{op.input('X')[0]}->{op.output('Out')[0]}" for op in casts) == known["casts"]
    # 1.8.5 has variables for the shapes before reshape and transpose; here there are none.
    half = {name for name in known["half"] if name in block.vars}
    assert {v.name for v in block.vars.values() if v.dtype == "float16"} == half
