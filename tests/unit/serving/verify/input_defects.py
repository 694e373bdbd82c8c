"""Examples that the online side prepares differently, as its feature log shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.unit.serving.verify.defect import Defect, Setup
from tests.unit.serving.verify.served_model import batch, days, write_examples


def _logged(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Setup]:
    def make(folder: Path) -> Setup:
        inputs, _ = batch(200, seed=9)
        change(inputs)
        write_examples(folder / "online.parquet", inputs)
        settings = {"examples": days().examples, "online_examples": folder / "online.parquet"}
        return Setup(days().export, (), settings)

    return make


def _with(name: str, value: Callable[[Any], Any]) -> Callable[[Path], Setup]:
    def change(inputs: dict[str, Any]) -> None:
        inputs[name] = value(inputs[name])

    return _logged(change)


def _half_precision(counts: np.ndarray) -> np.ndarray:
    return counts.astype(np.float16).astype(np.float32)


INPUT_DEFECTS = [
    Defect("swapped slots", "inputs", "slots swapped", _with("ids", lambda x: x[:, [0, 2, 1, 3]])),
    Defect("ids off by one", "inputs", "ids shifted", _with("ids", lambda x: x + 1)),
    Defect(
        "another hash",
        "inputs",
        "ids hashed differently",
        _with("ids", lambda x: (x * 2654435761) % 2**40),
    ),
    Defect("ids as floats", "inputs", "wrong dtype", _with("ids", lambda x: x.astype(np.float64))),
    Defect(
        "one feature scaled",
        "inputs",
        "values scaled",
        _with("counts", lambda x: x * np.array([1, 100], np.float32)),
    ),
    Defect("logarithm forgotten", "inputs", "values scaled", _with("counts", np.expm1)),
    Defect(
        "missing values filled otherwise",
        "inputs",
        "missing values",
        _with("counts", lambda x: np.where(x == 0, np.float32(-1), x)),
    ),
    Defect("half precision", "inputs", "values rounded", _with("counts", _half_precision)),
    Defect(
        "features of the example before",
        "inputs",
        "examples reordered",
        _with("counts", lambda x: np.roll(x, 1, axis=0)),
    ),
    Defect("input not logged", "inputs", "input missing", _logged(lambda x: x.pop("counts"))),
    Defect(
        "tags cut to one",
        "inputs",
        "examples differ",
        _with("tags", lambda pair: (pair[0][:-3], np.minimum(pair[1], len(pair[0]) - 3))),
    ),
]
