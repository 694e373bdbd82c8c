"""Graphs cut at their lookups, for ONNX."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.unit.serving.export.shop_model import exported_shop
from torch import Tensor, nn

from sparsefleet.errors import ConfigError, FeedError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import save_inference_model
from sparsefleet.store import Uniform


class Chained(nn.Module):
    """Ids as given, ids from rows, and ids that never change."""

    def __init__(self) -> None:
        super().__init__()
        wide = Uniform(-9.0, 9.0)
        self.first = SparseEmbedding("first", 2, initializer=wide, unknown="initial")
        self.second = SparseEmbedding("second", 3, initializer=wide, unknown="initial")
        self.bias = SparseEmbedding("bias", 3, initializer=wide, unknown="initial")

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.first(ids)
        nearest = rows.sum(1).round().long()
        return self.second(nearest) + self.bias(torch.tensor([7]))


def test_ids_that_are_inputs_need_no_part_and_others_a_small_one() -> None:
    directory, manifest = exported_shop()
    steps = manifest.onnx.steps
    order = [step.table or "part" for step in steps]
    assert order == ["part", "items", "tags", "shops/all", "part"]
    assert steps[0].inputs == ("items",)
    assert steps[2].inputs == ("tags.values",)
    assert set(steps[-1].inputs) >= {"counts", "tags.offsets", steps[1].outputs[0]}
    for step in steps:
        if step.file is not None:
            model = onnx.load(directory / step.file)
            assert {node.domain for node in model.graph.node} == {""}
            assert not any(node.metadata_props for node in model.graph.node)


def test_lookups_of_ids_that_come_from_rows_run_in_order(tmp_path: Path) -> None:
    ids = torch.arange(6)
    manifest = save_inference_model(
        tmp_path, Chained(), ids, targets=["output", "first"], onnx=True
    )
    order = [step.table or "part" for step in manifest.onnx.steps]
    assert order.index("first") < order.index("second")
    wanted, found = (
        Predictor(tmp_path, engine=engine).predict_all(np.arange(9)) for engine in ("torch", "onnx")
    )
    np.testing.assert_array_equal(found["first"], wanted["first"])
    np.testing.assert_allclose(found["output"], wanted["output"], rtol=0, atol=1e-5)


def test_empty_batch_of_bags_has_an_empty_prediction(tmp_path: Path) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ids = SparseEmbeddingBag("ids", 3)
            self.tags = SparseEmbeddingBag("tags", 3, include_last_offset=True)
            self.head = nn.Linear(6, 2)

        def forward(self, ids: Tensor, tags: tuple[Tensor, Tensor]) -> Tensor:
            return self.head(torch.cat([self.ids(ids), self.tags(tags)], 1))

    example = (torch.ones(2, 4, dtype=torch.int64), (torch.arange(3), torch.tensor([0, 1, 3])))
    save_inference_model(tmp_path, Bags(), example, onnx=True)
    none = (np.empty((0, 4), np.int64), (np.empty(0, np.int64), np.zeros(1, np.int64)))
    for engine in ("torch", "onnx"):
        assert Predictor(tmp_path, engine=engine).predict(none).shape == (0, 2)


def test_examples_without_values_are_refused_where_the_engine_cannot_compute_them(
    tmp_path: Path,
) -> None:
    model = nn.Sequential(SparseEmbeddingBag("ids", 3), nn.Linear(3, 1))
    ids = torch.ones(2, 4, dtype=torch.int64)
    save_inference_model(tmp_path, model, ids, onnx=True, varying={"input": (0, 1)})
    without = np.empty((3, 0), np.int64)
    assert Predictor(tmp_path).predict(without).shape == (3, 1)
    with pytest.raises(FeedError, match=r"shape \[3, 0\]; ONNX Runtime .* use engine='torch'"):
        Predictor(tmp_path, engine="onnx").predict(without)


def test_operator_without_counterpart_is_reported_and_the_rest_is_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x)

    manifest = save_inference_model(tmp_path, Odd(), torch.rand(3, 2))
    assert manifest.onnx.steps == ()
    assert "cannot be translated to ONNX" in str(manifest.onnx.missing)
    assert "has no ONNX files" in caplog.text
    assert not list(tmp_path.glob("*.onnx"))
    Predictor(tmp_path, engine="auto").check_golden()


def test_missing_extra_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"ONNX is not .*pip install sparsefleet\[onnx\]"):
        save_inference_model(tmp_path, nn.Linear(2, 1), torch.rand(3, 2), onnx=True)
    manifest = save_inference_model(tmp_path, nn.Linear(2, 1), torch.rand(3, 2))
    assert "pip install sparsefleet[onnx]" in str(manifest.onnx.missing)
