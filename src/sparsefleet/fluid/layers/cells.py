"""Cells: one step of a recurrent network, for `rnn` and decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Parameter, Variable
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.layers.activations import sigmoid, tanh
from sparsefleet.fluid.layers.elementwise import elementwise_add
from sparsefleet.fluid.layers.filling import fill_constant_batch_size_like
from sparsefleet.fluid.layers.products import matmul
from sparsefleet.fluid.layers.shaping import concat, split
from sparsefleet.fluid.layers.structures import flatten
from sparsefleet.fluid.param_attr import ParamAttr, to_param_attr

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]

Activation = Callable[[Variable], Variable]


class RNNCell:
    """What is done in a step; cells of your own derive from it.

    `call(inputs, states)` returns outputs and new states; `state_shape` has the sizes of each
    state without that of the batch, in the form in which states are given.
    """

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Outputs of the step, and the states after it."""
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
        """States to begin with, `init_value` everywhere; as many as batch_ref has examples.

        shape: as `state_shape`, which it is by default. dtype: one for all states; None:
        `state_dtype`.
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
                attr = _named(self._attrs[int(is_bias)], suffix)
                made = self._helper.create_parameter(attr, shape, self._dtype, is_bias)
                self._made.append(made)
        return self._made


def _named(attr: ParamAttr, suffix: str) -> ParamAttr:
    made = copy(attr)
    made.name = attr.name and attr.name + suffix
    return made


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
        self._gate, self._activation = gate_activation or sigmoid, activation or tanh
        self._weights = _Weights(f"{name}/BasicGRUUnit", param_attr, bias_attr, dtype)

    def call(self, inputs: Variable, states: Variable, **kwargs: Any) -> tuple[Variable, Variable]:
        """inputs: [B, I]; states: [B, hidden_size], as are both results."""
        del kwargs
        width, size = self.hidden_size, inputs.shape[-1] + self.hidden_size
        gate_weight, weight, gate_bias, bias = self._weights(
            [
                ("_gate", [size, 2 * width]),
                ("_candidate", [size, width]),
                ("_gate", [2 * width]),
                ("_candidate", [width]),
            ]
        )
        gates = self._gate(
            elementwise_add(matmul(concat([inputs, states], 1), gate_weight), gate_bias)
        )
        reset, update = split(gates, 2, dim=1)
        seen = concat([inputs, reset * states], 1)
        candidate = self._activation(elementwise_add(matmul(seen, weight), bias))
        hidden = update * states + (1 - update) * candidate
        return hidden, hidden

    @property
    def state_shape(self) -> list[int]:
        return [self.hidden_size]


class LSTMCell(RNNCell):
    """Long short-term memory; its states are [hidden, cell].

    forget_bias: added to the forget gate, so that a new network remembers.

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
        self._gate, self._activation = gate_activation or sigmoid, activation or tanh
        self._forget_bias = float(forget_bias)
        self._weights = _Weights(f"{name}/BasicLSTMUnit", param_attr, bias_attr, dtype)

    def call(
        self, inputs: Variable, states: Sequence[Variable], **kwargs: Any
    ) -> tuple[Variable, list[Variable]]:
        """inputs: [B, I]; states: hidden and cell [B, hidden_size]; the output is hidden."""
        del kwargs
        hidden, cell = states
        width, size = self.hidden_size, inputs.shape[-1] + self.hidden_size
        weight, bias = self._weights([("", [size, 4 * width]), ("", [4 * width])])
        gates = elementwise_add(matmul(concat([inputs, hidden], 1), weight), bias)
        admit, candidate, forget, emit = split(gates, 4, dim=-1)
        kept = cell * self._gate(forget + self._forget_bias)
        cell = kept + self._gate(admit) * self._activation(candidate)
        hidden = self._activation(cell) * self._gate(emit)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> list[list[int]]:
        return [[self.hidden_size], [self.hidden_size]]
