"""Recurrent layers over padded sequences.

In shapes, T is the number of steps, B the batch size, I the input width, L the number of layers, D
the hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.operators.activations import dropout
from sparsefleet.fluid.operators.cells import (
    Activation,
    BasicGRUUnit,
    BasicLSTMUnit,
    RNNCell,
    with_suffix,
)
from sparsefleet.fluid.operators.elementwise import elementwise_mul
from sparsefleet.fluid.operators.indexing import slice
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.recurrent import rnn
from sparsefleet.fluid.operators.shaping import concat, reshape, reverse, squeeze, stack, transpose

__all__ = ["basic_gru", "basic_lstm"]

States = list[list[Variable]]
"""The states of all layers and, for an LSTM, their cells."""


class _Stack(RNNCell):
    """A stack of recurrent layers.

    After the end of a sequence, states and outputs keep their last values.
    """

    def __init__(
        self, units: Sequence[Any], num_states: int, drop: Callable[[Variable], Variable]
    ) -> None:
        self._units = units
        self._num_states = num_states
        self._drop = drop

    @property
    def state_shape(self) -> list[list[list[int]]]:
        return [[[unit.hidden_size]] * self._num_states for unit in self._units]

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Variable, States]:
        del kwargs
        x, *mask = inputs
        after: States = []
        for unit, before in zip(self._units, states, strict=True):
            made = unit(x, *before)
            new = list(made) if isinstance(made, tuple) else [made]
            if mask:
                new = [_kept(old, fresh, mask[0]) for old, fresh in zip(before, new, strict=True)]
            after.append(new)
            x = self._drop(new[0])
        return x, after


def _kept(old: Variable, new: Variable, mask: Variable) -> Variable:
    return elementwise_mul(new, mask, axis=0) - elementwise_mul(old, mask - 1.0, axis=0)


def _layers(
    input: Variable,
    first: Sequence[Variable] | None,
    stacks: Sequence[_Stack],
    sequence_length: Variable | None,
    batch_first: bool,
) -> tuple[Variable, list[Variable]]:
    """Return the concatenated outputs of all directions, and the last states and cells.

    The states and cells are [L * directions, B, D] each.
    """
    steps = transpose(input, [1, 0, 2]) if batch_first else input
    inputs = [steps]
    if sequence_length is not None:
        like = {"X": steps, "Length": sequence_length}
        inputs.append(LayerHelper("basic_rnn").add("step_mask", like, {"dtype": "float32"}))
        inputs[1].stop_gradient = True
    outputs, last = [], []
    for way, cell in enumerate(stacks):
        seen = [reverse(x, axis=[0]) for x in inputs] if way else inputs
        states = None
        if first is not None:
            count = len(cell.state_shape)
            places = [layer * len(stacks) + way for layer in range(count)]
            states = [[_row(whole, place) for whole in first] for place in places]
        out, after = rnn(cell, seen, states, time_major=True)
        outputs.append(reverse(out, axis=[0]) if way else out)
        last.append(after)
    whole = outputs[0] if len(outputs) == 1 else concat(outputs, axis=2)
    by_layer = [states for pair in zip(*last, strict=True) for states in pair]
    found = [stack(list(column), axis=0) for column in zip(*by_layer, strict=True)]
    return (transpose(whole, [1, 0, 2]) if batch_first else whole), found


def _row(whole: Variable, place: int) -> Variable:
    return squeeze(slice(whole, [0], [place], [place + 1]), axes=[0])


_SETTINGS = ("hidden_size", "gate_activation", "activation", "forget_bias", "dtype")


def _units(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> list[list[Any]]:
    """Return the recurrent units of all layers, for each direction, from a layer's arguments."""
    settings = {name: arguments[name] for name in _SETTINGS if name in arguments}
    attrs = [to_param_attr(arguments[name]) for name in ("param_attr", "bias_attr")]
    ways = [("", "fw")] + ([("_reverse", "bw")] if arguments["bidirectional"] else [])
    made = []
    for title, short in ways:
        units = []
        for number in range(arguments["num_layers"]):
            weight, bias = (
                attr and with_suffix(attr, f"_{short}_{letter}_{number}")
                for attr, letter in zip(attrs, "wb", strict=True)
            )
            scope = f"{arguments['name']}{title}_layers_{number}"
            units.append(kind(scope, param_attr=weight, bias_attr=bias, **settings))
        made.append(units)
    return made


@layer
def basic_gru(
    input: Variable,
    init_hidden: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    dtype: Any = "float32",
    name: str = "basic_gru",
) -> tuple[Variable, Variable]:
    """Run stacked GRU layers over input [B, T, I].

    Returns outputs [B, T, directions * D] and last states.

    init_hidden and the last states: [L * directions, B, D]. sequence_length: int[B].
    """

    def drop(x: Variable) -> Variable:
        return dropout(x, dropout_prob) if dropout_prob else x

    units = _units(BasicGRUUnit, locals())
    stacks = [_Stack(way, 1, drop) for way in units]
    shape = [num_layers * len(units), -1, hidden_size]
    first = None if init_hidden is None else [reshape(init_hidden, shape)]
    outputs, (hidden,) = _layers(input, first, stacks, sequence_length, batch_first)
    return outputs, hidden


@layer
def basic_lstm(
    input: Variable,
    init_hidden: Variable | None,
    init_cell: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    forget_bias: float = 1.0,
    dtype: Any = "float32",
    name: str = "basic_lstm",
) -> tuple[Variable, Variable, Variable]:
    """Run stacked LSTM layers over input [B, T, I]; return outputs [B, T, directions * D], last
    states and cells.

    init_hidden, init_cell, last states and last cells: [L * directions, B, D]. sequence_length:
    int[B].
    """

    def drop(x: Variable) -> Variable:
        how = "upscale_in_train"
        return dropout(x, dropout_prob, dropout_implementation=how) if dropout_prob else x

    units = _units(BasicLSTMUnit, locals())
    stacks = [_Stack(way, 2, drop) for way in units]
    shape = [num_layers * len(units), -1, hidden_size]
    first = None
    if init_hidden is not None and init_cell is not None:
        first = [reshape(init_hidden, shape), reshape(init_cell, shape)]
    outputs, (hidden, cell) = _layers(input, first, stacks, sequence_length, batch_first)
    return outputs, hidden, cell
