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

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "LoDTensor",
    "LoDTensorArray",
    "Place",
    "get_cuda_device_count",
    "is_compiled_with_cuda",
]


class EOFException(SparseFleetError):  # noqa: N818  Fluid's name
    """A loader that is not iterated has given its last batch: reset() it, start() it again."""


def get_cuda_device_count() -> int:
    """GPUs that torch sees."""
    return len(cuda_places())
