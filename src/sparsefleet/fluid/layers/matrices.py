"""Diagonals, halves and borders of matrices and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.shaping import assign

__all__ = [
    "diag",
    "diag_embed",
    "flip",
    "meshgrid",
    "pad2d",
    "pad_constant_like",
    "trace",
    "tril",
    "triu",
]


@layer
def diag(diagonal: Variable | Any) -> Variable:
    """The matrix with these numbers on its diagonal."""
    helper = LayerHelper("diag")
    given = diagonal if isinstance(diagonal, Variable) else assign(np.asarray(diagonal))
    return helper.add("diag", {"Diagonal": given}, stop_gradient=True)


@layer
def diag_embed(input: Variable | Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """The last axis as the diagonal of matrices in the axes dim1 and dim2."""
    helper = LayerHelper("diag_embed")
    given = input if isinstance(input, Variable) else assign(np.asarray(input))
    return helper.add(
        "diag_embed", {"Input": given}, {"offset": offset, "dim1": dim1, "dim2": dim2}
    )


def _half(type: str, x: Variable, diagonal: int, name: str | None) -> Variable:
    helper = LayerHelper(type, name)
    attrs = {"diagonal": diagonal, "lower": type == "tril"}
    out = helper.create_variable(helper.name, dtype=helper.check_input(x).dtype)
    return helper.add("tril_triu", {"X": x}, attrs, out=out)


@layer
def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The lower half of matrices, 0 above."""
    return _half("tril", input, diagonal, name)


@layer
def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The upper half of matrices, 0 below."""
    return _half("triu", input, diagonal, name)


@layer
def trace(
    input: Variable,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """The sum of the diagonal of matrices in the axes dim1 and dim2."""
    helper = LayerHelper("trace", name)
    made = helper.new_variable() if out is None else out
    attrs = {"offset": offset, "dim1": dim1, "dim2": dim2}
    helper.append_op("trace", {"Input": helper.check_input(input)}, {"Out": made}, attrs)
    return made


@layer
def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """Vectors of sizes N1, N2, ... each repeated over all of [N1, N2, ...]."""
    helper = LayerHelper("meshgrid", name)
    outs = [helper.new_variable(helper.check_input(x).dtype) for x in input]
    helper.append_op("meshgrid", {"X": list(input)}, {"Out": outs})
    return outs


@layer
def flip(input: Variable, dims: Sequence[int], name: str | None = None) -> Variable:
    """Backwards along some axes."""
    helper = LayerHelper("flip", name)
    return helper.add("reverse", {"X": helper.check_input(input)}, {"axis": list(dims)})


@layer
def pad2d(
    input: Variable,
    paddings: Sequence[int] = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Pictures with borders above, below, left, right: "constant", "reflect" or "edge"."""
    helper = LayerHelper("pad2d", name)
    if mode not in ("constant", "reflect", "edge") or data_format not in ("NCHW", "NHWC"):
        raise helper.refuse(
            f"mode must be 'constant', 'reflect' or 'edge', data_format 'NCHW' or 'NHWC', got "
            f"{mode!r}, {data_format!r}"
        )
    if len(paddings) != 4:
        raise helper.refuse(f"paddings must be four numbers, got {paddings!r}")
    attrs = {
        "paddings": list(paddings),
        "mode": mode,
        "pad_value": float(pad_value),
        "data_format": data_format,
    }
    return helper.add("pad2d", {"X": helper.check_input(input)}, attrs)


@layer
def pad_constant_like(
    x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """y with values put behind along each axis, so that it is as large as x."""
    helper = LayerHelper("pad_constant_like", name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return helper.add("pad_constant_like", inputs, {"pad_value": float(pad_value)})
