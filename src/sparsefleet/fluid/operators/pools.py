"""Maximum and average pooling of images and volumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, named

__all__ = ["adaptive_pool2d", "adaptive_pool3d", "pool2d", "pool3d"]

Tensor = torch.Tensor
Sides = Sequence[tuple[int, int]]


def channels_first(x: Tensor, data_format: str) -> Tensor:
    """Convert [N, ..., C] to [N, C, ...]; leave other formats unchanged."""
    return x.movedim(-1, 1) if data_format in ("NHWC", "NDHWC") else x


def channels_last(x: Tensor, data_format: str) -> Tensor:
    """Convert [N, C, ...] back to [N, ..., C]; leave other formats unchanged."""
    return x.movedim(1, -1) if data_format in ("NHWC", "NDHWC") else x


def window_sides(
    x: Tensor,
    paddings: Sequence[int] | str,
    spans: Sequence[int],
    strides: Sequence[int],
) -> list[tuple[int, int]]:
    """Return the padding before and after along each axis of an image.

    paddings: one number per axis, two numbers (before and after) per axis, or "SAME", so that
        ceil(size / stride) windows fit.
    """
    if paddings == "VALID":
        return [(0, 0)] * len(spans)
    if paddings != "SAME":
        numbers = [int(number) for number in paddings]
        if len(numbers) == len(spans):
            return [(number, number) for number in numbers]
        return [(numbers[i], numbers[i + 1]) for i in range(0, len(numbers), 2)]
    found = []
    for size, span, stride in zip(x.shape[2:], spans, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
        found.append((total // 2, total - total // 2))
    return found


def pad_sides(x: Tensor, sides: Sides, value: float = 0.0) -> Tensor:
    """Pad x; negative paddings crop."""
    flat = [number for pair in reversed(sides) for number in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x


Span = int | Sequence[int]
Padding = int | str | Sequence[Any]
FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def span(helper: LayerHelper, value: Span, rank: int, what: str) -> list[int]:
    """Expand a number to a list with one entry per axis; check the length of a list."""
    found = [value] * rank if isinstance(value, int) else list(value)
    if len(found) == 1:
        found *= rank
    if len(found) != rank or not all(isinstance(number, int) for number in found):
        raise helper.refuse(f"{what} must be one number or {rank} numbers, got {value!r}")
    return found


def border(helper: LayerHelper, padding: Padding, rank: int, data_format: str) -> list[int] | str:
    """Return the padding before and after each axis, or "SAME" or "VALID"."""
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise helper.refuse(f"padding must be numbers, 'SAME' or 'VALID', got {padding!r}")
        return padding.upper()
    if isinstance(padding, int):
        return [padding] * (2 * rank)
    given = list(padding)
    if len(given) == rank + 2 and all(isinstance(pair, (list, tuple)) for pair in given):
        middle = given[1:-1] if data_format.endswith("C") else given[2:]
        others = [pair for pair in given if not any(pair is kept for kept in middle)]
        if any(number for pair in others for number in pair):
            raise helper.refuse(f"padding of batch and channels must be 0, got {padding!r}")
        return [number for pair in middle for number in pair]
    if len(given) == rank:
        return [number for number in given for _ in range(2)]
    if len(given) == 2 * rank:
        return given
    raise helper.refuse(
        f"padding must be 1, {rank} or {2 * rank} numbers, or pairs for {rank + 2} axes, got "
        f"{padding!r}"
    )


def check_format(helper: LayerHelper, data_format: str, shape: Sequence[int], rank: int) -> int:
    """Return the number of channels. Raises an error if the shape does not match the format."""
    if data_format not in FORMATS[rank]:
        wanted = " or ".join(map(repr, FORMATS[rank]))
        raise helper.refuse(f"data_format must be {wanted}, got {data_format!r}")
    if len(shape) != rank + 2:
        raise helper.refuse(
            f"expected an input with {rank + 2} axes, {data_format}, got {list(shape)}"
        )
    return shape[-1] if data_format.endswith("C") else shape[1]


Numbers = Sequence[int]

_MAX: dict[int, Callable[..., Tensor]] = {2: functional.max_pool2d, 3: functional.max_pool3d}
_MEAN: dict[int, Callable[..., Tensor]] = {2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _register(type: str, rank: int) -> None:
    @op(type, "X", lod="none")
    def run(
        x: Tensor,
        *,
        pooling_type: str,
        ksize: Numbers,
        strides: Numbers,
        paddings: Numbers | str,
        global_pooling: bool = False,
        ceil_mode: bool = False,
        exclusive: bool = True,
        data_format: str = "NCHW",
    ) -> Tensor:
        """Pool windows. exclusive: whether averages exclude padding."""
        x = channels_first(x, data_format)
        axes = tuple(range(2, 2 + rank))
        if global_pooling:
            out = x.amax(axes, True) if pooling_type == "max" else x.mean(axes, True)
        else:
            sides = window_sides(x, paddings, ksize, strides)
            fit = _widened if ceil_mode else _with_a_window
            sides = fit(x, sides, ksize, strides)
            if pooling_type == "max":
                x = pad_sides(x, sides, torch.finfo(x.dtype).min)
                out = _MAX[rank](x, tuple(ksize), tuple(strides))
            else:
                out = _average(rank, x, sides, ksize, strides, exclusive)
        return channels_last(out, data_format)


def _widened(x: Tensor, sides: Sides, ksize: Numbers, strides: Numbers) -> list[tuple[int, int]]:
    """Return paddings, larger at the end of each axis, so that the last, incomplete window fits."""
    found = []
    for size, (before, after), span, stride in zip(x.shape[2:], sides, ksize, strides, strict=True):
        steps = -(-(size + before + after - span) // stride)
        found.append((before, steps * stride + span - size - before))
    return found


def _with_a_window(
    x: Tensor, sides: Sides, ksize: Numbers, strides: Numbers
) -> list[tuple[int, int]]:
    """Pad the end of an axis that is too short for one window by less than a stride, like Fluid."""
    found = []
    for size, (before, after), span, stride in zip(x.shape[2:], sides, ksize, strides, strict=True):
        lacking = span - size - before - after
        found.append((before, after + lacking if 0 < lacking < stride else after))
    return found


def _average(
    rank: int,
    x: Tensor,
    sides: Sides,
    ksize: Numbers,
    strides: Numbers,
    exclusive: bool,
) -> Tensor:
    means = _MEAN[rank](pad_sides(x, sides), tuple(ksize), tuple(strides))
    if not exclusive or not any(number for pair in sides for number in pair):
        return means
    inside = pad_sides(torch.ones_like(x[:1, :1]), sides)
    return means / _MEAN[rank](inside, tuple(ksize), tuple(strides))


_register("pool2d", 2)
_register("pool3d", 3)


def _spans(size: int, count: int) -> list[tuple[int, int]]:
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


@op("adaptive_pool", "X", lod="none")
def adaptive_pool(x: Tensor, *, ksize: Numbers, pooling_type: str) -> Tensor:
    """Pool with a given number of windows of nearly equal size along each axis."""
    for axis, count in enumerate(ksize, start=2):
        parts = [x.narrow(axis, begin, end - begin) for begin, end in _spans(x.shape[axis], count)]
        if pooling_type == "max":
            parts = [part.amax(axis, keepdim=True) for part in parts]
        else:
            parts = [part.mean(axis, keepdim=True) for part in parts]
        x = torch.cat(parts, axis)
    return x


def _indexed(shape: tuple[int, ...], *, ksize: Numbers) -> list[tuple[int, ...]]:
    return [(*shape[:2], *ksize)] * 2


@op("max_pool_with_index", "X", "Out Mask", lod="none", infer=_indexed)
def max_pool_with_index(x: Tensor, *, ksize: Numbers) -> list[Tensor]:
    """Return the maximum of each adaptive window, and its flat index in the image: int32."""
    pool = (
        functional.adaptive_max_pool2d_with_indices
        if len(ksize) == 2
        else functional.adaptive_max_pool3d_with_indices
    )
    values, places = pool(x, tuple(ksize))  # type: ignore[arg-type]
    return [values, places.int()]


def _pool(helper: LayerHelper, input: Variable, rank: int, settings: dict[str, Any]) -> Variable:
    data_format, kind = settings["data_format"], settings["pool_type"]
    check_format(helper, data_format, helper.check_input(input).shape, rank)
    size, is_global = settings["pool_size"], settings["global_pooling"]
    if kind not in ("max", "avg"):
        raise helper.refuse(f"pool_type must be 'max' or 'avg', got {kind!r}")
    if not is_global and size == -1:
        raise helper.refuse("pool_size must be given unless global_pooling is True")
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


def _pool_layer(rank: int, shape: str) -> Callable[..., Variable]:
    @layer
    @named(f"pool{rank}d", f"Return the maximum or average of each window of {shape}.")
    def pool(
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
        data_format: str = FORMATS[rank][0],
    ) -> Variable:
        del use_cudnn
        settings = dict(locals())
        return _pool(LayerHelper(f"pool{rank}d", name), input, rank, settings)

    return pool


pool2d = _pool_layer(2, "images [N, C, H, W]")
pool3d = _pool_layer(3, "volumes [N, C, D, H, W]")


def _adaptive(
    helper: LayerHelper, input: Variable, rank: int, size: Span, kind: str, require_index: bool
) -> Variable | tuple[Variable, Variable]:
    if kind not in ("max", "avg") or (require_index and kind == "avg"):
        raise helper.refuse(
            f"pool_type must be 'max' or 'avg', and only 'max' with require_index, got {kind!r}"
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


def _adaptive_pool_layer(rank: int, doc: str) -> Callable[..., Any]:
    @layer
    @named(f"adaptive_pool{rank}d", doc)
    def adaptive_pool(
        input: Variable,
        pool_size: Span,
        pool_type: str = "max",
        require_index: bool = False,
        name: str | None = None,
    ) -> Variable | tuple[Variable, Variable]:
        kind = f"max_pool{rank}d_with_index" if pool_type == "max" else f"pool{rank}d"
        return _adaptive(LayerHelper(kind, name), input, rank, pool_size, pool_type, require_index)

    return adaptive_pool


adaptive_pool2d = _adaptive_pool_layer(
    2, "Pool with pool_size windows of nearly equal size; with require_index, also return argmax."
)
adaptive_pool3d = _adaptive_pool_layer(3, "Pool volumes adaptively; see `adaptive_pool2d`.")
