"""Learning-rate schedules based on the step count, which is kept in the scope."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable, in_dygraph_mode
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

__all__ = [
    "autoincreased_step_counter",
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
]

Tensor = torch.Tensor
Formula = Callable[..., Tensor]


def _rate(type: str, inputs: str = "Step") -> Callable[[Formula], Formula]:
    """Register a formula, computed in double precision, as a schedule operator, which rounds the
    result to the nearest float32.
    """

    def register(function: Formula) -> Formula:
        @op(type, inputs, lod="none")
        @functools.wraps(function)
        def run(*args: Any, **settings: Any) -> Tensor:
            return function(*args, **settings).float()

        return function

    return register


@_rate("exponential_decay")
def exponential_decay_op(
    step: Tensor, *, learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool
) -> Tensor:
    return learning_rate * decay_rate ** _periods(step, decay_steps, staircase)


def _periods(step: Tensor, decay_steps: float, staircase: bool) -> Tensor:
    periods = step.double() / decay_steps
    return periods.floor() if staircase else periods


@_rate("natural_exp_decay")
def natural_exp_decay_op(
    step: Tensor, *, learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool
) -> Tensor:
    return learning_rate * torch.exp(-decay_rate * _periods(step, decay_steps, staircase))


@_rate("inverse_time_decay")
def inverse_time_decay_op(
    step: Tensor, *, learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool
) -> Tensor:
    return learning_rate / (1 + decay_rate * _periods(step, decay_steps, staircase))


@_rate("polynomial_decay")
def polynomial_decay_op(
    step: Tensor,
    *,
    learning_rate: float,
    decay_steps: float,
    end_learning_rate: float,
    power: float,
    cycle: bool,
) -> Tensor:
    done = step.double()
    if cycle:
        span = decay_steps * (done / decay_steps).ceil().clamp(min=1.0)
    else:
        span, done = torch.full_like(done, decay_steps), done.clamp(max=decay_steps)
    return (learning_rate - end_learning_rate) * (1 - done / span) ** power + end_learning_rate


@_rate("piecewise_decay")
def piecewise_decay_op(step: Tensor, *, boundaries: list[int], values: list[float]) -> Tensor:
    edges = torch.tensor(boundaries, device=step.device)
    found = torch.tensor(values, device=step.device)
    return found[torch.bucketize(step, edges, right=True)]


@_rate("noam_decay")
def noam_decay_op(
    step: Tensor, *, learning_rate: float, d_model: float, warmup_steps: float
) -> Tensor:
    done = step.double()
    least = torch.minimum(done**-0.5, done * warmup_steps**-1.5)
    return torch.mul(least, learning_rate * d_model**-0.5)


@_rate("cosine_decay")
def cosine_decay_op(
    step: Tensor, *, learning_rate: float, step_each_epoch: int, epochs: int
) -> Tensor:
    epoch = (step.double() / step_each_epoch).floor()
    return learning_rate * 0.5 * (torch.cos(epoch * math.pi / epochs) + 1)


@_rate("linear_lr_warmup", "Step Rate?")
def linear_lr_warmup_op(
    step: Tensor,
    rate: Tensor | None,
    *,
    learning_rate: float = 0.0,
    warmup_steps: int,
    start_lr: float,
    end_lr: float,
) -> Tensor:
    done = step.double()
    after = torch.full_like(done, learning_rate) if rate is None else rate
    return torch.where(
        done < warmup_steps, start_lr + (end_lr - start_lr) * done / warmup_steps, after
    )


def _of_rate(step: Any, rate: Any, **settings: Any) -> list[Any]:
    del step, settings
    return [rate]


@op("adam_rate", "Step Rate", lod="none", infer=_of_rate)
def adam_rate(step: Tensor, rate: Tensor, *, beta2: float, beta1: float = 0.0) -> Tensor:
    """Return Adam's learning rate for a step, counted from 1, with the bias correction for beta2
    only.

    The correction for beta1 is omitted. It is large in the first steps and fades while the gradient
    of a row takes effect, so a row with a gradient in every step would move too far, by 27 times
    the rate in total. beta1: accepted because older saved programs contain it.
    """
    del beta1
    return (rate * torch.sqrt(1 - beta2 ** step.double())).to(rate.dtype)


_COUNTER = "@LR_DECAY_COUNTER@"


def _decay_step_counter(begin: int = 0) -> Variable:
    """Return the number of completed steps, counted once per run for all schedules: float32[1].

    Public programs use this to write their own schedules.
    """
    counter = autoincreased_step_counter(_COUNTER, begin)
    helper = LayerHelper("cast")
    with helper.main_program.role_guard("schedule"):
        return helper.add("cast", {"X": counter}, {"out_dtype": "float32"})


@layer
def autoincreased_step_counter(
    counter_name: str | None = None, begin: int = 1, step: int = 1
) -> Variable:
    """Return a counter that starts at `begin` and increases by `step` in each run: int64[1]."""
    name = "@STEP_COUNTER@" if counter_name is None else counter_name
    helper = LayerHelper("global_step_counter")
    block = helper.main_program.global_block()
    if block.has_var(name):
        return block.var(name)
    counter = helper.create_state(name, [1], "int64", begin - 1)
    with helper.main_program.role_guard("schedule"):
        helper.append_op("increment", {"X": counter}, {"Out": counter}, {"step": float(step)})
    return counter


def _schedule(
    type: str, begin: int = 0, inputs: dict[str, Variable] | None = None, **attrs: Any
) -> Variable:
    if in_dygraph_mode():
        made: Variable = _eager_schedule(type, **attrs)
        return made
    step = autoincreased_step_counter(_COUNTER, begin)
    helper = LayerHelper(type)
    with helper.main_program.role_guard("schedule"):
        rate = helper.add(type, {"Step": step, **(inputs or {})}, attrs)
    rate.stop_gradient = True
    return rate


def _eager_schedule(type: str, **attrs: Any) -> Any:
    """Return the schedule, for imperative mode, as an object that counts the optimizer's steps."""
    from sparsefleet.fluid.dygraph import schedules

    kind = getattr(schedules, type.title().replace("_", ""))
    return kind(**attrs, begin=0) if kind is schedules.PiecewiseDecay else kind(**attrs)


@layer
def exponential_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """Return learning_rate * decay_rate ** (step / decay_steps).

    With `staircase`, the quotient is rounded down.
    """
    return _schedule("exponential_decay", **locals())


@layer
def natural_exp_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """Return learning_rate * exp(-decay_rate * step / decay_steps)."""
    return _schedule("natural_exp_decay", **locals())


@layer
def inverse_time_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """Return learning_rate / (1 + decay_rate * step / decay_steps)."""
    return _schedule("inverse_time_decay", **locals())


@layer
def polynomial_decay(
    learning_rate: float,
    decay_steps: float,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """Decay the rate from learning_rate to end_learning_rate over decay_steps, repeatedly with
    `cycle`.
    """
    return _schedule("polynomial_decay", **locals())


@layer
def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Variable:
    """Use values[0] before step boundaries[0], values[1] before boundaries[1], and so on."""
    if len(values) != len(boundaries) + 1:
        raise LayerHelper("piecewise_decay").refuse(
            f"got {len(values)} values for {len(boundaries)} boundaries, expected one more value "
            "than boundaries"
        )
    return _schedule("piecewise_decay", boundaries=list(boundaries), values=list(values))


@layer
def noam_decay(d_model: float, warmup_steps: float, learning_rate: float = 1.0) -> Variable:
    """Increase the rate for warmup_steps, then decay it as 1 / sqrt(step) (Vaswani et al. 2017)."""
    return _schedule("noam_decay", begin=1, **locals())


@layer
def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Variable:
    """Decay the rate over the epochs along half a cosine wave."""
    return _schedule("cosine_decay", **locals())


@layer
def linear_lr_warmup(
    learning_rate: float | Variable, warmup_steps: int, start_lr: float, end_lr: float
) -> Variable:
    """Increase the rate from start_lr to end_lr over warmup_steps, then use learning_rate."""
    attrs: dict[str, Any] = {"warmup_steps": warmup_steps, "start_lr": start_lr, "end_lr": end_lr}
    if isinstance(learning_rate, Variable):
        return _schedule("linear_lr_warmup", inputs={"Rate": learning_rate}, **attrs)
    return _schedule("linear_lr_warmup", learning_rate=learning_rate, **attrs)
