"""Step-by-step decoding, with beam search, greedy and sampling decoders."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.activations import logical_not, softmax
from sparsefleet.fluid.operators.arrays import array_write, create_array, tensor_array_to_tensor
from sparsefleet.fluid.operators.blocks import flatten, map_structure
from sparsefleet.fluid.operators.branches import While
from sparsefleet.fluid.operators.elementwise import (
    elementwise_add,
    equal,
    increment,
    less_equal,
    logical_and,
    logical_or,
)
from sparsefleet.fluid.operators.filling import (
    fill_constant,
    fill_constant_batch_size_like,
    zeros_like,
)
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.lookups import gather_tree
from sparsefleet.fluid.operators.patterns import sampling_id
from sparsefleet.fluid.operators.reductions import argmax, reduce_all
from sparsefleet.fluid.operators.shaping import assign, cast, transpose

__all__ = [
    "BasicDecoder",
    "BeamSearchDecoder",
    "DecodeHelper",
    "Decoder",
    "GreedyEmbeddingHelper",
    "SampleEmbeddingHelper",
    "TrainingHelper",
    "dynamic_decode",
]

Tensor = torch.Tensor
Shape = tuple[int, ...]

_NEVER = -1e9  # Fluid's log probability of an impossible word


@op("step_mask", "X Length", lod="none", infer=lambda x, *_, **__: [x[:2]])
def step_mask(x: Tensor, length: Tensor, *, dtype: str = "float32") -> Tensor:
    """Return a mask [T, B] that is 1 for the steps of x [T, B, ...] within an example's length."""
    steps = torch.arange(len(x))[:, None]
    return (steps < length.reshape(1, -1)).to(getattr(torch, dtype))


def _without(shape: Shape, *others: Any, axis: int) -> list[Shape]:
    del others
    return [shape[:axis] + shape[axis + 1 :]]


@op("step_of", "X I", lod="none", infer=_without)
def step_of(x: Tensor, index: Tensor, *, axis: int) -> Tensor:
    """Return the element at `index` along an axis, or zeros if `index` is past the end."""
    place = int(index)
    if place < x.shape[axis]:
        return x.select(axis, place)
    return torch.zeros_like(x.select(axis, 0))


@op("expand_to_beams", "X", lod="none", infer=lambda x, *, beam_size: [(x[0], beam_size, *x[1:])])
def expand_to_beams(x: Tensor, *, beam_size: int) -> Tensor:
    """Repeat x [B, ...] for each of K beams: [B, K, ...]."""
    return x.unsqueeze(1).expand(len(x), beam_size, *x.shape[1:])


@op("merge_beams", "X", lod="none", infer=lambda x: [(-1, *x[2:])])
def merge_beams(x: Tensor) -> Tensor:
    """Reshape [B, K, ...] to [B * K, ...]."""
    return x.flatten(0, 1)


@op("split_beams", "X", lod="none", infer=lambda x, *, beam_size: [(-1, beam_size, *x[1:])])
def split_beams(x: Tensor, *, beam_size: int) -> Tensor:
    """Reshape [B * K, ...] to [B, K, ...]."""
    return x.reshape(-1, beam_size, *x.shape[1:])


@op("gather_beams", "X Index", lod="none", infer=lambda x, *_: [x])
def gather_beams(x: Tensor, index: Tensor) -> Tensor:
    """Select beams of x [B, K, ...] by index [B, K]."""
    return x[torch.arange(len(x))[:, None], index]


def _begin_shapes(x: Shape, *, beam_size: int, **settings: Any) -> list[Shape]:
    del settings
    return [(x[0], beam_size)] * 4


@op("begin_beams", "X", "Ids LogProbs Finished Lengths", lod="none", infer=_begin_shapes)
def begin_beams(x: Tensor, *, beam_size: int, start_token: int) -> tuple[Tensor, ...]:
    """Return the initial beams for the examples in x: [B, K] each.

    Only the first beam can be continued in the first step, because all beams are the same.
    """
    shape = (len(x), beam_size)
    chances = torch.full(shape, _NEVER)
    chances[:, 0] = 0.0
    finished = torch.zeros(shape, dtype=torch.bool)
    return torch.full(shape, start_token), chances, finished, torch.zeros(shape, dtype=torch.int64)


def _step_shapes(logits: Shape, before: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del logits, others, settings
    return [before] * 5


@op(
    "beam_step",
    "Logits LogProbs Finished Lengths",
    "Scores Ids Parents NextFinished NextLengths",
    lod="none",
    infer=_step_shapes,
)
def beam_step(
    logits: Tensor, before: Tensor, finished: Tensor, lengths: Tensor, *, end_token: int
) -> tuple[Tensor, ...]:
    """Select the K best continuations. logits: [B, K, V]; other arguments: [B, K].

    A finished beam is continued with the end token at no cost.
    """
    words = logits.shape[-1]
    only_end = torch.full((words,), _NEVER)
    only_end[end_token] = 0.0
    chances = torch.where(finished[..., None], only_end, logits.log_softmax(-1))
    scores, places = (chances + before[..., None]).flatten(1).topk(before.shape[1])
    parents, ids = places // words, places % words
    ended = finished.gather(1, parents)
    counts = lengths.gather(1, parents) + (~ended).long()
    return scores, ids, parents, ended | (ids == end_token), counts


@op("where_finished", "Finished X Y", lod="none", infer=lambda finished, x, *_: [x])  # noqa: ARG005
def where_finished(finished: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x where `finished` holds, otherwise y; `finished` has the leading axes of both."""
    mask = finished.reshape(*finished.shape, *[1] * (x.dim() - finished.dim()))
    return torch.where(mask, x, y)


class Decoder:
    """Base class for decoders that `dynamic_decode` runs."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """Return the inputs and states of the first step, and which examples are finished: bool."""
        raise NotImplementedError(f"{type(self).__name__} has no initialize(inits)")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Return the outputs, next states, next inputs, and which examples are finished."""
        raise NotImplementedError(f"{type(self).__name__} has no step(time, inputs, states)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> Any:
        """Convert the outputs of all steps [T, ...] and the last states to the final results."""
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
    """Keeps the beam_size best prefixes of each example.

    In shapes, B is the batch size, K the number of beams, V the number of words.

    cell: an RNNCell; embedding_fn: maps word ids to cell inputs; output_fn: maps cell outputs to
    logits [..., V].
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
        """Repeat x [B, ...] for each beam: [B * K, ...], the layout of the cell's extra inputs."""
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
        """Start the search. initial_cell_states: [B, ...] each."""
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
        """Decode one step. inputs and cell states: [B, K, ...]."""
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
        """Return whole sentences, best first: int64[T, B, K]."""
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
    """Run a decoder until all examples are finished or max_step_num is reached.

    Returns outputs [B, T, ...] ([T, B, ...] with output_time_major), the last states and, with
    return_length, the lengths. impute_finished: keep finished examples' states unchanged.
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
    with suppress(NotImplementedError):  # finalize is optional
        made, states = decoder.finalize(made, states, lengths)
    if not output_time_major:
        made = map_structure(lambda x: transpose(x, [1, 0, *range(2, len(x.shape))]), made)
    return (made, states, lengths) if return_length else (made, states)


def _written(value: Variable, time: Variable) -> Variable:
    """Return an array, created outside the loop, that collects the value of each iteration."""
    program = LayerHelper("dynamic_decode").main_program
    around = program.current_block().parent
    assert around is not None
    with program.block_guard(around):
        array = create_array(value.dtype)
    return array_write(value, time, array)


def _own(x: Variable, stop_gradient: bool = False) -> Variable:
    """Return a copy of x that the loop can write to."""
    made = assign(x)
    made.stop_gradient = stop_gradient
    return made


def _stacked(array: Variable) -> Variable:
    return tensor_array_to_tensor(array, axis=0, use_stack=True)[0]


def _kept(finished: Variable, old: Variable, new: Variable) -> Variable:
    """Keep the old rows of finished examples and take the new rows elsewhere."""
    helper = LayerHelper("impute_finished")
    made = helper.add("where_finished", {"Finished": finished, "X": old, "Y": new})
    made.dtype = new.dtype
    return made


class DecodeHelper:
    """Base class for helpers that provide the inputs of `BasicDecoder`."""

    def initialize(self) -> tuple[Any, Variable]:
        """Return the inputs of the first step, and which examples are already finished: bool[B]."""
        raise NotImplementedError(f"{type(self).__name__} has no initialize()")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return the ids of the words chosen from these outputs: int64[B]."""
        raise NotImplementedError(f"{type(self).__name__} has no sample")

    def next_inputs(
        self, time: Variable, outputs: Any, states: Any, sample_ids: Variable
    ) -> tuple[Variable, Any, Any]:
        """Return which examples are finished, the next inputs and the next states."""
        raise NotImplementedError(f"{type(self).__name__} has no next_inputs")


class TrainingHelper(DecodeHelper):
    """Takes inputs from the data: [B, T, ...], or [T, B, ...] with time_major."""

    def __init__(self, inputs: Any, sequence_length: Variable, time_major: bool = False) -> None:
        self.inputs = inputs
        self.sequence_length = sequence_length
        self.time_major = time_major
        self._helper = LayerHelper("training_helper")

    def initialize(self) -> tuple[Any, Variable]:
        zero = fill_constant([1], self.sequence_length.dtype, 0)
        return self._step(fill_constant([1], "int64", 0)), equal(self.sequence_length, zero)

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        del time, states
        return argmax(outputs, axis=-1)

    def next_inputs(
        self, time: Variable, outputs: Any, states: Any, sample_ids: Variable
    ) -> tuple[Variable, Any, Any]:
        del outputs, sample_ids
        after = increment(time, 1, in_place=False)
        finished = less_equal(self.sequence_length, cast(after, self.sequence_length.dtype))
        return finished, self._step(after), states

    def _step(self, time: Variable) -> Any:
        def taken(x: Variable) -> Variable:
            attrs = {"axis": 0 if self.time_major else 1}
            made = self._helper.add("step_of", {"X": x, "I": time}, attrs)
            made.dtype = x.dtype
            return made

        return map_structure(taken, self.inputs)


class GreedyEmbeddingHelper(DecodeHelper):
    """Feeds the embedding of the previous step's most likely word."""

    def __init__(
        self, embedding_fn: Callable[[Variable], Any], start_tokens: Variable, end_token: int
    ) -> None:
        self.embedding_fn = embedding_fn
        self.start_tokens = start_tokens
        self.end_token = fill_constant([1], "int64", end_token)

    def initialize(self) -> tuple[Any, Variable]:
        finished = fill_constant_batch_size_like(self.start_tokens, [-1], "bool", False)
        return self.embedding_fn(self.start_tokens), finished

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        del time, states
        return argmax(outputs, axis=-1)

    def next_inputs(
        self, time: Variable, outputs: Any, states: Any, sample_ids: Variable
    ) -> tuple[Variable, Any, Any]:
        del time, outputs
        return equal(sample_ids, self.end_token), self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Feeds the embedding of a word sampled from the previous step's probabilities.

    softmax_temperature: divides the logits; sampling is nearly uniform if large, nearly greedy if
        small.
    """

    def __init__(
        self,
        embedding_fn: Callable[[Variable], Any],
        start_tokens: Variable,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding_fn, start_tokens, end_token)
        self._temperature = softmax_temperature
        self._seed = seed

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        del time, states
        logits = outputs if self._temperature is None else outputs / self._temperature
        return sampling_id(softmax(logits), seed=self._seed or 0, dtype=self.start_tokens.dtype)


class _DecodedStep(NamedTuple):
    cell_outputs: Any
    sample_ids: Any


class BasicDecoder(Decoder):
    """A decoder that combines a cell with a helper that chooses the cell's inputs."""

    OutputWrapper = _DecodedStep

    def __init__(
        self, cell: Any, helper: DecodeHelper, output_fn: Callable[[Any], Any] | None = None
    ) -> None:
        self.cell = cell
        self.helper = helper
        self.output_fn = output_fn

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        inputs, finished = self.helper.initialize()
        return inputs, initial_cell_states, finished

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> Any:
        outputs, after = self.cell(inputs, states, **kwargs)
        outputs = outputs if self.output_fn is None else self.output_fn(outputs)
        words = self.helper.sample(time=time, outputs=outputs, states=after)
        words.stop_gradient = True
        finished, next_inputs, after = self.helper.next_inputs(
            time=time, outputs=outputs, states=after, sample_ids=words
        )
        return self.OutputWrapper(outputs, words), after, next_inputs, finished
