"""Fused pairs of operators give the same results as separate ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.lowering.fusion import fused_operators

L = fluid.layers
LENGTHS = [2, 0, 1, 3]


def ragged_ids() -> Any:
    ids = np.random.default_rng(3).integers(0, 9, (sum(LENGTHS), 1))
    return fluid.create_lod_tensor(ids, [LENGTHS], fluid.CPUPlace())


def fused_types(fetches: list[str]) -> list[str]:
    program = fluid.default_main_program()
    return [op.type for op in fused_operators(program, program.global_block().ops, fetches)]


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("pool", ["sum", "average", "sqrt"])
@pytest.mark.parametrize("pad_value", [0.0, 0.5])
def test_a_bag_is_a_lookup_and_a_pool(pool: str, pad_value: float, is_sparse: bool) -> None:
    ids = L.data("ids", [1], dtype="int64", lod_level=1)
    attr = fluid.ParamAttr(
        name="table",
        initializer=fluid.initializer.NumpyArrayInitializer(
            np.random.default_rng(0).normal(size=(9, 2)).astype("float32")
        ),
    )
    rows = L.embedding(ids, [9, 2], is_sparse=is_sparse, param_attr=attr, padding_idx=4)
    pooled = L.sequence_pool(rows, pool, pad_value=pad_value)
    fluid.optimizer.SGD(0.1).minimize(L.reduce_sum(L.square(pooled)))
    assert "lookup_bag" in fused_types([pooled.name])
    assert "lookup_bag" not in fused_types([pooled.name, rows.name])
    found = []
    for fetches in ([pooled], [pooled, rows]):  # fetching the rows computes them separately
        exe = fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(fluid.Scope()):
            exe.run(fluid.default_startup_program())
            value, *_ = exe.run(feed={"ids": ragged_ids()}, fetch_list=fetches, return_numpy=False)
            table = np.array(fluid.global_scope().find_var("table").get_tensor())
        found.append((np.array(value), table))
    for fused, apart in zip(*found, strict=True):
        np.testing.assert_allclose(fused, apart, rtol=1e-5, atol=1e-6)
    assert found[0][0][1].tolist() == [pad_value] * 2


@pytest.mark.parametrize("shape", [[None, 3], [None, 2, 3]])
def test_a_layer_with_a_bias_is_one_product(shape: list[Any]) -> None:
    x = fluid.data("x", shape)
    out = L.fc(x, 4, num_flatten_dims=len(shape) - 1)
    between = fluid.default_main_program().global_block().ops[0].output_arg_names[0]
    loss = L.mean(L.square(out))
    fluid.optimizer.SGD(0.1).minimize(loss)
    feed = {"x": np.random.default_rng(0).normal(size=[5, *shape[1:]]).astype("float32")}
    assert "mul_add" in fused_types([out.name])
    fluid.default_startup_program().random_seed = 7
    found = []
    for fetches in ([out, "fc_0.w_0"], [out, "fc_0.w_0", between]):
        exe = fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(fluid.Scope()):
            exe.run(fluid.default_startup_program())
            found.append(exe.run(feed=feed, fetch_list=fetches)[:2])
    for fused, apart in zip(*found, strict=True):
        np.testing.assert_allclose(fused, apart, rtol=1e-5, atol=1e-6)


def test_an_operator_is_part_of_one_pair_only() -> None:
    made = L.fc(fluid.data("x", [None, 3]), 2, act="relu")
    fluid.default_main_program().fused_with_activation = frozenset({"elementwise_add"})
    assert fused_types([made.name]) == ["mul_add", "relu"]


def test_what_others_want_is_computed_apart() -> None:
    x = fluid.data("x", [None, 3])
    out = L.fc(x, 4)
    between = fluid.default_main_program().global_block().ops[0].output_arg_names[0]
    assert "mul_add" in fused_types([out.name])
    assert "mul_add" not in fused_types([f"{between}@GRAD"])
    L.relu(fluid.default_main_program().global_block().var(between))
    assert "mul_add" not in fused_types([out.name])


def test_a_bag_without_sequences_is_reported_at_the_line_of_the_pool() -> None:
    ids = L.data("ids", [1], dtype="int64", lod_level=1)
    pooled = L.sequence_pool(L.embedding(ids, [9, 2], is_sparse=True), "sum")
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    with pytest.raises(ValueError, match=r"test_fusion.py:\d+: sequence_pool: .* no LoD"):
        exe.run(feed={"ids": np.ones((2, 1), "int64")}, fetch_list=[pooled])
