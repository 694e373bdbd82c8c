"""Fluid's Python predictor over a saved inference model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

core = fluid.core


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, Any]:
    x = fluid.data("x", [None, 3])
    out = fluid.layers.fc(x, 2, act="tanh")
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)
    (wanted,) = exe.run(feed={"x": np.ones((4, 3), "float32")}, fetch_list=[out])
    return str(tmp_path), wanted


def test_tensors_are_given_and_returned(model: tuple[str, Any]) -> None:
    folder, wanted = model
    predictor = core.create_paddle_predictor(core.AnalysisConfig(folder))
    (found,) = predictor.run([core.PaddleTensor(np.ones((4, 3), "float32"), name="x")])
    assert np.allclose(found.as_ndarray(), wanted)
    assert found.data.float_data() == pytest.approx(wanted.ravel().tolist())


def test_arrays_are_copied_to_inputs_and_from_outputs(model: tuple[str, Any]) -> None:
    folder, wanted = model
    config = core.AnalysisConfig(folder)
    config.disable_gpu()
    predictor = core.create_paddle_predictor(config).clone()
    (name,) = predictor.get_input_names()
    predictor.get_input_tensor(name).copy_from_cpu(np.ones((4, 3), "float32"))
    predictor.zero_copy_run()
    (out,) = predictor.get_output_names()
    assert np.allclose(predictor.get_output_tensor(out).copy_to_cpu(), wanted)
