"""Models with many kinds of inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsefleet.errors import ExportError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import load_inference_model, save_inference_model


class Ragged(NamedTuple):
    values: Tensor
    offsets: Tensor


class Nested(nn.Module):
    """A list of slots, a ragged input as a named tuple, and an argument that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SparseEmbedding("slots", 3, unknown="initial")
        self.tags = SparseEmbeddingBag("tags", 3, unknown="initial")

    def forward(self, slots: list[Tensor], tags: Ragged, power: int) -> tuple[Tensor, Tensor]:
        rows = torch.stack([self.slots(slot) for slot in slots], 1)
        return rows.sum(1) ** power, self.tags(*tags)


def test_nests_named_tuples_and_constants(tmp_path: Path) -> None:
    model = Nested().eval()
    example = {
        "slots": [torch.arange(4), torch.arange(4) + 9],
        "tags": Ragged(torch.arange(5), torch.tensor([0, 1, 1, 4])),
        "power": 2,
    }
    manifest = save_inference_model(tmp_path, model, example, onnx=False)
    names = [item.name for item in manifest.schema.inputs]
    assert names == ["slots.0", "slots.1", "tags"]
    inputs = {
        "slots": [np.array([1, 2]), np.array([3, 4])],
        "tags": (np.arange(3), np.array([0, 2])),
    }
    found = Predictor(tmp_path).predict_all(inputs)
    wanted = model(
        [torch.tensor([1, 2]), torch.tensor([3, 4])],
        Ragged(torch.arange(3), torch.tensor([0, 2])),
        2,
    )
    for name, tensor in zip(("0", "1"), wanted, strict=True):
        np.testing.assert_array_equal(found[name], tensor.numpy())


class Padded(nn.Module):
    """Bags of a width that varies, weights, a fixed vector, and state that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = SparseEmbeddingBag("tags", 3, padding_idx=0, unknown="initial")
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(self.tags(ids, weights=weights)) * scale


def test_dimensions_that_vary_and_an_input_that_does_not(tmp_path: Path) -> None:
    model, scale = Padded(), torch.rand(3)
    example = (torch.randint(0, 9, (4, 5)), torch.rand(4, 5), scale)
    save_inference_model(
        tmp_path,
        model,
        example,
        onnx=False,
        varying={"ids": (0, 1), "weights": (0, 1), "scale": ()},
    )
    served = load_inference_model(tmp_path)
    assert [str(item) for item in served.manifest.schema.inputs] == [
        "ids: int64[batch, ids.1]",
        "weights: float32[batch, ids.1]",
        "scale: float32[3]",
    ]
    assert "calls" not in (tmp_path / served.manifest.parameters).read_text(errors="replace")
    other = (torch.randint(0, 9, (2, 7)), torch.rand(2, 7), scale)
    model.eval()
    with torch.no_grad():
        assert torch.equal(served(*other), model(*other))


def test_numbers_that_arrays_do_not_have_are_reported(tmp_path: Path) -> None:
    model, example = nn.Linear(2, 1).bfloat16(), torch.ones(3, 2, dtype=torch.bfloat16)
    with pytest.raises(ExportError, match="'output' is torch.bfloat16, which example files"):
        save_inference_model(tmp_path, model, example, onnx=False)
