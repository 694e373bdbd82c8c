"""The largest or the average value of each window of pictures and volumes."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.windows import Padding, Span, border, check_format, span

__all__ = ["adaptive_pool2d", "adaptive_pool3d", "pool2d", "pool3d"]


def _pool(helper: LayerHelper, input: Variable, rank: int, settings: dict[str, Any]) -> Variable:
    data_format, kind = settings["data_format"], settings["pool_type"]
    check_format(helper, data_format, helper.check_input(input).shape, rank)
    size, is_global = settings["pool_size"], settings["global_pooling"]
    if kind not in ("max", "avg"):
        raise helper.refuse(f"pool_type must be 'max' or 'avg', got {kind!r}")
    if not is_global and size == -1:
        raise helper.refuse("pool_size must be given, unless global_pooling")
    attrs = {
        "pooling_type": kind,
        "ksize": span(helper, size, rank, "pool_size"),
        "strides": span(helper, settings["pool_stride"], rank, "pool_stride"),
        "paddings": border(helper, settings["pool_padding"], rank, data_format),
        "global_pooling": is_global,
        "ceil_mode": settings["ceil_mode"],
        "exclusive": settings["exclusive"],
        "data_format": data_format,
    }
    return helper.add(helper.layer_type, {"X": input}, attrs)


@layer
def pool2d(
    input: Variable,
    pool_size: Span = -1,
    pool_type: str = "max",
    pool_stride: Span = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """The largest or the average value of each window of pictures [N, C, H, W]."""
    del use_cudnn
    settings = dict(locals())
    return _pool(LayerHelper("pool2d", name), input, 2, settings)


@layer
def pool3d(
    input: Variable,
    pool_size: Span = -1,
    pool_type: str = "max",
    pool_stride: Span = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Variable:
    """The largest or the average value of each window of volumes [N, C, D, H, W]."""
    del use_cudnn
    settings = dict(locals())
    return _pool(LayerHelper("pool3d", name), input, 3, settings)


def _adaptive(
    helper: LayerHelper, input: Variable, rank: int, size: Span, kind: str, require_index: bool
) -> Variable | tuple[Variable, Variable]:
    if kind not in ("max", "avg") or (require_index and kind == "avg"):
        raise helper.refuse(
            f"pool_type must be 'max' or 'avg', and 'max' with require_index, got {kind!r}"
        )
    check_format(helper, "NCHW" if rank == 2 else "NCDHW", helper.check_input(input).shape, rank)
    wanted = span(helper, size, rank, "pool_size")
    if not require_index:
        attrs = {"ksize": wanted, "pooling_type": kind}
        return helper.add("adaptive_pool", {"X": input}, attrs)
    out = helper.new_variable(input.dtype)
    mask = helper.new_variable("int32", stop_gradient=True)
    helper.append_op(
        "max_pool_with_index", {"X": input}, {"Out": out, "Mask": mask}, {"ksize": wanted}
    )
    return out, mask


@layer
def adaptive_pool2d(
    input: Variable,
    pool_size: Span,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Variable | tuple[Variable, Variable]:
    """So many windows of nearly equal sizes; require_index: also where the largest value was."""
    helper = LayerHelper("max_pool2d_with_index" if pool_type == "max" else "pool2d", name)
    return _adaptive(helper, input, 2, pool_size, pool_type, require_index)


@layer
def adaptive_pool3d(
    input: Variable,
    pool_size: Span,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Variable | tuple[Variable, Variable]:
    """As `adaptive_pool2d`, of volumes."""
    helper = LayerHelper("max_pool3d_with_index" if pool_type == "max" else "pool3d", name)
    return _adaptive(helper, input, 3, pool_size, pool_type, require_index)
