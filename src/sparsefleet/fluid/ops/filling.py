"""Tensors out of nothing: constants, and first values of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("fill_constant", "", lod="none")
def fill_constant(
    *, shape: Sequence[int], value: float, dtype: str = "float32", device: str = "cpu"
) -> Tensor:
    return torch.full(tuple(shape), value, dtype=getattr(torch, dtype), device=device)


@op("fill_constant_batch_size_like", "Input", lod="none")
def fill_constant_batch_size_like(
    like: Tensor,
    *,
    shape: Sequence[int],
    value: float,
    dtype: str = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
) -> Tensor:
    sizes = list(shape)
    sizes[output_dim_idx] = like.shape[input_dim_idx]
    return torch.full(sizes, value, dtype=getattr(torch, dtype), device=like.device)


@op("fill_zeros_like", "X")
def fill_zeros_like(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


@op("assign_value", "", lod="none")
def assign_value(
    *, shape: Sequence[int], values: Sequence[Any], dtype: str = "float32", device: str = "cpu"
) -> Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype), device=device).reshape(tuple(shape))


@op("uniform_random", "", lod="none")
def uniform_random(
    *,
    shape: Sequence[int],
    min: float = -1.0,
    max: float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    made = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
    return made.uniform_(min, max, generator=generator)


@op("gaussian_random", "", lod="none")
def gaussian_random(
    *,
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    made = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
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
