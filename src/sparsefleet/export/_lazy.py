"""Names of the room that need torch: loaded at first use, as serving with ONNX does without."""

from __future__ import annotations

import importlib

_HOMES = {
    "InferenceModel": "sparsefleet.export.inference_model",
    "load_inference_model": "sparsefleet.export.inference_model",
    "save_inference_model": "sparsefleet.export.model_export",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sparsefleet.export' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
