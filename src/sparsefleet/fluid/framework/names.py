"""Helpers for the names of Fluid's variables."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework.dtypes import dtype_name

__all__ = [
    "EMPTY_VAR_NAME",
    "GRAD_VAR_SUFFIX",
    "TEMP_VAR_NAME",
    "ZERO_VAR_SUFFIX",
    "convert_np_dtype_to_dtype_",
    "grad_var_name",
]

EMPTY_VAR_NAME = "@EMPTY@"
TEMP_VAR_NAME = "@TEMP@"
GRAD_VAR_SUFFIX = "@GRAD"
ZERO_VAR_SUFFIX = "@ZERO"


def grad_var_name(var_name: str) -> str:
    """Return the name of a variable's gradient.

    >>> grad_var_name("fc_0.w_0")
    'fc_0.w_0@GRAD'
    """
    return var_name + GRAD_VAR_SUFFIX


def convert_np_dtype_to_dtype_(np_dtype: Any) -> str:
    """Return the name of a type, as variables use it.

    >>> convert_np_dtype_to_dtype_("float32")
    'float32'
    """
    return dtype_name(np_dtype)
