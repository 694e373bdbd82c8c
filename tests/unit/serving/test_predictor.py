"""Predictions from files alone."""

from __future__ import annotations

import builtins
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.serving.export.shop_model import batch, chances, exported_shop, needed

import sparsefleet
from sparsefleet.errors import CheckpointError, ConfigError, FeedError
from sparsefleet.serving import Predictor

DROPPED = ("user", "label")
ENGINES = ["torch", "onnx"]


@pytest.fixture(scope="module")
def predictors() -> dict[str, Predictor]:
    directory, _ = exported_shop()
    return {engine: Predictor(directory, engine=engine) for engine in ENGINES}  # type: ignore[arg-type]


@pytest.mark.parametrize(("engine", "tolerance"), [("torch", 1e-6), ("onnx", 1e-5)])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_predictions_equal_the_trained_models(
    engine: str, tolerance: float, size: int, predictors: dict[str, Predictor]
) -> None:
    inputs = batch(size, seed=100 + size)
    found = predictors[engine].predict(needed(inputs, *DROPPED))
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, chances(inputs), rtol=0, atol=tolerance)


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_of_no_examples_has_no_predictions(
    engine: str, predictors: dict[str, Predictor]
) -> None:
    found = predictors[engine].predict_all(needed(batch(0), *DROPPED))
    assert {name: array.shape for name, array in found.items()} == {"chance": (0,)}


@pytest.mark.parametrize("engine", ENGINES)
def test_golden_examples_hold_and_a_changed_model_is_noticed(
    engine: str, predictors: dict[str, Predictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = predictors[engine]
    assert predictor.check_golden() <= 1e-5
    runs = predictor._opened.runs
    honest = runs.predict
    monkeypatch.setattr(
        runs,
        "predict",
        lambda *given: {name: array + 0.01 for name, array in honest(*given).items()},
    )
    with pytest.raises(CheckpointError, match=r"golden examples differ by 0.01 .* allowed 1e-05"):
        predictor.check_golden()


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_share_a_predictor(engine: str, predictors: dict[str, Predictor]) -> None:
    many = [needed(batch(5, seed=seed), *DROPPED) for seed in range(24)]
    wanted = [predictors[engine].predict(inputs) for inputs in many]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(predictors[engine].predict, many))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_predictor_is_a_name_of_the_package_and_shows_its_schema(
    predictors: dict[str, Predictor],
) -> None:
    assert sparsefleet.Predictor is Predictor
    text = repr(predictors["onnx"])
    assert "engine='onnx'" in text
    assert "items: int64[batch, 3]" in text
    assert predictors["onnx"].schema == predictors["torch"].schema


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_that_do_not_fit_are_refused(engine: str, predictors: dict[str, Predictor]) -> None:
    inputs = needed(batch(), *DROPPED)
    with pytest.raises(
        FeedError, match=r"'items' is int16\[4, 3\], expected items: int64\[batch, 3\]"
    ):
        predictors[engine].predict(inputs | {"items": inputs["items"].astype(np.int16)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "tpu"}, "engine must be 'torch', 'onnx' or 'auto', got 'tpu'"),
        ({"threads": 0}, "threads must be None or an int >= 1, got 0"),
        ({"verify": "maybe"}, "verify must be True, False or 'deep', got 'maybe'"),
    ],
)
def test_invalid_settings_are_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Predictor(exported_shop()[0], **options)


def test_missing_runtime_names_the_extra_and_auto_does_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory, _ = exported_shop()
    assert Predictor(directory, engine="auto").engine == "onnx"
    usual = builtins.__import__

    def without_onnx(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("onnxruntime"):
            raise ImportError(f"No module named {name!r}")
        return usual(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(ConfigError, match=r"pip install sparsefleet\[onnx\]"):
        Predictor(directory, engine="onnx")
    assert Predictor(directory, engine="auto").engine == "torch"


def test_onnx_predicts_in_a_process_without_torch(tmp_path: Path) -> None:
    directory, _ = exported_shop()
    script = (
        "import sys; import sparsefleet;"
        f"predictor = sparsefleet.Predictor({str(directory)!r}, engine='onnx', threads=1);"
        "print(predictor.check_golden());"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert float(done.stdout) <= 1e-5


def test_loading_reads_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    directory, manifest = exported_shop()
    read = []
    usual = Path.open

    def noting(self: Path, *arguments: Any, **more: Any) -> Any:
        read.append(self.name)
        return usual(self, *arguments, **more)

    monkeypatch.setattr(Path, "open", noting)
    Predictor(directory, engine="onnx")
    assert manifest.graph in read
    assert not {entry.file for entry in manifest.tables}.intersection(read)


@pytest.mark.parametrize("engine", ENGINES)
def test_export_that_is_replaced_keeps_being_served(engine: Any, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(exported_shop()[0], tmp_path / "export"))
    predictor = Predictor(directory, engine=engine)
    shutil.rmtree(directory)
    assert predictor.check_golden() <= 1e-5
