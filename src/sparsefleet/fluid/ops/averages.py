"""Means of what parameters were over the steps of a training, in place."""

from __future__ import annotations

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor

_MOST_IN_A_SUM = 16384  # then a new sum is begun, so that small numbers are not lost in a large one


@op(
    "average_accumulates",
    "Param Sum1 Sum2 Sum3 NumAccumulates OldNumAccumulates NumUpdates",
    "SumOut",
    lod="none",
    in_place=True,
)
@torch.no_grad()
def average_accumulates(
    param: Tensor,
    sum_1: Tensor,
    sum_2: Tensor,
    sum_3: Tensor,
    count: Tensor,
    old_count: Tensor,
    updates: Tensor,
    *,
    average_window: float,
    min_average_window: int,
    max_average_window: int,
) -> None:
    """Adds the parameter to sum_1, those added before to sum_2; a full window becomes sum_3."""
    updates.add_(1)
    count.add_(1)
    sum_1.add_(param.data)
    if int(updates) % _MOST_IN_A_SUM == 0:
        sum_2.add_(sum_1)
        sum_1.zero_()
    window = min(max_average_window, int(int(updates) * average_window))
    if int(count) >= max(min_average_window, window):
        sum_3.copy_(sum_1 + sum_2)
        sum_1.zero_()
        sum_2.zero_()
        old_count.copy_(count)
        count.zero_()


@op("moving_average", "Average Param Decay", "AverageOut", lod="none", in_place=True)
@torch.no_grad()
def moving_average(average: Tensor, param: Tensor, decay: Tensor) -> None:
    average.mul_(decay).add_(param.data * (1 - decay))


@op("unbiased_average", "Average Decay Step", "AverageOut", lod="none", in_place=True)
@torch.no_grad()
def unbiased_average(average: Tensor, decay: Tensor, step: Tensor) -> None:
    """Without the 0 that the average began with."""
    if int(step) > 0:
        average.div_(1 - decay ** step.float())


@op("lookahead", "Param Slow Step K Alpha", "ParamOut", lod="none", in_place=True)
@torch.no_grad()
def lookahead(param: Tensor, slow: Tensor, step: Tensor, k: Tensor, alpha: Tensor) -> None:
    """Every k steps the slow value goes a part of the way to the parameter, which follows it."""
    if int(step) % int(k) == 0:
        slow.copy_(param.data * alpha + slow * (1 - alpha))
        param.data.copy_(slow)


@op("scheduled_average_decay", "Steps", lod="none")
def scheduled_average_decay(steps: Tensor, *, decay: float) -> Tensor:
    """The decay, smaller in the first steps; of whole numbers Fluid's quotient has no effect."""
    if not steps.is_floating_point():
        return torch.full(steps.shape, decay, device=steps.device)
    return ((steps + 1.0) / (steps + 10.0)).clamp(max=decay)
