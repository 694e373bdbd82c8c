"""Learning rates of a number of steps done, float32[1]."""

from __future__ import annotations

import math

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("exponential_decay", "Step", lod="none")
def exponential_decay(
    step: Tensor, *, learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool
) -> Tensor:
    return learning_rate * decay_rate ** _periods(step, decay_steps, staircase)


def _periods(step: Tensor, decay_steps: float, staircase: bool) -> Tensor:
    periods = step.float() / decay_steps
    return periods.floor() if staircase else periods


@op("natural_exp_decay", "Step", lod="none")
def natural_exp_decay(
    step: Tensor, *, learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool
) -> Tensor:
    return learning_rate * torch.exp(-decay_rate * _periods(step, decay_steps, staircase))


@op("inverse_time_decay", "Step", lod="none")
def inverse_time_decay(
    step: Tensor, *, learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool
) -> Tensor:
    return learning_rate / (1 + decay_rate * _periods(step, decay_steps, staircase))


@op("polynomial_decay", "Step", lod="none")
def polynomial_decay(
    step: Tensor,
    *,
    learning_rate: float,
    decay_steps: float,
    end_learning_rate: float,
    power: float,
    cycle: bool,
) -> Tensor:
    done = step.float()
    if cycle:
        span = decay_steps * (done / decay_steps).ceil().clamp(min=1.0)
    else:
        span, done = torch.full_like(done, decay_steps), done.clamp(max=decay_steps)
    return (learning_rate - end_learning_rate) * (1 - done / span) ** power + end_learning_rate


@op("piecewise_decay", "Step", lod="none")
def piecewise_decay(step: Tensor, *, boundaries: list[int], values: list[float]) -> Tensor:
    edges = torch.tensor(boundaries, device=step.device)
    found = torch.tensor(values, device=step.device)
    return found[torch.bucketize(step, edges, right=True)]


@op("noam_decay", "Step", lod="none")
def noam_decay(
    step: Tensor, *, learning_rate: float, d_model: float, warmup_steps: float
) -> Tensor:
    done = step.float()
    least = torch.minimum(done**-0.5, done * warmup_steps**-1.5)
    return torch.mul(least, learning_rate * d_model**-0.5)


@op("cosine_decay", "Step", lod="none")
def cosine_decay(
    step: Tensor, *, learning_rate: float, step_each_epoch: int, epochs: int
) -> Tensor:
    epoch = (step.float() / step_each_epoch).floor()
    return learning_rate * 0.5 * (torch.cos(epoch * math.pi / epochs) + 1)


@op("linear_lr_warmup", "Step Rate?", lod="none")
def linear_lr_warmup(
    step: Tensor,
    rate: Tensor | None,
    *,
    learning_rate: float = 0.0,
    warmup_steps: int,
    start_lr: float,
    end_lr: float,
) -> Tensor:
    done = step.float()
    after = torch.full_like(done, learning_rate) if rate is None else rate
    return torch.where(
        done < warmup_steps, start_lr + (end_lr - start_lr) * done / warmup_steps, after
    )


@op("adam_rate", "Step Rate", lod="none")
def adam_rate(step: Tensor, rate: Tensor, *, beta1: float, beta2: float) -> Tensor:
    """The rate of a step from 1, corrected for moments that have begun at zero."""
    done = step.double()
    return (rate * torch.sqrt(1 - beta2**done) / (1 - beta1**done)).to(rate.dtype)
