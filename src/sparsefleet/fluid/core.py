"""Fluid's native module, as far as programs name it."""

from __future__ import annotations

from sparsefleet.errors import SparseFleetError
from sparsefleet.fluid.lod_tensor import LoDTensor, LoDTensorArray
from sparsefleet.fluid.places import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    Place,
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
    "op_proto_and_checker_maker",
]


class EOFException(SparseFleetError):  # noqa: N818  Fluid's name
    """A loader that is not iterated has given its last batch: reset() it, start() it again."""


class VarDesc:
    """Where Fluid has the types of elements."""

    class VarType:
        """Types by Fluid's names, as all layers take them, and kinds of variables.

        >>> VarDesc.VarType.FP32
        'float32'
        """

        LOD_TENSOR = "lod_tensor"
        LOD_TENSOR_ARRAY = "lod_tensor_array"
        READER = "reader"
        SELECTED_ROWS = "selected_rows"
        STEP_SCOPES = "step_scopes"

        BOOL = "bool"
        FP16 = "float16"
        FP32 = "float32"
        FP64 = "float64"
        INT8 = "int8"
        INT16 = "int16"
        INT32 = "int32"
        INT64 = "int64"
        UINT8 = "uint8"


class op_proto_and_checker_maker:  # noqa: N801  Fluid's name
    """Names of notes that Fluid has at its operators; here an operator has `role`."""

    class OpRole:
        """What an operator is for."""

        Forward = "forward"
        Backward = "backward"
        Optimize = "optimize"
        LRSched = "schedule"
        Loss = "loss"
        RPC = "rpc"
        Dist = "dist"

    @staticmethod
    def kOpRoleAttrName() -> str:  # noqa: N802
        return "op_role"

    @staticmethod
    def kOpRoleVarAttrName() -> str:  # noqa: N802
        return "op_role_var"

    @staticmethod
    def kOpNameScopeAttrName() -> str:  # noqa: N802
        return "op_namescope"

    @staticmethod
    def kOpDeviceAttrName() -> str:  # noqa: N802
        return "op_device"


def get_cuda_device_count() -> int:
    """GPUs that torch sees."""
    import torch

    return torch.cuda.device_count()
