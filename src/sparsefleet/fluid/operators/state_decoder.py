"""Decoders from `fluid.contrib`, in which one cell is used for both training and beam search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.operators.activations import log
from sparsefleet.fluid.operators.arrays import array_read, array_write
from sparsefleet.fluid.operators.beams import beam_search, beam_search_decode
from sparsefleet.fluid.operators.branches import Switch, While
from sparsefleet.fluid.operators.elementwise import elementwise_add, increment, less_than
from sparsefleet.fluid.operators.embedding import embedding
from sparsefleet.fluid.operators.filling import fill_constant, fill_constant_batch_size_like
from sparsefleet.fluid.operators.indexing import topk
from sparsefleet.fluid.operators.inspection import is_empty
from sparsefleet.fluid.operators.layer_helper import LayerHelper
from sparsefleet.fluid.operators.matrices import fc
from sparsefleet.fluid.operators.rnn_blocks import DynamicRNN
from sparsefleet.fluid.operators.sequences import lod_reset, sequence_expand
from sparsefleet.fluid.operators.shaping import reshape

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]


class InitState:
    """The initial value of a state: `init`, or `value` with the batch size of init_boot.

    need_reorder: whether init is in batch order rather than the order of the step inputs.
    """

    def __init__(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        init_boot: Variable | None = None,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> None:
        if init is None:
            if init_boot is None or shape is None:
                raise ValueError("InitState: pass init, or init_boot and shape")
            init = fill_constant_batch_size_like(init_boot, shape, dtype, value)
        self._value = init
        self._need_reorder = need_reorder

    @property
    def value(self) -> Variable:
        return self._value

    @property
    def need_reorder(self) -> bool:
        return self._need_reorder


class _Decoder(Protocol):
    """The part of a decoder's interface that its cell uses."""

    def begin_state(self, first: InitState) -> Variable: ...

    def end_state(self, name: str, before: Variable, after: Variable) -> None: ...


class StateCell:
    """One step of a decoder, with inputs and states by name and the function that updates states.

    out_state: the name of the state used for predictions.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     first = InitState(fluid.data("h", [None, 4]))
    ...     cell = StateCell({"x": None}, {"h": first}, "h")
    ...     cell.get_state("h").value.name
    'h'
    """

    def __init__(
        self,
        inputs: dict[str, Variable | None],
        states: Mapping[str, InitState],
        out_state: str,
        name: str | None = None,
    ) -> None:
        del name
        if not all(isinstance(state, InitState) for state in states.values()):
            raise ValueError(f"states must be InitState objects, got {dict(states)!r}")
        if out_state not in states:
            raise ValueError(f"out_state {out_state!r} is not one of the states {sorted(states)}")
        self._first = dict(states)
        self.inputs = dict(inputs)
        self._out_state = out_state
        self._current: dict[str, Any] = dict(states)
        self._before: dict[str, Variable] = {}
        self._decoder: _Decoder | None = None
        self._updater: Callable[[StateCell], Any] | None = None

    @property
    def state_names(self) -> list[str]:
        return list(self._first)

    def enter(self, decoder: _Decoder) -> None:
        """Attach the cell to a decoder; a cell can be in only one decoder at a time."""
        if self._decoder is not None:
            raise ValueError("the StateCell is already in a decoder; close its block() first")
        self._decoder = decoder
        self._current, self._before = dict(self._first), {}

    def leave(self) -> None:
        """Detach the cell from its decoder."""
        self._decoder = None

    def get_state(self, state_name: str) -> Any:
        """Return the current value of a state."""
        self._begin()
        if state_name not in self._current:
            raise ValueError(f"there is no state {state_name!r}; the states are {self.state_names}")
        return self._current[state_name]

    def get_input(self, input_name: str) -> Variable:
        """Return an input of the step."""
        found = self.inputs.get(input_name)
        if found is None:
            raise ValueError(f"input {input_name!r} has no value; pass it to compute_state")
        return found

    def set_state(self, state_name: str, state_value: Variable) -> None:
        """Set the value of a state in this step."""
        self._current[state_name] = state_value

    def state_updater(self, updater: Callable[[StateCell], Any]) -> Callable[[StateCell], Any]:
        """Decorator that registers the function that sets the states in each step."""
        self._updater = updater
        return updater

    def compute_state(self, inputs: Mapping[str, Variable]) -> None:
        """Run the updater on these inputs."""
        self._begin()
        for name, value in inputs.items():
            if name not in self.inputs:
                raise ValueError(
                    f"there is no input {name!r}; the inputs are {sorted(self.inputs)}"
                )
            self.inputs[name] = value
        if self._updater is None:
            raise ValueError("the StateCell has no updater; decorate one with @state_updater")
        self._updater(self)

    def update_states(self) -> None:
        """Keep the states for the next step."""
        self._begin()
        assert self._decoder is not None
        for name, before in self._before.items():
            self._decoder.end_state(name, before, self._current[name])

    def out_state(self) -> Any:
        """Return the state used for predictions."""
        return self._current[self._out_state]

    def _begin(self) -> None:
        """When first used in a decoder, replace the initial values with the decoder's current
        states.
        """
        if self._decoder is None or self._before:
            return
        for name, first in self._first.items():
            self._before[name] = self._current[name] = self._decoder.begin_state(first)


class TrainingDecoder:
    """Runs a cell over target sequences with a DynamicRNN."""

    BEFORE_DECODER = 0
    IN_DECODER = 1
    AFTER_DECODER = 2

    type = "training"

    def __init__(self, state_cell: StateCell, name: str | None = None) -> None:
        self._rnn = DynamicRNN(name)
        self._status = self.BEFORE_DECODER
        self._cell = state_cell
        state_cell.enter(self)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Use the layers in the `with` block as one step."""
        if self._status != self.BEFORE_DECODER:
            raise ValueError("TrainingDecoder: block() can only be used once")
        self._status = self.IN_DECODER
        with self._rnn.block():
            yield
        self._status = self.AFTER_DECODER
        self._cell.leave()

    def begin_state(self, first: InitState) -> Variable:
        return self._rnn.memory(init=first.value, need_reorder=first.need_reorder)

    def end_state(self, name: str, before: Variable, after: Variable) -> None:
        del name
        self._rnn.update_memory(before, after)

    @property
    def state_cell(self) -> StateCell:
        self._check("state_cell")
        return self._cell

    @property
    def dynamic_rnn(self) -> DynamicRNN:
        return self._rnn

    def step_input(self, x: Variable) -> Variable:
        """Return the current item of the sequences in x."""
        self._check("step_input")
        return self._rnn.step_input(x)

    def static_input(self, x: Variable) -> Variable:
        """Return the rows of x that belong to unfinished sequences."""
        self._check("static_input")
        return self._rnn.static_input(x)

    def output(self, *outputs: Variable) -> None:
        """Declare results of the step."""
        self._check("output")
        self._rnn.output(*outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Variable | list[Variable]:
        """Return the results as sequences."""
        if self._status != self.AFTER_DECODER:
            raise ValueError(
                "TrainingDecoder: its results are only available after block() is closed"
            )
        return self._rnn(*args, **kwargs)

    def _check(self, what: str) -> None:
        if self._status != self.IN_DECODER:
            raise ValueError(f"TrainingDecoder: {what} must be used within `with decoder.block():`")


class BeamSearchDecoder:
    """Searches for the best sequences of a cell.

    The step is defined by `decode()` or, to customize it, within `block()`.
    """

    BEFORE_BEAM_SEARCH_DECODER = 0
    IN_BEAM_SEARCH_DECODER = 1
    AFTER_BEAM_SEARCH_DECODER = 2

    type = "beam_search"

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Variable,
        init_scores: Variable,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Variable] | None = None,
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ) -> None:
        self._helper = LayerHelper("beam_search_decoder", name)
        self._first = (init_ids, init_scores)
        self._words = (target_dict_dim, word_dim)
        self._inputs = dict(input_var_dict or {})
        self._topk_size = topk_size
        self._sparse_emb = sparse_emb
        self._beam_size = beam_size
        self._end_id = end_id
        self._counter = fill_constant([1], "int64", 0)
        self._counter.stop_gradient = True
        self._zero = fill_constant([1], "int64", 0)
        self._limit = fill_constant([1], "int64", max_len)
        self._condition = less_than(self._counter, self._limit)
        self._arrays: dict[str, Variable] = {}  # keyed by the name of the variable that was read
        self._updates: list[tuple[Variable, Variable]] = []
        self._found: dict[str, Variable] = {}  # arrays of ids and scores
        self._status = self.BEFORE_BEAM_SEARCH_DECODER
        self._cell = state_cell
        state_cell.enter(self)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Use the layers in the `with` block as one step."""
        if self._status != self.BEFORE_BEAM_SEARCH_DECODER:
            raise ValueError("BeamSearchDecoder: block() can only be used once")
        self._status = self.IN_BEAM_SEARCH_DECODER
        with While(self._condition).block():
            yield
            with Switch() as switch, switch.case(self._condition):
                increment(self._counter, 1, in_place=True)
                for value, array in self._updates:
                    array_write(value, self._counter, array)
                less_than(self._counter, self._limit, cond=self._condition)
        self._status = self.AFTER_BEAM_SEARCH_DECODER
        self._cell.leave()

    def begin_state(self, first: InitState) -> Variable:
        return self.read_array(first.value)

    def end_state(self, name: str, before: Variable, after: Variable) -> None:
        del name
        self.update_array(before, after)

    @property
    def state_cell(self) -> StateCell:
        self._check("state_cell")
        return self._cell

    def early_stop(self) -> None:
        """End the search after this step."""
        fill_constant([1], "bool", False, out=self._condition)

    def decode(self) -> None:
        """Define the usual step: look up the last words, run the cell, and keep the best words."""
        with self.block():
            ids = self.read_array(self._first[0], is_ids=True)
            scores = self.read_array(self._first[1], is_scores=True)
            words = embedding(ids, list(self._words), self._sparse_emb, dtype="float32")
            given: dict[str, Variable] = {}
            kept: list[tuple[Variable, Variable]] = []
            for name, first in self._inputs.items():
                if name not in self._cell.inputs:
                    raise ValueError(
                        f"input_var_dict contains {name!r}, which is not an input of the cell"
                    )
                value = self.read_array(first)
                given[name] = sequence_expand(value, scores)
                kept.append((value, given[name]))
            for name in self._cell.state_names:
                state = self._cell.get_state(name)
                self._cell.set_state(name, sequence_expand(state, scores))
            for name in self._cell.inputs:
                given.setdefault(name, words)
            self._cell.compute_state(given)
            state = lod_reset(self._cell.out_state(), y=scores)
            chances = fc(state, self._words[0], act="softmax")
            best, places = topk(chances, k=self._topk_size)
            total = elementwise_add(log(best), reshape(scores, [-1]), axis=0)
            next_ids, next_scores = beam_search(
                ids, scores, places, total, self._beam_size, end_id=self._end_id, level=0
            )[:2]
            with Switch() as switch:
                with switch.case(is_empty(next_ids)):
                    self.early_stop()
                with switch.default():
                    self._cell.update_states()
                    self.update_array(ids, next_ids)
                    self.update_array(scores, next_scores)
                    for before, after in kept:
                        self.update_array(before, after)

    def read_array(self, init: Variable, is_ids: bool = False, is_scores: bool = False) -> Variable:
        """Return the value that the last step passed to `update_array` or, in the first step,
        `init`.
        """
        self._check("read_array")
        if is_ids and is_scores:
            raise ValueError("an array cannot hold both ids and scores")
        with self._outside():
            array = array_write(self._helper.check_input(init, "init"), self._zero)
        if is_ids or is_scores:
            self._found["ids" if is_ids else "scores"] = array
        value = array_read(array, self._counter)
        self._arrays[value.name] = array
        return value

    def update_array(self, array: Variable, value: Variable) -> None:
        """Set the value that `read_array` will return in the next step instead of `array`."""
        self._check("update_array")
        found = self._arrays.get(self._helper.check_input(array, "array").name)
        if found is None:
            raise ValueError(f"{array.name} was not returned by read_array")
        self._updates.append((self._helper.check_input(value, "value"), found))

    def __call__(self) -> tuple[Variable, ...]:
        """Return the ids and scores of the best sequences."""
        if self._status != self.AFTER_BEAM_SEARCH_DECODER:
            raise ValueError(
                "BeamSearchDecoder: its results are only available after block() is closed"
            )
        if set(self._found) != {"ids", "scores"}:
            raise ValueError(
                "read ids with read_array(is_ids=True) and scores with read_array(is_scores=True)"
            )
        return tuple(
            beam_search_decode(
                self._found["ids"], self._found["scores"], self._beam_size, self._end_id
            )
        )

    def _check(self, what: str) -> None:
        if self._status != self.IN_BEAM_SEARCH_DECODER:
            raise ValueError(
                f"BeamSearchDecoder: {what} must be used within `with decoder.block():`"
            )

    def _outside(self) -> AbstractContextManager[None]:
        program = self._helper.main_program
        around = program.current_block().parent
        assert around is not None
        return program.block_guard(around)
