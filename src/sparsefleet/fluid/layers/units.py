"""One step of a recurrent network with its parameters, made at the first step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Parameter, Variable
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.layers.activations import sigmoid, tanh
from sparsefleet.fluid.layers.elementwise import elementwise_add
from sparsefleet.fluid.layers.products import matmul
from sparsefleet.fluid.layers.shaping import concat, split
from sparsefleet.fluid.param_attr import ParamAttr, to_param_attr

__all__ = ["Activation", "BasicGRUUnit", "BasicLSTMUnit", "with_suffix"]

Activation = Callable[[Variable], Variable]


class _Weights:
    """The parameters of a cell, made at its first step, when the size of its inputs is known."""

    def __init__(self, cell: str, param_attr: Any, bias_attr: Any, dtype: Any) -> None:
        self._helper = LayerHelper(cell, unique_name.generate(cell))
        weight, bias = to_param_attr(param_attr), to_param_attr(bias_attr)
        if weight is None or bias is None:
            raise self._helper.refuse("param_attr and bias_attr cannot be False")
        self._attrs = (weight, bias)
        self._dtype = dtype
        self._made: list[Parameter] = []

    def __call__(self, shapes: Sequence[tuple[str, Sequence[int]]]) -> list[Parameter]:
        """Parameters of these shapes, each with what is added to its name, if it has one."""
        if not self._made:
            for suffix, shape in shapes:
                is_bias = len(shape) == 1
                attr = with_suffix(self._attrs[int(is_bias)], suffix)
                made = self._helper.create_parameter(attr, shape, self._dtype, is_bias)
                self._made.append(made)
        return self._made


def with_suffix(attr: ParamAttr, suffix: str) -> ParamAttr:
    """The same with something added to its name, if it has one."""
    made = copy(attr)
    made.name = attr.name and attr.name + suffix
    return made


class BasicGRUUnit:
    """A gated recurrent unit (Cho et al. 2014): the next state [B, D] of an input and a state.

    name_scope: the parameters are named after it.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: Any = "float32",
    ) -> None:
        self.hidden_size = hidden_size
        self._gate, self._activation = gate_activation or sigmoid, activation or tanh
        self._weights = _Weights(f"{name_scope}/BasicGRUUnit", param_attr, bias_attr, dtype)

    def __call__(self, input: Variable, pre_hidden: Variable) -> Variable:
        """input: [B, I]; pre_hidden: [B, D]."""
        width, size = self.hidden_size, input.shape[-1] + self.hidden_size
        gate_weight, weight, gate_bias, bias = self._weights(
            [
                ("_gate", [size, 2 * width]),
                ("_candidate", [size, width]),
                ("_gate", [2 * width]),
                ("_candidate", [width]),
            ]
        )
        seen = matmul(concat([input, pre_hidden], 1), gate_weight)
        reset, update = split(self._gate(elementwise_add(seen, gate_bias)), 2, dim=1)
        seen = matmul(concat([input, reset * pre_hidden], 1), weight)
        candidate = self._activation(elementwise_add(seen, bias))
        return update * pre_hidden + (1.0 - update) * candidate


class BasicLSTMUnit:
    """Long short-term memory: the next state and cell [B, D] of an input, a state and a cell.

    forget_bias: added to the forget gate, so that a new network remembers.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
    ) -> None:
        self.hidden_size = hidden_size
        self._gate, self._activation = gate_activation or sigmoid, activation or tanh
        self._forget_bias = float(forget_bias)
        self._weights = _Weights(f"{name_scope}/BasicLSTMUnit", param_attr, bias_attr, dtype)

    def __call__(
        self, input: Variable, pre_hidden: Variable, pre_cell: Variable
    ) -> tuple[Variable, Variable]:
        """input: [B, I]; pre_hidden, pre_cell: [B, D]."""
        width, size = self.hidden_size, input.shape[-1] + self.hidden_size
        weight, bias = self._weights([("", [size, 4 * width]), ("", [4 * width])])
        gates = elementwise_add(matmul(concat([input, pre_hidden], 1), weight), bias)
        admit, candidate, forget, emit = split(gates, 4, dim=-1)
        kept = pre_cell * self._gate(forget + self._forget_bias)
        cell = kept + self._gate(admit) * self._activation(candidate)
        return self._activation(cell) * self._gate(emit), cell
