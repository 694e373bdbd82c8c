"""Export trained models to files, for predictions without servers."""

from typing import TYPE_CHECKING

from sparsefleet._lazy import lazy_names as _lazy_names
from sparsefleet.serving.export.export_directory import Verify, read_manifest, verify_export
from sparsefleet.serving.export.manifest import (
    ExportManifest,
    InputSchema,
    LookupSchema,
    Schema,
    TargetSchema,
)
from sparsefleet.serving.export.quantization import RowFormat

if TYPE_CHECKING:
    from sparsefleet.serving.export.graph_operators import allow_operators
    from sparsefleet.serving.export.model_export import save_inference_model
    from sparsefleet.serving.export.torch_engine import InferenceModel, load_inference_model

__all__ = [
    "ExportManifest",
    "InferenceModel",
    "InputSchema",
    "LookupSchema",
    "RowFormat",
    "Schema",
    "TargetSchema",
    "Verify",
    "allow_operators",
    "load_inference_model",
    "read_manifest",
    "save_inference_model",
    "verify_export",
]

# These need torch, which a service that runs ONNX does not need.
__getattr__ = _lazy_names(
    __name__,
    {
        "InferenceModel": "sparsefleet.serving.export.torch_engine",
        "allow_operators": "sparsefleet.serving.export.graph_operators",
        "load_inference_model": "sparsefleet.serving.export.torch_engine",
        "save_inference_model": "sparsefleet.serving.export.model_export",
    },
)
