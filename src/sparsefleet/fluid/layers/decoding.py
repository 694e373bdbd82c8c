"""Decoding: step by step, each step beginning with what the one before gave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.activations import logical_not
from sparsefleet.fluid.layers.arrays import array_write, create_array, tensor_array_to_tensor
from sparsefleet.fluid.layers.comparisons import less_equal, logical_and, logical_or
from sparsefleet.fluid.layers.elementwise import elementwise_add, increment
from sparsefleet.fluid.layers.filling import fill_constant, zeros_like
from sparsefleet.fluid.layers.lookups import gather_tree
from sparsefleet.fluid.layers.loops import While
from sparsefleet.fluid.layers.reductions import reduce_all
from sparsefleet.fluid.layers.shaping import assign, cast, transpose
from sparsefleet.fluid.layers.structures import flatten, map_structure

__all__ = ["BeamSearchDecoder", "Decoder", "dynamic_decode"]


class Decoder:
    """What `dynamic_decode` runs; decoders of your own derive from it."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """Inputs and states of the first step, and what is finished before it: bool."""
        raise NotImplementedError(f"{type(self).__name__} has no initialize(inits)")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Outputs, next states, next inputs, and what is finished."""
        raise NotImplementedError(f"{type(self).__name__} has no step(time, inputs, states)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> Any:
        """Outputs of all steps [T, ...] and the last states, as they are to be returned."""
        raise NotImplementedError(f"{type(self).__name__} has no finalize")


class _BeamOutput(NamedTuple):
    scores: Any
    predicted_ids: Any
    parent_ids: Any


class _BeamState(NamedTuple):
    cell_states: Any
    log_probs: Any
    finished: Any
    lengths: Any


class BeamSearchDecoder(Decoder):
    """Keeps the beam_size best beginnings of each example. Letters: B batch, K beams, V words.

    cell: an RNNCell; embedding_fn: word numbers to inputs of the cell; output_fn: outputs of the
    cell to logits [..., V].
    """

    OutputWrapper = _BeamOutput
    StateWrapper = _BeamState

    def __init__(
        self,
        cell: Any,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Variable], Any] | None = None,
        output_fn: Callable[[Any], Variable] | None = None,
    ) -> None:
        self.cell = cell
        self.embedding_fn = embedding_fn
        self.output_fn = output_fn
        self.start_token = start_token
        self.end_token = end_token
        self.beam_size = beam_size
        self._helper = LayerHelper("beam_search_decoder")

    @staticmethod
    def tile_beam_merge_with_batch(x: Variable, beam_size: int) -> Variable:
        """x [B, ...] for each beam: [B * K, ...], as what the cell sees beside its states."""
        helper = LayerHelper("tile_beam_merge_with_batch")
        wide = _shaped(helper, "expand_to_beams", x, {"beam_size": beam_size})
        return _shaped(helper, "merge_beams", wide)

    def _split_batch_beams(self, x: Variable) -> Variable:
        return _shaped(self._helper, "split_beams", x, {"beam_size": self.beam_size})

    def _merge_batch_beams(self, x: Variable) -> Variable:
        return _shaped(self._helper, "merge_beams", x)

    def _expand_to_beam_size(self, x: Variable) -> Variable:
        return _shaped(self._helper, "expand_to_beams", x, {"beam_size": self.beam_size})

    def _gather(
        self, x: Variable, indices: Variable, batch_size: Variable | None = None
    ) -> Variable:
        del batch_size
        made = self._helper.add("gather_beams", {"X": x, "Index": indices})
        made.dtype = x.dtype
        return made

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        """initial_cell_states: [B, ...] each."""
        helper = self._helper
        ids, lengths = (helper.new_variable("int64", stop_gradient=True) for _ in range(2))
        chances = helper.new_variable("float32")
        finished = helper.new_variable("bool", stop_gradient=True)
        outputs = {"Ids": ids, "LogProbs": chances, "Finished": finished, "Lengths": lengths}
        attrs = {"beam_size": self.beam_size, "start_token": int(self.start_token)}
        helper.append_op("begin_beams", {"X": flatten(initial_cell_states)[0]}, outputs, attrs)
        states = map_structure(self._expand_to_beam_size, initial_cell_states)
        inputs = ids if self.embedding_fn is None else self.embedding_fn(ids)
        return inputs, self.StateWrapper(states, chances, finished, lengths), finished

    def _beam_search_step(
        self, time: Variable, logits: Variable, next_cell_states: Any, beam_state: Any
    ) -> tuple[Any, Any]:
        del time
        helper = self._helper
        inputs = {
            "Logits": logits,
            "LogProbs": beam_state.log_probs,
            "Finished": beam_state.finished,
            "Lengths": beam_state.lengths,
        }
        scores = helper.new_variable("float32")
        ids, parents, lengths = (helper.new_variable("int64", stop_gradient=True) for _ in range(3))
        finished = helper.new_variable("bool", stop_gradient=True)
        outputs = {
            "Scores": scores,
            "Ids": ids,
            "Parents": parents,
            "NextFinished": finished,
            "NextLengths": lengths,
        }
        helper.append_op("beam_step", inputs, outputs, {"end_token": int(self.end_token)})
        states = map_structure(lambda state: self._gather(state, parents), next_cell_states)
        made = self.OutputWrapper(scores, ids, parents)
        return made, self.StateWrapper(states, scores, finished, lengths)

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """inputs and cell states: [B, K, ...]."""
        inputs = map_structure(self._merge_batch_beams, inputs)
        cell_states = map_structure(self._merge_batch_beams, states.cell_states)
        outputs, after = self.cell(inputs, cell_states, **kwargs)
        outputs = map_structure(self._split_batch_beams, outputs)
        after = map_structure(self._split_batch_beams, after)
        logits = outputs if self.output_fn is None else self.output_fn(outputs)
        found, beams = self._beam_search_step(time, logits, after, states)
        words = found.predicted_ids
        next_inputs = words if self.embedding_fn is None else self.embedding_fn(words)
        return found, beams, next_inputs, beams.finished

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> Any:
        """Whole sentences, best first: int64[T, B, K]."""
        del sequence_lengths
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states


def _shaped(
    helper: LayerHelper, type: str, x: Variable, attrs: dict[str, Any] | None = None
) -> Variable:
    made = helper.add(type, {"X": helper.check_input(x, "x")}, attrs)
    made.dtype = x.dtype
    return made


@layer
def dynamic_decode(
    decoder: Decoder,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> Any:
    """Runs a decoder until all is finished, or beyond step max_step_num.

    Gives outputs [B, T, ...] ([T, B, ...] with output_time_major), the last states, and, with
    return_length, the lengths. impute_finished: states of what is finished stay as they are.
    """
    inputs, states, finished = decoder.initialize(inits)
    inputs, states = map_structure(_own, inputs), map_structure(_own, states)
    finished = _own(finished, stop_gradient=True)
    lengths = zeros_like(cast(finished, "int64"))
    lengths.stop_gradient = True
    time = fill_constant([1], "int64", 0)
    limit = None if max_step_num is None else fill_constant([1], "int64", max_step_num)
    goes_on = logical_not(reduce_all(finished))
    with While(goes_on, is_test=is_test).block():
        outputs, after, next_inputs, ended = decoder.step(time, inputs, states, **kwargs)
        arrays = map_structure(lambda value: _written(value, time), outputs)
        if impute_finished:
            after = map_structure(lambda old, new: _kept(finished, old, new), states, after)
        assign(elementwise_add(lengths, cast(logical_not(finished), "int64")), lengths)
        assign(logical_or(ended, finished), finished)
        for new, old in zip(flatten([next_inputs, after]), flatten([inputs, states]), strict=True):
            assign(new, old)
        increment(time)
        not_all = logical_not(reduce_all(finished))
        assign(not_all if limit is None else logical_and(not_all, less_equal(time, limit)), goes_on)
    made = map_structure(_stacked, arrays)
    with suppress(NotImplementedError):  # a decoder need not have one
        made, states = decoder.finalize(made, states, lengths)
    if not output_time_major:
        made = map_structure(lambda x: transpose(x, [1, 0, *range(2, len(x.shape))]), made)
    return (made, states, lengths) if return_length else (made, states)


def _written(value: Variable, time: Variable) -> Variable:
    """An array outside of the loop, that gets the value in each round."""
    program = LayerHelper("dynamic_decode").main_program
    around = program.current_block().parent
    assert around is not None
    with program.block_guard(around):
        array = create_array(value.dtype)
    return array_write(value, time, array)


def _own(x: Variable, stop_gradient: bool = False) -> Variable:
    """A copy, for the loop to write to."""
    made = assign(x)
    made.stop_gradient = stop_gradient
    return made


def _stacked(array: Variable) -> Variable:
    return tensor_array_to_tensor(array, axis=0, use_stack=True)[0]


def _kept(finished: Variable, old: Variable, new: Variable) -> Variable:
    """The old rows where it was finished before the step, the new ones elsewhere."""
    helper = LayerHelper("impute_finished")
    made = helper.add("where_finished", {"Finished": finished, "X": old, "Y": new})
    made.dtype = new.dtype
    return made
