"""What all optimizers do: backward pass, clipping, weight decay, one update a parameter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid import unique_name
from sparsefleet.fluid.backward import append_backward
from sparsefleet.fluid.clip import (
    GradientClipBase,
    append_gradient_clip_ops,
    derived_gradient,
)
from sparsefleet.fluid.framework import (
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from sparsefleet.fluid.layer_helper import LayerHelper, make_plain
from sparsefleet.fluid.regularizer import Regularizer

__all__ = ["Optimizer"]

Pairs = list[tuple[Parameter, Variable]]


class Optimizer:
    """Base of all optimizers. Use one of its classes.

    learning_rate: a number, or a variable such as a schedule gives.
    regularization: for parameters that have none of their own.
    grad_clip: in the place of what `set_gradient_clip` and ParamAttr said.
    """

    type = ""
    """The operator that updates a parameter."""
    accumulators: tuple[tuple[str, str, float], ...] = ()
    """Slot of the operator, name and first value of what is kept for a parameter."""

    def __init__(
        self,
        learning_rate: float | Variable,
        parameter_list: Sequence[Variable | str] | None = None,
        regularization: Regularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(learning_rate, (int, float, Variable)):
            raise TypeError(f"learning_rate must be a number or a Variable, got {learning_rate!r}")
        if grad_clip is not None and not isinstance(grad_clip, GradientClipBase):
            raise TypeError(f"grad_clip must be a fluid.clip object, got {grad_clip!r}")
        self._rate = learning_rate
        self._parameter_list = parameter_list
        self.regularization = regularization
        self._grad_clip = grad_clip
        self._name = name
        self._rates: dict[Program, Variable] = {}

    # -- what kinds differ in -----------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Attrs of the operator."""
        return {}

    def table_settings(self) -> dict[str, Any] | None:
        """The `sparsefleet.optim` class and fields that do the same to rows; None if none does."""
        return None

    def table_rate(self, rate: Variable) -> Variable:
        """The learning rate of rows, from that of parameters."""
        return rate

    def first_value(self, name: str, value: float) -> float:
        """That of an accumulator."""
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
        """Adds to the program what makes the loss smaller with each run."""
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
        """Adds the backward pass: parameters and their gradients."""
        del startup_program
        chosen = self._parameter_list if parameter_list is None else parameter_list
        return append_backward(loss, chosen, no_grad_set, callbacks)

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Pairs
    ) -> list[Operator]:
        """`apply_gradients` in the program of the loss."""
        assert loss.block is not None
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Adds the update of each parameter, in the order of their names."""
        if not params_grads:
            raise ConfigError("there is nothing to train: the loss depends on no parameter")
        program = default_main_program()
        pairs = sorted(params_grads, key=lambda pair: pair[0].name)
        with program.role_guard("backward"):
            clip = self._grad_clip.apply if self._grad_clip else append_gradient_clip_ops
            pairs = clip(pairs)
            pairs = [(parameter, self._decayed(parameter, g)) for parameter, g in pairs]
        with program.role_guard("optimize"):
            return [self._add_update(parameter, gradient) for parameter, gradient in pairs]

    # -- inside -------------------------------------------------------------------------------

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
        return helper.append_op(self.type, inputs, {"ParamOut": parameter}, self.settings())

    def _accumulator(
        self, helper: LayerHelper, parameter: Parameter, name: str, value: float
    ) -> Variable:
        shape = [1] if name.endswith("pow_acc") else parameter.shape
        known = unique_name.generate(f"{parameter.name}_{name}")
        return helper.create_state(known, shape, parameter.dtype, self.first_value(name, value))

    def _in_table(self, parameter: Parameter) -> bool:
        """Whether rows are updated in a table; if this optimizer cannot, the parameter is plain."""
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
        """The variable with the learning rate."""
        program = program or default_main_program()
        if program not in self._rates:
            if isinstance(self._rate, Variable):
                self._rates[program] = self._rate
            else:
                name = unique_name.generate("learning_rate")
                helper = LayerHelper("global_learning_rate", name)
                self._rates[program] = helper.create_state(name, [1], "float32", float(self._rate))
        return self._rates[program]

    def _rate_of(self, parameter: Parameter) -> Variable:
        rate = self._global_learning_rate()
        factor = parameter.optimize_attr["learning_rate"]
        return rate if factor == 1.0 else rate * float(factor)
