"""The names from Fluid's native module that programs use."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsefleet.errors import SparseFleetError
from sparsefleet.fluid.framework.call_site import EnforceNotMet
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.lod_tensor import LoDTensor, LoDTensorArray
from sparsefleet.fluid.framework.operator import OpRole
from sparsefleet.fluid.framework.places import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    Place,
    is_compiled_with_cuda,
)
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.paths import known_names

Tensor = LoDTensor  # Fluid's base class of it

_PREDICTOR = "sparsefleet.fluid.executor.predictor"

__getattr__ = known_names(
    __name__,
    "fluid.core",
    {
        "AnalysisConfig": _PREDICTOR,
        "AnalysisPredictor": _PREDICTOR,
        "NativeConfig": _PREDICTOR,
        "PaddleBuf": _PREDICTOR,
        "PaddleDType": _PREDICTOR,
        "PaddleTensor": _PREDICTOR,
        "VarBase": "sparsefleet.fluid.dygraph.eager",
        "create_paddle_predictor": _PREDICTOR,
    },
)

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "LoDTensorArray",
    "Place",
    "Scope",
    "Tensor",
    "VarDesc",
    "get_cuda_device_count",
    "globals",
    "grad_var_suffix",
    "is_compiled_with_brpc",
    "is_compiled_with_cuda",
    "is_compiled_with_dist",
    "is_compiled_with_mkldnn",
    "kEmptyVarName",
    "kGradVarSuffix",
    "kTempVarName",
    "kZeroVarSuffix",
    "op_proto_and_checker_maker",
    "set_num_threads",
    "size_of_dtype",
]


class EOFException(SparseFleetError):  # noqa: N818  Fluid's name
    """Raised when a started loader has no more batches; call reset() and start() again."""


class VarDesc:
    """Holds the element types under the name that Fluid uses."""

    class VarType:
        """Element types by Fluid's names, which all layers accept, and kinds of variables.

        >>> VarDesc.VarType.FP32
        'float32'
        """

        LOD_TENSOR = "lod_tensor"
        LOD_TENSOR_ARRAY = "lod_tensor_array"
        READER = "reader"
        SELECTED_ROWS = "selected_rows"
        STEP_SCOPES = "step_scopes"
        FEED_MINIBATCH = "feed_minibatch"
        FETCH_LIST = "fetch_list"
        LOD_RANK_TABLE = "lod_rank_table"
        PLACE_LIST = "place_list"
        RAW = "raw"

        BOOL = dtype_name("bool")
        FP16 = dtype_name("float16")
        FP32 = dtype_name("float32")
        FP64 = dtype_name("float64")
        INT8 = dtype_name("int8")
        INT16 = dtype_name("int16")
        INT32 = dtype_name("int32")
        INT64 = dtype_name("int64")
        UINT8 = dtype_name("uint8")


class op_proto_and_checker_maker:  # noqa: N801  Fluid's name
    """Names of attributes that Fluid attaches to operators."""

    OpRole = OpRole

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
    """Return the number of GPUs that torch sees."""
    import torch

    return torch.cuda.device_count()


def grad_var_suffix() -> str:
    """Return the suffix of gradient names."""
    return "@GRAD"


def kGradVarSuffix() -> str:  # noqa: N802  Fluid's name
    """Return the suffix of gradient names."""
    return grad_var_suffix()


def kEmptyVarName() -> str:  # noqa: N802
    """Return the name that stands for a missing variable."""
    return "@EMPTY@"


def kTempVarName() -> str:  # noqa: N802
    """Return the name that stands for a variable without a name."""
    return "@TEMP@"


def kZeroVarSuffix() -> str:  # noqa: N802
    """Return the suffix of variables that are filled with zeros."""
    return "@ZERO"


def size_of_dtype(dtype: Any) -> int:
    """Return the number of bytes in an element.

    >>> size_of_dtype(VarDesc.VarType.FP32)
    4
    """
    return np.dtype(dtype_name(dtype)).itemsize


def set_num_threads(count: int) -> None:
    """Set the number of threads that an operator uses."""
    import torch

    torch.set_num_threads(count)


def globals() -> Any:
    """Return the flags, which can be read and assigned; see `fluid.set_flags`."""
    from sparsefleet.fluid.framework.flags import Flags

    return Flags()


def is_compiled_with_brpc() -> bool:
    """Return False, since servers use their own protocol, not brpc."""
    return False


def is_compiled_with_dist() -> bool:
    """Return whether jobs with several processes are supported."""
    return True


def is_float16_supported(place: Place) -> bool:
    """Return whether the place computes float16 natively, as a GPU does."""
    return not place.is_cpu


def op_support_gpu(op_type: str) -> bool:
    """Return whether an operator runs on a GPU. All operators do if torch sees a GPU."""
    del op_type
    return is_compiled_with_cuda()


def is_compiled_with_mkldnn() -> bool:
    """Return False, since oneDNN is used by torch, not by Fluid."""
    return False


def _cuda_synchronize(place: Place) -> None:
    """Wait for the GPU of a place, if there is one."""
    import torch

    if isinstance(place, CUDAPlace) and is_compiled_with_cuda():
        torch.cuda.synchronize(place.device_id)


def _set_eager_deletion_mode(threshold: float, fraction: float, fast: bool) -> None:
    """Do nothing, since torch frees a tensor as soon as it is unreferenced."""
    del threshold, fraction, fast


def _set_fuse_parameter_group_size(size: int) -> None:
    """Set a flag; see `fluid.set_flags`."""
    globals()["FLAGS_fuse_parameter_groups_size"] = size


def _set_fuse_parameter_memory_size(size: float) -> None:
    """Set a flag; see `fluid.set_flags`."""
    globals()["FLAGS_fuse_parameter_memory_size"] = size


def convert_np_dtype_to_dtype_(np_dtype: Any) -> str:
    """Return the name of a type, in the form that variables use."""
    return dtype_name(np_dtype)
