"""Fluid's native module, as far as programs name it."""

from __future__ import annotations

from sparsefleet.errors import SparseFleetError
from sparsefleet.fluid.lod_tensor import LoDTensor, LoDTensorArray
from sparsefleet.fluid.places import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    Place,
    cuda_places,
    is_compiled_with_cuda,
)
from sparsefleet.fluid.scope import Scope
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.core")

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "LoDTensor",
    "LoDTensorArray",
    "Place",
    "Scope",
    "VarDesc",
    "get_cuda_device_count",
    "is_compiled_with_cuda",
]


class EOFException(SparseFleetError):  # noqa: N818  Fluid's name
    """A loader that is not iterated has given its last batch: reset() it, start() it again."""


class VarDesc:
    """Where Fluid has the types of elements."""

    class VarType:
        """Types by Fluid's names, as all layers take them.

        >>> VarDesc.VarType.FP32
        'float32'
        """

        BOOL = "bool"
        FP16 = "float16"
        FP32 = "float32"
        FP64 = "float64"
        INT8 = "int8"
        INT16 = "int16"
        INT32 = "int32"
        INT64 = "int64"
        UINT8 = "uint8"


def get_cuda_device_count() -> int:
    """GPUs that torch sees."""
    return len(cuda_places())
