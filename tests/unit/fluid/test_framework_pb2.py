"""Saved programs taken apart and put together again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import ProgramError
from sparsefleet.fluid.proto import framework_pb2


def test_a_saved_model_is_cut_and_runs_on_what_was_cut(tmp_path: Path) -> None:
    ids = fluid.data("ids", [None], "int64")
    rows = fluid.embedding(ids, [9, 2], is_sparse=True, param_attr="table")
    score = fluid.layers.fc(rows, 1)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"ids": np.array([3, 5])}
    wanted, fed = exe.run(feed=feed, fetch_list=[score, rows])
    fluid.io.save_inference_model(str(tmp_path), ["ids"], [score], exe)

    model = tmp_path / "__model__"
    described = framework_pb2.ProgramDesc.FromString(model.read_bytes())
    block = described.blocks[0]
    kept = [op for op in block.ops if op.type != "lookup_table_v2"]
    assert len(kept) == len(block.ops) - 1
    del block.ops[:]
    block.ops.extend(kept)
    kept_vars = [var for var in block.vars if var.name != "table"]
    del block.vars[:]
    block.vars.extend(kept_vars)
    model.write_bytes(described.SerializePartialToString())

    with fluid.scope_guard(fluid.Scope()):
        program, _, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        assert "table" not in program.global_block().vars
        (found,) = exe.run(program, feed={rows.name: fed}, fetch_list=targets)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_inputs_and_outputs_are_read_by_their_slots() -> None:
    fluid.layers.fc(fluid.data("x", [None, 3]), 2, bias_attr=False)
    data = fluid.default_main_program().desc.serialize_to_string()
    (op,) = framework_pb2.ProgramDesc.FromString(data).blocks[0].ops
    assert {slot.parameter: slot.arguments for slot in op.inputs} == {
        "X": ["x"],
        "Y": ["fc_0.w_0"],
    }
    assert [argument for slot in op.outputs for argument in slot.arguments] == ["fc_0.tmp_0"]
    assert "x_num_col_dims" in [attr.name for attr in op.attrs]


@pytest.mark.parametrize("data", [b"\x0a\x03abc", b"[]", b'{"blocks": [{}]}', b"{}"])
def test_other_bytes_are_reported(data: bytes) -> None:
    with pytest.raises(ProgramError, match="not a program"):
        framework_pb2.ProgramDesc.FromString(data)
