"""A cell along sequences of equal length. Letters: T steps, B batch."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.cells import GRUCell, LSTMCell, RNNCell
from sparsefleet.fluid.layers.elementwise import elementwise_mul
from sparsefleet.fluid.layers.shaping import reverse, squeeze, transpose
from sparsefleet.fluid.layers.slicing import slice
from sparsefleet.fluid.layers.static_rnn import StaticRNN
from sparsefleet.fluid.layers.structures import flatten, map_structure, pack_like

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "rnn"]


@layer
def rnn(
    cell: RNNCell,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Variable | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """The outputs of a cell at all steps, and its states after the last one.

    inputs: [B, T, ...], or [T, B, ...] with time_major, as the outputs; several in one structure.
    sequence_length: int64[B]; beyond it states stay as they are, while outputs go on.
    is_reverse: from the last step to the first. Others are given to `cell.call`.
    """
    helper = LayerHelper("rnn")
    states = initial_states
    if states is None:
        states = cell.get_initial_states(inputs, batch_dim_idx=1 if time_major else 0)
    for state in flatten(states):
        state.stop_gradient = False
    steps = inputs if time_major else map_structure(_swapped, inputs)
    mask = None
    if sequence_length is not None:
        like = {"X": flatten(steps)[0], "Length": sequence_length}
        mask = helper.add("step_mask", like, {"dtype": flatten(states)[0].dtype})
        mask.stop_gradient = True
    if is_reverse:
        steps = map_structure(_backwards, steps)
        mask = None if mask is None else _backwards(mask)
    outputs, last = _walk(helper, cell, steps, states, mask, kwargs)
    if is_reverse:
        outputs = map_structure(_backwards, outputs)
    return (outputs if time_major else map_structure(_swapped, outputs)), last


def _walk(
    helper: LayerHelper,
    cell: RNNCell,
    steps: Any,
    first: Any,
    mask: Variable | None,
    settings: dict[str, Any],
) -> tuple[Any, Any]:
    network = StaticRNN()
    with network.step():
        inputs = map_structure(network.step_input, steps)
        states = map_structure(lambda state: network.memory(init=state), first)
        outputs, after = cell.call(inputs, map_structure(lambda state: state, states), **settings)
        if len(flatten(after)) != len(flatten(states)):
            raise helper.refuse(
                f"the cell returns {len(flatten(after))} states for {len(flatten(states))}"
            )
        if mask is not None:
            goes_on = network.step_input(mask)
            after = map_structure(
                lambda old, new: (
                    elementwise_mul(new, goes_on, axis=0)
                    - elementwise_mul(old, goes_on - 1.0, axis=0)
                ),
                states,
                after,
            )
        for old, new in zip(flatten(states), flatten(after), strict=True):
            network.update_memory(old, new)
        network.output(*flatten(outputs), *flatten(after))
    found = network()
    assert isinstance(found, list)
    count = len(flatten(outputs))
    return pack_like(outputs, found[:count]), pack_like(after, [_last(x) for x in found[count:]])


def _swapped(x: Variable) -> Variable:
    """Batch and time change places."""
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def _backwards(x: Variable) -> Variable:
    return reverse(x, axis=[0])


def _last(x: Variable) -> Variable:
    return squeeze(slice(x, axes=[0], starts=[-1], ends=[2**31 - 1]), axes=[0])
