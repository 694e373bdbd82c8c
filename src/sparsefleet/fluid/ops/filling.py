"""Tensors out of nothing: constants, and first values of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.ops.sizes import open_sizes, run_sizes

Tensor = torch.Tensor


def _given_shape(whole: Shape | None, *others: Any, **settings: Any) -> list[Shape]:
    del others
    return [tuple(open_sizes(settings["shape"], whole, settings.get("shape_places", ())))]


@op(
    "fill_constant",
    "ShapeTensor? ShapeTensorList* ValueTensor?",
    lod="none",
    infer=_given_shape,
)
def fill_constant(
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    value_tensor: Tensor | None,
    *,
    shape: Sequence[int],
    shape_places: Sequence[int] = (),
    value: float = 0.0,
    dtype: str = "float32",
) -> Tensor:
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    kind = getattr(torch, dtype)
    if value_tensor is not None:
        return value_tensor.reshape(()).to(kind).expand(sizes).clone()
    return torch.full(sizes, value, dtype=kind)


@op("fill_constant_batch_size_like", "Input", lod="function")
def fill_constant_batch_size_like(
    like: Tensor,
    *,
    shape: Sequence[int],
    value: float,
    dtype: str = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    lods: list[Any] | None = None,
) -> Any:
    sizes = sizes_like(like, lods, shape, input_dim_idx, output_dim_idx)
    made = torch.full(sizes, value, dtype=getattr(torch, dtype), device=like.device)
    return made if lods is None else (made, ())


def sizes_like(
    like: Tensor,
    lods: list[Any] | None,
    shape: Sequence[int],
    input_dim_idx: int,
    output_dim_idx: int,
) -> list[int]:
    """The shape with one size of `like`, whose batch is that of its sequences if it has any."""
    sizes = list(shape)
    by_sequence = input_dim_idx == 0 and lods and lods[0]
    sizes[output_dim_idx] = len(lods[0][-1]) - 1 if by_sequence else like.shape[input_dim_idx]  # type: ignore[index]
    return sizes


@op("fill_zeros_like", "X")
def fill_zeros_like(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


@op("assign_value", "", lod="none")
def assign_value(
    *, shape: Sequence[int], values: Sequence[Any], dtype: str = "float32", device: str = "cpu"
) -> Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype), device=device).reshape(tuple(shape))


@op("uniform_random", "ShapeTensor? ShapeTensorList*", lod="none", infer=_given_shape)
def uniform_random(
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    shape: Sequence[int],
    shape_places: Sequence[int] = (),
    min: float = -1.0,
    max: float = 1.0,
    diag_num: int = 0,
    diag_step: int = 0,
    diag_val: float = 1.0,
    dtype: str = "float32",
    generator: torch.Generator | None = None,
) -> Tensor:
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    made = torch.empty(sizes, dtype=getattr(torch, dtype))
    made.uniform_(min, max, generator=generator)
    made.view(-1)[: diag_num * (diag_step + 1) : diag_step + 1] = diag_val
    return made


@op("gaussian_random", "ShapeTensor? ShapeTensorList*", lod="none", infer=_given_shape)
def gaussian_random(
    shape_tensor: Tensor | None,
    parts: list[Tensor],
    *,
    shape: Sequence[int],
    shape_places: Sequence[int] = (),
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    generator: torch.Generator | None = None,
) -> Tensor:
    sizes = run_sizes(shape, shape_tensor, parts, shape_places)
    made = torch.empty(sizes, dtype=getattr(torch, dtype))
    return made.normal_(mean, std, generator=generator)


@op("truncated_gaussian_random", "", lod="none")
def truncated_gaussian_random(
    *,
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Within two deviations of the mean."""
    made = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
    if made.is_meta or std == 0.0:
        return made if made.is_meta else made.fill_(mean)
    return torch.nn.init.trunc_normal_(
        made, mean, std, mean - 2 * std, mean + 2 * std, generator=generator
    )
