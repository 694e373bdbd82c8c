"""Averages of parameters over steps, for use in evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import (
    Parameter,
    Program,
    Variable,
    default_main_program,
    program_guard,
    unique_name,
)
from sparsefleet.fluid.operators.layer_helper import LayerHelper

__all__ = ["ExponentialMovingAverage", "ModelAverage", "plain_parameters"]


def plain_parameters(program: Program, user: str) -> list[Parameter]:
    """Return all parameters of a program. Raises ConfigError if one is in a table."""
    found = program.global_block().all_parameters()
    for parameter in found:
        if parameter.is_table:
            raise ConfigError(
                f"{user} needs all rows of '{parameter.name}' in every step, but it is an "
                "embedding with is_sparse=True; use is_sparse=False"
            )
    return found


class _Average(ABC):
    """Base class for averages: builds programs that replace parameters with averages and restore
    them.
    """

    def __init__(self, every: Sequence[Parameter]) -> None:
        parameters = [one for one in every if one.do_model_average is not False]
        self._parameters = parameters
        self._kept = {
            parameter.name: unique_name.generate(f"{parameter.name}.before_average")
            for parameter in parameters
        }
        self.apply_program, self.restore_program = Program(), Program()

    def _build(self) -> None:
        with program_guard(self.apply_program, Program()):
            helper = LayerHelper("average")
            for parameter in self._parameters:
                here, kept = (_kept_here(parameter, name) for name in self._names_of(parameter))
                helper.add("assign", {"X": here}, out=kept)
                self._apply_to(helper, parameter, here)
        with program_guard(self.restore_program, Program()):
            helper = LayerHelper("average")
            for parameter in self._parameters:
                here, kept = (_kept_here(parameter, name) for name in self._names_of(parameter))
                helper.add("assign", {"X": kept}, out=here)

    def _names_of(self, parameter: Parameter) -> tuple[str, str]:
        return parameter.name, self._kept[parameter.name]

    @abstractmethod
    def _apply_to(self, helper: LayerHelper, parameter: Parameter, out: Variable) -> None:
        """Add operators that write a parameter's average to `out`."""

    @contextmanager
    def apply(self, executor: Any, need_restore: bool = True) -> Iterator[None]:
        """Replace the parameters with averages within the `with` block.

        With need_restore, the parameters are restored afterwards.
        """
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Any) -> None:
        """Restore the parameters to their values before `apply`."""
        executor.run(self.restore_program)


class ExponentialMovingAverage(_Average):
    """Maintains average = decay * average + (1 - decay) * parameter in each step.

    thres_steps: a float32[1] variable with the number of steps; limits the decay to (1 + steps) /
    (10 + steps). As in Fluid, an int64 variable has no effect.

    Call `update` after minimize. As in Fluid, `apply` corrects the averages in place for starting
    at 0, so call it only once, after training, not between steps.
    """

    def __init__(
        self, decay: float = 0.999, thres_steps: Variable | None = None, name: str | None = None
    ) -> None:
        program = default_main_program()
        super().__init__(plain_parameters(program, type(self).__name__))
        helper = LayerHelper("moving_average")
        prefix = name or ""
        self._decay = helper.create_state("scheduled_ema_decay_rate", [1], "float32", decay)
        if thres_steps is not None:
            with program.role_guard("schedule"):
                helper.add(
                    "scheduled_average_decay",
                    {"Steps": thres_steps},
                    {"decay": float(decay)},
                    out=self._decay,
                )
        self._averages = {
            parameter.name: helper.create_state(
                unique_name.generate(f"{prefix}{parameter.name}_ema"),
                parameter.shape,
                parameter.dtype,
            )
            for parameter in self._parameters
        }
        self._step = helper.create_state("@EMA_STEP_COUNTER@", [1], "int64")
        self._build()

    def update(self) -> None:
        """Add operators that update the averages in each run."""
        program = default_main_program()
        helper = LayerHelper("moving_average")
        with program.role_guard("optimize"):
            helper.append_op("increment", {"X": self._step}, {"Out": self._step}, {"step": 1.0})
            for parameter in self._parameters:
                average = self._averages[parameter.name]
                inputs = {"Average": average, "Param": parameter, "Decay": self._decay}
                helper.append_op("moving_average", inputs, {"AverageOut": average})

    def _apply_to(self, helper: LayerHelper, parameter: Parameter, out: Variable) -> None:
        average, decay, step = (
            _kept_here(variable, variable.name)
            for variable in (self._averages[parameter.name], self._decay, self._step)
        )
        inputs = {"Average": average, "Decay": decay, "Step": step}
        helper.append_op("unbiased_average", inputs, {"AverageOut": average})
        helper.add("assign", {"X": average}, out=out)


class ModelAverage(_Average):
    """Averages parameters over the most recent steps.

    average_window_rate: the window size as a fraction of the completed steps, limited to
        min_average_window..max_average_window.

    Create this object after minimize.
    """

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: Any = None,
        name: str | None = None,
    ) -> None:
        del regularization, name
        program = default_main_program()
        super().__init__(plain_parameters(program, type(self).__name__))
        self._sums: dict[str, dict[str, Variable]] = {}
        attrs = {
            "average_window": average_window_rate,
            "min_average_window": min_average_window,
            "max_average_window": max_average_window,
        }
        helper = LayerHelper("average_accumulate")
        with program.role_guard("optimize"):
            for parameter in self._parameters:
                sums = self._sums[parameter.name] = _accumulators(helper, parameter)
                outputs = {"SumOut": list(sums.values())}
                inputs = {"Param": parameter, **sums}
                helper.append_op("average_accumulates", inputs, outputs, attrs)
        self._build()

    def _apply_to(self, helper: LayerHelper, parameter: Parameter, out: Variable) -> None:
        sums = {
            slot: _kept_here(variable, variable.name)
            for slot, variable in self._sums[parameter.name].items()
        }
        total = helper.add("sum", {"X": [sums["Sum1"], sums["Sum2"], sums["Sum3"]]})
        counts = [sums["NumAccumulates"], sums["OldNumAccumulates"]]
        count = helper.add("sum", {"X": counts}, dtype="int64")
        divisor = helper.add("cast", {"X": count}, {"out_dtype": parameter.dtype})
        helper.add("elementwise_div", {"X": total, "Y": divisor}, {"axis": -1}, out=out)


def _accumulators(helper: LayerHelper, parameter: Parameter) -> dict[str, Variable]:
    """Return the variables of `average_accumulates` by slot, with Fluid's names."""
    sums = {"Sum1": "sum_1", "Sum2": "sum_2", "Sum3": "sum_3"}
    counts = {
        "NumAccumulates": "num_accumulates",
        "OldNumAccumulates": "old_num_accumulates",
        "NumUpdates": "num_updates",
    }
    made = {}
    for slot, name in {**sums, **counts}.items():
        shape, dtype = (parameter.shape, parameter.dtype) if slot in sums else ((1,), "int64")
        made[slot] = helper.create_state(
            unique_name.generate(f"{parameter.name}_{name}"), shape, dtype
        )
    return made


def _kept_here(like: Variable, name: str) -> Variable:
    """Create a persistent variable in the default program."""
    block = default_main_program().global_block()
    return block.create_var(name, like.shape, like.dtype, persistable=True, stop_gradient=True)
