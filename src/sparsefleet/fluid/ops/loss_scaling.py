"""The scale of a loss that follows whether gradients stay finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sparsefleet.collective.loss_scaler import LossScaler
from sparsefleet.collective.strategy import AmpConfig
from sparsefleet.fluid.lowering.registry import Shape, op

Tensor = torch.Tensor


def _one(*shapes: Any, **settings: Any) -> list[Shape]:
    del shapes, settings
    return [(1,)]


def _no_shapes(*shapes: Any, **settings: Any) -> list[Shape]:
    del shapes, settings
    return []


@op("gradients_are_finite", "X*", lod="none", infer=_one)
def gradients_are_finite(gradients: list[Any]) -> Tensor:
    """Whether all elements of all gradients, and rows for tables, are numbers: bool[1]."""
    return torch.tensor([all(map(_is_finite, gradients))])


def _is_finite(gradient: Any) -> bool:
    if gradient is None:
        return True
    if isinstance(gradient, tuple):
        return bool(np.isfinite(gradient[1]).all())
    return bool(torch.isfinite(gradient).all())


@op("keep_if", "X Condition", lod="none", infer=_no_shapes)
def keep_if(gradient: Any, condition: Tensor) -> Any:
    """The gradient, or None: then nothing is updated."""
    return gradient if bool(condition) else None


@op(
    "update_loss_scaling",
    "Finite LossScaling GoodSteps BadSteps",
    "LossScaling GoodSteps BadSteps",
    lod="none",
    has_effect=True,
)
def update_loss_scaling(
    finite: Tensor,
    scale: Tensor,
    good: Tensor,
    bad: Tensor,
    *,
    incr_every_n_steps: int,
    decr_every_n_nan_or_inf: int,
    incr_ratio: float,
    decr_ratio: float,
) -> list[Tensor]:
    """The scale and counters after a step; see `LossScaler`."""
    if finite.is_meta:
        return [scale, good, bad]
    scaler = LossScaler(
        AmpConfig(
            incr_every_n_steps=incr_every_n_steps,
            decr_every_n_nan_or_inf=decr_every_n_nan_or_inf,
            incr_ratio=incr_ratio,
            decr_ratio=decr_ratio,
        )
    )
    scaler.load_state_dict(
        {"loss_scaling": float(scale), "num_good_steps": int(good), "num_bad_steps": int(bad)}
    )
    scaler.update(is_finite=bool(finite))
    numbers = (scaler.scale, scaler.good_steps, scaler.bad_steps)
    return [torch.full_like(x, y) for x, y in zip((scale, good, bad), numbers, strict=True)]
