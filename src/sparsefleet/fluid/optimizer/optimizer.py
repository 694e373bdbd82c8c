"""The base class for all optimizers: backward pass, clipping, weight decay and updates."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.framework import (
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    in_dygraph_mode,
    program_guard,
    unique_name,
)
from sparsefleet.fluid.framework.param_attr import Regularizer
from sparsefleet.fluid.operators.layer_helper import LayerHelper, make_plain
from sparsefleet.fluid.optimizer.backward import append_backward, computed_gradients
from sparsefleet.fluid.optimizer.clip import (
    GradientClipBase,
    append_gradient_clip_ops,
    derived_gradient,
)

__all__ = ["Optimizer"]

Pairs = list[tuple[Parameter, Variable]]


class Optimizer:
    """Base class for all optimizers; use one of its subclasses.

    learning_rate: a number, or a variable such as one from a schedule.
    regularization: for parameters that do not have their own regularizer.
    grad_clip: overrides `set_gradient_clip` and ParamAttr.
    """

    type = ""
    """The operator that updates a parameter."""
    accumulators: tuple[tuple[str, str, float], ...] = ()
    """The operator slot, name and initial value of each of a parameter's state variables."""

    def __init__(
        self,
        learning_rate: Any,
        parameter_list: Sequence[Variable | str] | None = None,
        regularization: Regularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(learning_rate, (int, float, Variable)) and not callable(learning_rate):
            raise TypeError(f"learning_rate must be a number or a Variable, got {learning_rate!r}")
        if grad_clip is not None and not isinstance(grad_clip, GradientClipBase):
            raise TypeError(f"grad_clip must be a fluid.clip object, got {grad_clip!r}")
        self._rate = learning_rate
        self._parameter_list = parameter_list
        self.regularization = regularization
        self._grad_clip = grad_clip
        self._name = name
        self._settings: dict[str, Any] = {}
        """The attrs of the update operator."""
        self._rates: dict[Program, Variable] = {}
        self._states: dict[str, Variable] = {}
        """The optimizer's state for parameters in imperative mode, by name."""
        self._rate_of_step: Variable | None = None

    # -- overridden by subclasses ---------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return the attrs of the update operator."""
        return dict(self._settings)

    def settings_of(self, parameter: Parameter) -> dict[str, Any]:
        """Return the attrs of the operator that updates this parameter."""
        del parameter
        return self.settings()

    def table_settings(self) -> dict[str, Any] | None:
        """Return the `sparsefleet.optim` class and its fields for table rows, or None if no class
        fits.
        """
        return None

    def table_rate(self, rate: Variable) -> Variable:
        """Return the learning rate for rows in tables, given the rate for dense parameters."""
        return rate

    def extra_inputs(self) -> dict[str, Variable]:
        """Return those settings that are variables, by the update operator's input slot."""
        return {}

    def first_value(self, name: str, value: float) -> float:
        """Return the initial value of accumulator `name`, given its default."""
        del name
        return value

    # -- the three parts of minimize ------------------------------------------------------------

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Add the backward pass and the updates, so that each run takes a step that reduces the
        loss.
        """
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        if grad_clip is not None:
            self._grad_clip = grad_clip
        return self.apply_optimize(loss, startup_program, pairs), pairs

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Add the backward pass; return parameters and their gradients."""
        del startup_program
        chosen = self._parameter_list if parameter_list is None else parameter_list
        if in_dygraph_mode():
            return computed_gradients(chosen)
        return append_backward(loss, chosen, no_grad_set, callbacks)

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Pairs
    ) -> list[Operator]:
        """Call `apply_gradients` in the loss's program."""
        assert loss.block is not None
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Add the update of each parameter, in the order of their names."""
        if not params_grads:
            warnings.warn(
                "there is nothing to train, because the loss does not depend on any parameter",
                stacklevel=2,
            )
        program = default_main_program()
        pairs = sorted(params_grads, key=lambda pair: pair[0].name)
        with program.role_guard("backward"):
            clip = self._grad_clip.apply if self._grad_clip else append_gradient_clip_ops
            pairs = clip(pairs)
            pairs = [(parameter, self._decayed(parameter, g)) for parameter, g in pairs]
        if callable(self._rate):
            self._rate_of_step = None
        with program.role_guard("optimize"):
            return [self._add_update(parameter, gradient) for parameter, gradient in pairs]

    # -- internals ----------------------------------------------------------------------------

    def _decayed(self, parameter: Parameter, gradient: Variable) -> Variable:
        regularizer = parameter.regularizer or self.regularization
        if regularizer is None or self._in_table(parameter):
            return gradient
        attrs = regularizer.to_json()
        return derived_gradient("decay_gradient", {"Grad": gradient, "Param": parameter}, attrs)

    def _add_update(self, parameter: Parameter, gradient: Variable) -> Operator:
        helper = LayerHelper(self.type)
        inputs: dict[str, Any] = {
            "Param": parameter,
            "Grad": gradient,
            "LearningRate": self._rate_of(parameter),
        }
        if self._in_table(parameter):
            self._describe_table(parameter)
            inputs["LearningRate"] = self.table_rate(inputs["LearningRate"])
            return helper.append_op("push_table", inputs, {"ParamOut": parameter})
        for slot, name, value in self.accumulators:
            inputs[slot] = self._accumulator(helper, parameter, name, value)
        inputs |= self.extra_inputs()
        return helper.append_op(
            self.type, inputs, {"ParamOut": parameter}, self.settings_of(parameter)
        )

    def _accumulator(
        self, helper: LayerHelper, parameter: Parameter, name: str, value: float
    ) -> Variable:
        shape = [1] if name.endswith("pow_acc") else parameter.shape
        first = self.first_value(name, value)
        if in_dygraph_mode():
            known = f"{parameter.name}_{name}_0"
            if known not in self._states:
                self._states[known] = helper.create_state(known, shape, parameter.dtype, first)
            return self._states[known]
        known = unique_name.generate(f"{parameter.name}_{name}")
        return helper.create_state(known, shape, parameter.dtype, first)

    def _in_table(self, parameter: Parameter) -> bool:
        """Return whether the parameter's rows are updated in a table.

        Otherwise, converts it to a single tensor.
        """
        if parameter.is_table and self.table_settings() is None:
            make_plain(default_main_program(), default_startup_program(), parameter.name)
        return parameter.is_table

    def _describe_table(self, parameter: Parameter) -> None:
        settings = dict(self.table_settings() or {})
        regularizer = parameter.regularizer or self.regularization
        if regularizer is not None:
            settings.update(regularizer.to_json())
        if not isinstance(self._rate, Variable):
            settings["lr"] = float(self._rate)
        parameter.table_optimizer = settings
        first = default_startup_program().global_block().vars.get(parameter.name)
        if isinstance(first, Parameter):
            first.table_optimizer = settings
            default_startup_program().changed()

    def _global_learning_rate(self, program: Program | None = None) -> Variable:
        """Return the variable that holds the learning rate."""
        program = program or default_main_program()
        if in_dygraph_mode():
            return self._rate_now()
        if program not in self._rates:
            if isinstance(self._rate, Variable):
                self._rates[program] = self._rate
            else:
                name = unique_name.generate("learning_rate")
                helper = LayerHelper("global_learning_rate", name)
                self._rates[program] = helper.create_state(name, [1], "float32", float(self._rate))
        return self._rates[program]

    @property
    def _learning_rate_map(self) -> dict[Program, Variable]:
        """The variable with the learning rate of each program; scripts also set it."""
        return self._rates

    @property
    def _learning_rate(self) -> Any:
        """The learning rate as it was given."""
        return self._rate

    def _rate_now(self) -> Variable:
        """Return the learning rate of this step in imperative mode."""
        from sparsefleet.fluid.dygraph.eager import to_variable

        if isinstance(self._rate, Variable):
            return self._rate
        if self._rate_of_step is None:
            rate = self._rate() if callable(self._rate) else self._rate
            self._rate_of_step = to_variable(np.array([rate], "float32"))
        return self._rate_of_step

    def current_step_lr(self) -> float:
        """Return the learning rate of the last step in imperative mode."""
        held: Any = self._global_learning_rate()
        return float(held.numpy()[0])

    def set_lr(self, value: float | Variable) -> None:
        """Set the learning rate in imperative mode."""
        if callable(self._rate):
            raise RuntimeError("the learning rate follows a schedule and cannot be set")
        self._rate, self._rate_of_step = value, None

    def clear_gradients(self) -> None:
        """Clear the gradients of all parameters in imperative mode."""
        for parameter in self._parameter_list or ():
            parameter.clear_gradient()  # type: ignore[union-attr]

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state and the schedule's state in imperative mode."""
        found: dict[str, Any] = dict(self._states)
        if hasattr(self._rate, "state_dict"):
            found["LR_Scheduler"] = self._rate.state_dict()
        return found

    def set_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from the result of `state_dict`."""
        from sparsefleet.fluid.dygraph.eager import kept_variable

        if hasattr(self._rate, "set_dict") and "LR_Scheduler" in state_dict:
            self._rate.set_dict(state_dict["LR_Scheduler"])
        for name, value in state_dict.items():
            if name != "LR_Scheduler":
                self._states[name] = kept_variable(name, value)

    set_state_dict = set_dict

    def _rate_of(self, parameter: Parameter) -> Variable:
        rate = self._global_learning_rate()
        factor = parameter.optimize_attr["learning_rate"]
        return rate if factor == 1.0 else rate * float(factor)
