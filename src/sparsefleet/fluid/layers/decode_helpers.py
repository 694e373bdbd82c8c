"""Where the inputs of decoding steps come from: the data, or what was decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.layers.activations import softmax
from sparsefleet.fluid.layers.comparisons import equal, less_equal
from sparsefleet.fluid.layers.decoding import Decoder
from sparsefleet.fluid.layers.elementwise import increment
from sparsefleet.fluid.layers.filling import fill_constant, fill_constant_batch_size_like
from sparsefleet.fluid.layers.patterns import sampling_id
from sparsefleet.fluid.layers.reductions import argmax
from sparsefleet.fluid.layers.shaping import cast
from sparsefleet.fluid.layers.structures import map_structure

__all__ = [
    "BasicDecoder",
    "DecodeHelper",
    "GreedyEmbeddingHelper",
    "SampleEmbeddingHelper",
    "TrainingHelper",
]


class DecodeHelper:
    """What `BasicDecoder` asks for inputs; helpers of your own derive from it."""

    def initialize(self) -> tuple[Any, Variable]:
        """Inputs of the first step, and what is finished before it: bool[B]."""
        raise NotImplementedError(f"{type(self).__name__} has no initialize()")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Words for these outputs: int64[B]."""
        raise NotImplementedError(f"{type(self).__name__} has no sample")

    def next_inputs(
        self, time: Variable, outputs: Any, states: Any, sample_ids: Variable
    ) -> tuple[Variable, Any, Any]:
        """What is finished, inputs of the next step, and its states."""
        raise NotImplementedError(f"{type(self).__name__} has no next_inputs")


class TrainingHelper(DecodeHelper):
    """Inputs from the data: [B, T, ...], or [T, B, ...] with time_major."""

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
    """Each input is the embedding of the likeliest word of the step before."""

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
    """Each input is the embedding of a word drawn by the probabilities of the step before.

    softmax_temperature: what logits are divided by; large: nearly even, small: nearly greedy.
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
    """A cell with a helper that chooses its inputs."""

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
