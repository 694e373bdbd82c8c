"""ONNX files whose tensors are in other files, which could be any file on the machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit.serving.export.shop_model import exported_shop

from sparsefleet.errors import CorruptFileError
from sparsefleet.serving import Predictor
from sparsefleet.serving.export.export_directory import sha256_of
from sparsefleet.serving.export.onnx_engine import BadOnnxError, OnnxFile, require_own_tensors


def outside(name: str = "stolen") -> TensorProto:
    """Return a tensor whose values are in another file."""
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="../../secret.bin")
    return tensor


def model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def graph_with(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    return helper.make_graph(list(nodes), "graph", [x], [y])


def as_initializer() -> bytes:
    graph = graph_with(helper.make_node("Add", ["x", "stolen"], ["y"]))
    graph.initializer.append(outside())
    return model(graph).SerializeToString()


def as_attribute() -> bytes:
    node = helper.make_node("Constant", [], ["y"], value=outside())
    return model(graph_with(node)).SerializeToString()


def in_branch() -> bytes:
    inner = graph_with(helper.make_node("Constant", [], ["y"], value=outside()))
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    return model(graph_with(node)).SerializeToString()


def in_function() -> bytes:
    whole = model(graph_with())
    whole.functions.add(name="f").node.append(
        helper.make_node("Constant", [], ["y"], value=outside())
    )
    return whole.SerializeToString()


def in_sparse_tensor() -> bytes:
    whole = model(graph_with())
    whole.graph.sparse_initializer.add().values.CopyFrom(outside())
    return whole.SerializeToString()


def in_second_graph() -> bytes:
    """Messages that occur twice are merged by parsers."""
    second = onnx.GraphProto(initializer=[outside()]).SerializeToString()
    return model(graph_with()).SerializeToString() + bytes([7 << 3 | 2, len(second)]) + second


def by_location_alone() -> bytes:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "stolen")
    tensor.data_location = TensorProto.EXTERNAL
    return model(helper.make_graph([], "graph", [], [], [tensor])).SerializeToString()


@pytest.mark.parametrize(
    "build",
    [
        as_initializer,
        as_attribute,
        in_branch,
        in_function,
        in_sparse_tensor,
        in_second_graph,
        by_location_alone,
    ],
)
def test_tensor_in_another_file_is_refused_wherever_it_stands(
    build: Callable[[], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "dense.onnx"
    path.write_bytes(build())
    with pytest.raises(CorruptFileError, match="'stolen' is stored in another file"):
        OnnxFile(path)


def test_predictor_does_not_open_files_that_an_onnx_graph_names(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(exported_shop()[0], tmp_path / "export"))
    content = json.loads((directory / "manifest.json").read_text())
    name = next(step["file"] for step in content["onnx"]["steps"] if step["file"])
    (directory / name).write_bytes(as_initializer())
    entry = next(entry for entry in content["files"] if entry["name"] == name)
    entry |= {"bytes": (directory / name).stat().st_size, "sha256": sha256_of(directory / name)}
    (directory / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(
        CorruptFileError, match=f"{name} cannot be read .* is stored in another file"
    ):
        Predictor(directory, engine="onnx")


@pytest.mark.parametrize(
    "raw",
    [
        b"noise",
        b"\x00\x00",  # the field 0
        b"\xba\x80\x00\x00",  # a number that is longer than it has to be
        b"\xba\x80\x80\x80\x10\x00",  # the field of the graph, once bits beyond 32 are cut off
        b"\x3a\x7f",  # goes beyond the end
        b"\x3b\x3c",  # a group
        b"\x38\x01",  # a number where a graph should be
        b"\xff" * 11,
    ],
)
def test_files_that_are_not_onnx_models_are_refused(raw: bytes) -> None:
    with pytest.raises(BadOnnxError):
        require_own_tensors(raw)


def test_exported_files_hold_their_tensors() -> None:
    files = list(exported_shop()[0].glob("*.onnx"))
    assert files
    for path in files:
        require_own_tensors(path.read_bytes())
