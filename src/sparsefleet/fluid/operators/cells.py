"""Recurrent cells, which compute one step; their parameters are created in the first step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from sparsefleet.fluid.framework import Parameter, Variable, unique_name
from sparsefleet.fluid.framework.param_attr import ParamAttr, to_param_attr
from sparsefleet.fluid.operators.activations import sigmoid, tanh
from sparsefleet.fluid.operators.blocks import flatten
from sparsefleet.fluid.operators.elementwise import elementwise_add
from sparsefleet.fluid.operators.filling import fill_constant_batch_size_like
from sparsefleet.fluid.operators.layer_helper import LayerHelper
from sparsefleet.fluid.operators.matrices import matmul
from sparsefleet.fluid.operators.shaping import concat, split

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]

Activation = Callable[[Variable], Variable]


class _Weights:
    """A cell's parameters, created in its first step, when the size of its inputs is known."""

    def __init__(self, cell: str, param_attr: Any, bias_attr: Any, dtype: Any) -> None:
        self._helper = LayerHelper(cell, unique_name.generate(cell))
        weight, bias = to_param_attr(param_attr), to_param_attr(bias_attr)
        if weight is None or bias is None:
            raise self._helper.refuse("param_attr and bias_attr cannot be False")
        self._attrs = (weight, bias)
        self._dtype = dtype
        self._made: list[Parameter] = []

    def __call__(self, shapes: Sequence[tuple[str, Sequence[int]]]) -> list[Parameter]:
        """Create parameters, given (suffix, shape) pairs.

        Each suffix is appended to the name, if any.
        """
        if not self._made:
            for suffix, shape in shapes:
                is_bias = len(shape) == 1
                attr = with_suffix(self._attrs[int(is_bias)], suffix)
                made = self._helper.create_parameter(attr, shape, self._dtype, is_bias)
                self._made.append(made)
        return self._made


def with_suffix(attr: ParamAttr, suffix: str) -> ParamAttr:
    """Return a copy with a suffix added to the name, if it has one."""
    made = copy(attr)
    made.name = attr.name and attr.name + suffix
    return made


class BasicGRUUnit:
    """A gated recurrent unit (Cho et al. 2014), which computes the next state [B, D].

    name_scope: prefix of the parameter names.
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
        """Return the next state. input: [B, I]; pre_hidden: [B, D]."""
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
    """A long short-term memory unit, which computes the next state and cell [B, D].

    forget_bias: added to the forget gate, so that an untrained network keeps its cell state.
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
        """Return the next state and cell. input: [B, I]; pre_hidden, pre_cell: [B, D]."""
        width, size = self.hidden_size, input.shape[-1] + self.hidden_size
        weight, bias = self._weights([("", [size, 4 * width]), ("", [4 * width])])
        gates = elementwise_add(matmul(concat([input, pre_hidden], 1), weight), bias)
        admit, candidate, forget, emit = split(gates, 4, dim=-1)
        kept = pre_cell * self._gate(forget + self._forget_bias)
        cell = kept + self._gate(admit) * self._activation(candidate)
        return self._activation(cell) * self._gate(emit), cell


class RNNCell:
    """Base class for recurrent cells; derive from it to write your own cell.

    `call(inputs, states)` returns outputs and new states; `state_shape` holds the shape of each
    state without the batch axis, in the same structure as the states.
    """

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the outputs of the step and the new states."""
        raise NotImplementedError(f"{type(self).__name__} has no call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no state_shape")

    @property
    def state_dtype(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no state_dtype")

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: Any = "float32",
        init_value: float = 0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """Return initial states filled with `init_value`, for the batch size of batch_ref.

        shape: defaults to `state_shape`. dtype: the same for all states; None means `state_dtype`.
        """
        like = flatten(batch_ref)[0]
        shapes = self.state_shape if shape is None else shape
        kind = self.state_dtype if dtype is None else dtype

        def filled(sizes: Any) -> Any:
            if isinstance(sizes, dict):
                return {key: filled(part) for key, part in sizes.items()}
            if any(not isinstance(size, int) for size in sizes):
                return type(sizes)(filled(part) for part in sizes)
            whole = list(sizes) if sizes[0] == -1 else [-1, *sizes]
            return fill_constant_batch_size_like(like, whole, kind, init_value, batch_dim_idx)

        return filled([shapes] if isinstance(shapes, int) else shapes)


class GRUCell(RNNCell):
    """A gated recurrent unit (Cho et al. 2014).

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     cell = GRUCell(4)
    ...     x = fluid.data("x", [None, 7, 3])
    ...     outputs, state = fluid.layers.rnn(cell, x)
    ...     outputs.shape, state.shape
    ((-1, 7, 4), (-1, 4))
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ) -> None:
        self.hidden_size = hidden_size
        self._unit = BasicGRUUnit(
            name, hidden_size, param_attr, bias_attr, gate_activation, activation, dtype
        )

    def call(self, inputs: Variable, states: Variable, **kwargs: Any) -> tuple[Variable, Variable]:
        """Compute one step. inputs: [B, I]; states and both results: [B, hidden_size]."""
        del kwargs
        hidden = self._unit(inputs, states)
        return hidden, hidden

    @property
    def state_shape(self) -> list[int]:
        return [self.hidden_size]


class LSTMCell(RNNCell):
    """Long short-term memory; its states are [hidden, cell].

    forget_bias: added to the forget gate, so that an untrained network keeps its cell state.

    >>> LSTMCell(4).state_shape
    [[4], [4]]
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ) -> None:
        self.hidden_size = hidden_size
        self._unit = BasicLSTMUnit(
            name,
            hidden_size,
            param_attr,
            bias_attr,
            gate_activation,
            activation,
            forget_bias,
            dtype,
        )

    def call(
        self, inputs: Variable, states: Sequence[Variable], **kwargs: Any
    ) -> tuple[Variable, list[Variable]]:
        """Compute one step. inputs: [B, I]; states: hidden and cell [B, hidden_size]; returns
        hidden.
        """
        del kwargs
        hidden, cell = self._unit(inputs, *states)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> list[list[int]]:
        return [[self.hidden_size], [self.hidden_size]]
