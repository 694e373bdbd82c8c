"""Trained models as files that predict without servers."""

from sparsefleet.export._lazy import __getattr__ as __getattr__
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.opened_export import Verify, read_manifest, verify_export
from sparsefleet.export.quantization import RowFormat
from sparsefleet.export.schema import InputSchema, LookupSchema, Schema, TargetSchema

__all__ = [
    "InferenceModel",
    "InputSchema",
    "LookupSchema",
    "Manifest",
    "RowFormat",
    "Schema",
    "TargetSchema",
    "Verify",
    "load_inference_model",
    "read_manifest",
    "save_inference_model",
    "verify_export",
]
