"""An export whose example batch passes one tensor for several inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sparsefleet import Predictor
from sparsefleet.serving.export import save_inference_model


class Difference(nn.Module):
    def forward(self, left: Tensor, right: Tensor, bag: tuple[Tensor, Tensor]) -> Tensor:
        return left - right + bag[1]


def test_inputs_that_share_a_tensor_in_the_example_stay_apart(tmp_path: Path) -> None:
    numbers, starts = torch.tensor([0, 1]), torch.tensor([0, 1])
    example = {"left": numbers, "right": numbers, "bag": (numbers, starts)}
    save_inference_model(tmp_path / "export", Difference(), example, onnx=False)
    inputs = {"left": np.array([7]), "right": np.array([2]), "bag": (np.array([5]), np.array([0]))}
    predictor = Predictor(tmp_path / "export")
    assert [item.name for item in predictor.schema.inputs][:2] == ["left", "right"]
    assert predictor.predict({x.name: inputs[x.name] for x in predictor.schema.inputs}) == [5]
