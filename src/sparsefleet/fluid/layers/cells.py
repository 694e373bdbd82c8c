"""Cells: one step of a recurrent network, for `rnn` and decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layers.filling import fill_constant_batch_size_like
from sparsefleet.fluid.layers.structures import flatten
from sparsefleet.fluid.layers.units import Activation, BasicGRUUnit, BasicLSTMUnit

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


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
        """inputs: [B, I]; states: [B, hidden_size], as are both results."""
        del kwargs
        hidden = self._unit(inputs, states)
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
        """inputs: [B, I]; states: hidden and cell [B, hidden_size]; the output is hidden."""
        del kwargs
        hidden, cell = self._unit(inputs, *states)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> list[list[int]]:
        return [[self.hidden_size], [self.hidden_size]]
