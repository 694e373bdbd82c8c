"""Run recurrent cells along sequences of equal length.

In shapes, T is the number of steps, B the batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.blocks import flatten, map_structure, pack_sequence_as
from sparsefleet.fluid.operators.cells import GRUCell, LSTMCell, RNNCell
from sparsefleet.fluid.operators.elementwise import elementwise_mul
from sparsefleet.fluid.operators.indexing import slice
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.rnn_blocks import StaticRNN
from sparsefleet.fluid.operators.sequences import level_of, segments
from sparsefleet.fluid.operators.shaping import reverse, squeeze, transpose

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "dynamic_gru", "gru_unit", "rnn", "sequence_conv"]

Tensor = torch.Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""Activations for gates and candidates."""


Shape = tuple[int, ...]


def _gru_shape(shape: Shape, weight: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del shape, others, settings
    return [(-1, weight[0])]


class Walk:
    """Padded rows [N, W] of sequences, so that all sequences can be processed step by step.

    Values computed past the end of a sequence are not used.
    """

    def __init__(self, x: Tensor, offsets: Tensor, reverse: bool) -> None:
        lengths = offsets.diff()
        which = segments(offsets)
        time = torch.arange(int(offsets[-1])) - offsets[:-1][which]
        self._places = (lengths[which] - 1 - time if reverse else time, which)
        self._count = len(offsets) - 1
        longest = int(lengths.max()) if self._count else 0
        padded = x.new_zeros(longest, self._count, x.shape[1])
        self.steps = padded.index_put(self._places, x).unbind(0)

    def first(self, width: int, given: Tensor | None) -> Tensor:
        """Return the initial state: [B, width]."""
        if given is None:
            like = self.steps[0] if self.steps else torch.zeros(0)
            return like.new_zeros(self._count, width)
        return given

    def rows(self, found: list[Tensor], width: int) -> Tensor:
        """Return the results of all steps as rows of the sequences: [N, width]."""
        return torch.stack(found)[self._places] if found else torch.zeros(0, width)


@op("gru", "Input Weight Bias? H0?", "Hidden", lod="function", infer=_gru_shape)
def gru(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    first: Tensor | None,
    *,
    lods: list[Any],
    is_reverse: bool = False,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Tensor, Lod]:
    """Run a GRU along sequences. x: [N, 3 D], projected; weight: [D, 2 D] followed by [D, D]."""
    width = weight.shape[0]
    if bias is not None:
        x = x + bias.reshape(-1)
    gate_weight, state_weight = _gru_weights(weight)
    walk = Walk(x, level_of(lods[0], "Input"), is_reverse)
    hidden = walk.first(width, first)
    gate, act = ACTIVATIONS[gate_activation], ACTIVATIONS[activation]
    found = []
    for step in walk.steps:
        gates = gate(step[:, : 2 * width] + hidden @ gate_weight)
        update, reset = gates.split_with_sizes([width, width], 1)
        candidate = act(step[:, 2 * width :] + (reset * hidden) @ state_weight)
        kept = update if origin_mode else 1 - update
        hidden = kept * hidden + (1 - kept) * candidate
        found.append(hidden)
    return walk.rows(found, width), lods[0]


def _gru_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of both gates [D, 2 D] and the candidate [D, D], which are adjacent in
    memory.
    """
    width, flat = weight.shape[0], weight.reshape(-1)
    border = 2 * width * width
    return flat[:border].reshape(width, 2 * width), flat[border:].reshape(width, width)


def _gru_unit_shapes(x: Shape, before: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [before, before, x]


@op(
    "gru_unit",
    "Input HiddenPrev Weight Bias?",
    "Hidden ResetHiddenPrev Gate",
    lod="none",
    infer=_gru_unit_shapes,
)
def gru_unit_op(
    x: Tensor,
    before: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one GRU step. x: [B, 3 D]; before: [B, D].

    Its `gate` output is [update, reset, candidate].
    """
    width = weight.shape[0]
    if bias is not None:
        x = x + bias.reshape(-1)
    gate_weight, state_weight = _gru_weights(weight)
    gates = ACTIVATIONS[gate_activation](x[:, : 2 * width] + before @ gate_weight)
    update, reset = gates.split_with_sizes([width, width], 1)
    remembered = reset * before
    candidate = ACTIVATIONS[activation](x[:, 2 * width :] + remembered @ state_weight)
    kept = update if origin_mode else 1 - update
    hidden = kept * before + (1 - kept) * candidate
    return hidden, remembered, torch.cat([gates, candidate], 1)


def check_activations(helper: LayerHelper, *names: str) -> None:
    """Raise ProgramError unless the layer supports these activations."""
    for name in names:
        if name not in ACTIVATIONS:
            raise helper.refuse(
                f"the activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}"
            )


@layer
def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """Run a gated recurrent unit along each sequence: [N, size].

    input: [N, 3 * size], the inputs of the update gate, reset gate and candidate, as returned by
        fc.
    origin_mode: the update gate weights the old state (Cho et al. 2014), not the new state.
    """
    helper = LayerHelper("gru")
    if helper.check_input(input).shape[-1] != 3 * size:
        raise helper.refuse(
            f"the last dimension of input must be 3 * size = {3 * size}, got {input}"
        )
    check_activations(helper, gate_activation, candidate_activation)
    weight_attr, known_bias = to_param_attr(param_attr), to_param_attr(bias_attr)
    if weight_attr is None:
        raise helper.refuse("param_attr cannot be False")
    inputs: dict[str, Any] = {"Input": input, "H0": h_0}
    inputs["Weight"] = helper.create_parameter(weight_attr, [size, 3 * size], input.dtype)
    if known_bias is not None:
        inputs["Bias"] = helper.create_parameter(
            known_bias, [1, 3 * size], input.dtype, is_bias=True
        )
    attrs = op_settings("gru", locals(), activation=candidate_activation)
    out = helper.add("gru", inputs, attrs, slot="Hidden")
    out.dtype, out.lod_level = input.dtype, 1
    return out


@layer
def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """Compute one step of a gated recurrent unit of width D = size / 3.

    input: [B, 3 D], as for `dynamic_gru`; hidden: [B, D].
    Returns the new state [B, D], the old state times the reset gate [B, D], and update gate, reset
    gate and candidate [B, 3 D].
    """
    helper = LayerHelper("gru_unit")
    if size % 3 or helper.check_input(input).shape[-1] != size:
        raise helper.refuse(
            f"size must be 3 * width and equal the last dimension of input, got {size}, {input}"
        )
    check_activations(helper, gate_activation, activation)
    weight_attr, known_bias = to_param_attr(param_attr), to_param_attr(bias_attr)
    if weight_attr is None:
        raise helper.refuse("param_attr cannot be False")
    inputs: dict[str, Any] = {"Input": input, "HiddenPrev": helper.check_input(hidden, "hidden")}
    inputs["Weight"] = helper.create_parameter(weight_attr, [size // 3, size], input.dtype)
    if known_bias is not None:
        inputs["Bias"] = helper.create_parameter(known_bias, [1, size], input.dtype, is_bias=True)
    gate, remembered, updated = (helper.new_variable(input.dtype) for _ in range(3))
    outputs = {"Hidden": updated, "ResetHiddenPrev": remembered, "Gate": gate}
    attrs = op_settings("gru_unit", locals())
    helper.append_op("gru_unit", inputs, outputs, attrs)
    return updated, remembered, gate


@layer
def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Convolve along each sequence, padded with zeros: [N, num_filters].

    padding_start: the first row of a window relative to its output row; centered by default.
    """
    helper = LayerHelper("sequence_conv", name)
    known = to_param_attr(param_attr)
    if filter_stride != 1 or not padding or known is None:
        raise helper.refuse(
            "filter_stride must be 1, padding must be True, and param_attr must not be False, got "
            f"{filter_stride!r}, {padding!r} and {param_attr!r}"
        )
    shape = [filter_size * helper.check_input(input).shape[1], num_filters]
    weight = helper.create_parameter(known, shape, input.dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    attrs = {"context_start": start, "context_length": filter_size}
    out = helper.add("sequence_conv", {"X": input, "Filter": weight}, attrs)
    out.dtype, out.lod_level = input.dtype, 1
    return helper.activate(helper.add_bias(out, bias_attr, 1), act)


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
    """Run a cell over all steps; return its outputs and its last states.

    inputs: [B, T, ...], or [T, B, ...] with time_major, like the outputs; may be nested lists,
        tuples and dicts.
    sequence_length: int64[B]; after the end of a sequence, its state is kept, but outputs are still
        computed.
    is_reverse: run from the last step to the first. Other arguments are passed to `cell.call`.
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
                f"the cell returns {len(flatten(after))} states, expected {len(flatten(states))}"
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
    return pack_sequence_as(outputs, found[:count]), pack_sequence_as(
        after, [_last(x) for x in found[count:]]
    )


def _swapped(x: Variable) -> Variable:
    """Swap the batch and time axes."""
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def _backwards(x: Variable) -> Variable:
    return reverse(x, axis=[0])


def _last(x: Variable) -> Variable:
    return squeeze(slice(x, axes=[0], starts=[-1], ends=[2**31 - 1]), axes=[0])
