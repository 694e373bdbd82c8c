"""Learning rates that follow the number of steps, which is kept in the scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

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

_COUNTER = "@LR_DECAY_COUNTER@"


def _decay_step_counter(begin: int = 0) -> Variable:
    """Steps done, counted once a run whatever number of schedules there are: float32[1].

    Public programs write schedules of their own with it.
    """
    counter = autoincreased_step_counter(_COUNTER, begin)
    helper = LayerHelper("cast")
    with helper.main_program.role_guard("schedule"):
        return helper.add("cast", {"X": counter}, {"out_dtype": "float32"})


@layer
def autoincreased_step_counter(
    counter_name: str | None = None, begin: int = 1, step: int = 1
) -> Variable:
    """A number that is `begin` in the first run and larger by `step` in each: int64[1]."""
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
    step = autoincreased_step_counter(_COUNTER, begin)
    helper = LayerHelper(type)
    with helper.main_program.role_guard("schedule"):
        rate = helper.add(type, {"Step": step, **(inputs or {})}, attrs)
    rate.stop_gradient = True
    return rate


@layer
def exponential_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """learning_rate * decay_rate ** (step / decay_steps); staircase: of whole numbers."""
    return _schedule(
        "exponential_decay",
        learning_rate=learning_rate,
        decay_steps=decay_steps,
        decay_rate=decay_rate,
        staircase=staircase,
    )


@layer
def natural_exp_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """learning_rate * exp(-decay_rate * step / decay_steps)."""
    return _schedule(
        "natural_exp_decay",
        learning_rate=learning_rate,
        decay_steps=decay_steps,
        decay_rate=decay_rate,
        staircase=staircase,
    )


@layer
def inverse_time_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """learning_rate / (1 + decay_rate * step / decay_steps)."""
    return _schedule(
        "inverse_time_decay",
        learning_rate=learning_rate,
        decay_steps=decay_steps,
        decay_rate=decay_rate,
        staircase=staircase,
    )


@layer
def polynomial_decay(
    learning_rate: float,
    decay_steps: float,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """From learning_rate to end_learning_rate within decay_steps; cycle: again and again."""
    return _schedule(
        "polynomial_decay",
        learning_rate=learning_rate,
        decay_steps=decay_steps,
        end_learning_rate=end_learning_rate,
        power=power,
        cycle=cycle,
    )


@layer
def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Variable:
    """values[0] before step boundaries[0], and so on."""
    if len(values) != len(boundaries) + 1:
        raise LayerHelper("piecewise_decay").refuse(
            f"{len(values)} values for {len(boundaries)} boundaries: wanted one more"
        )
    return _schedule("piecewise_decay", boundaries=list(boundaries), values=list(values))


@layer
def noam_decay(d_model: float, warmup_steps: float, learning_rate: float = 1.0) -> Variable:
    """Up for warmup_steps, then down by the root of the step (Vaswani et al. 2017)."""
    return _schedule(
        "noam_decay",
        begin=1,
        d_model=d_model,
        warmup_steps=warmup_steps,
        learning_rate=learning_rate,
    )


@layer
def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Variable:
    """Half a cosine over the epochs."""
    return _schedule(
        "cosine_decay", learning_rate=learning_rate, step_each_epoch=step_each_epoch, epochs=epochs
    )


@layer
def linear_lr_warmup(
    learning_rate: float | Variable, warmup_steps: int, start_lr: float, end_lr: float
) -> Variable:
    """From start_lr to end_lr in warmup_steps, then learning_rate."""
    attrs: dict[str, Any] = {"warmup_steps": warmup_steps, "start_lr": start_lr, "end_lr": end_lr}
    if isinstance(learning_rate, Variable):
        return _schedule("linear_lr_warmup", inputs={"Rate": learning_rate}, **attrs)
    return _schedule("linear_lr_warmup", learning_rate=learning_rate, **attrs)
