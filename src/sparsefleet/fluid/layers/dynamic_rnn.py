"""A block that is run for each step of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sparsefleet.fluid.framework import Block, Variable
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.layers._bodies import moved_out
from sparsefleet.fluid.layers.arrays import (
    array_read,
    array_to_lod_tensor,
    array_write,
    create_array,
    lod_rank_table,
    lod_tensor_to_array,
    max_sequence_len,
    reorder_lod_tensor_by_rank,
    shrink_memory,
)
from sparsefleet.fluid.layers.comparisons import less_than
from sparsefleet.fluid.layers.elementwise import increment
from sparsefleet.fluid.layers.filling import fill_constant, fill_constant_batch_size_like
from sparsefleet.fluid.layers.loops import While

__all__ = ["DynamicRNN"]


class DynamicRNN:
    """Layers within `block()` are run for each step; sequences that have ended take no part.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     x = fluid.data("x", [None, 1], lod_level=1)
    ...     rnn = DynamicRNN()
    ...     with rnn.block():
    ...         item = rnn.step_input(x)
    ...         before = rnn.memory(shape=[1])
    ...         total = before + item
    ...         rnn.update_memory(before, total)
    ...         rnn.output(total)
    ...     last = fluid.layers.sequence_last_step(rnn())
    ...     rows = np.array([[1.0], [2.0], [3.0]], "float32")
    ...     feed = {"x": fluid.create_lod_tensor(rows, [[1, 2]])}
    ...     fluid.Executor().run(feed=feed, fetch_list=[last])[0].tolist()
    [[1.0], [5.0]]
    """

    def __init__(self, name: str | None = None) -> None:
        self._helper = LayerHelper("dynamic_rnn", name)
        self._state = "before"
        self._step = fill_constant([1], "int64", 0)
        self._zero: Variable | None = None
        self._condition = self._helper.new_variable("bool", stop_gradient=True)
        self._condition.shape = (1,)
        self._table: Variable | None = None
        self._limit: Variable | None = None
        self._first_array: Variable | None = None
        self._memories: dict[str, Variable] = {}  # arrays, by the name of the memory
        self._updates: list[tuple[Variable, Variable]] = []
        self._arrays: list[Variable] = []
        self._outputs: list[Variable] = []

    @contextmanager
    def block(self) -> Iterator[None]:
        """Layers within are one step."""
        if self._state != "before":
            raise ValueError("layers.DynamicRNN: block() is called once")
        with While(self._condition).block():
            self._state = "inside"
            yield
            self._state = "after"
            if self._limit is None:
                raise self._helper.refuse("call step_input(...) within block()")
            increment(self._step)
            for value, array in self._updates:
                array_write(value, self._step, array)
            less_than(self._step, self._limit, cond=self._condition)
        self._outputs = [
            array_to_lod_tensor(array, self._known_table("output")) for array in self._arrays
        ]

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """The present item of the sequences of x that have one, the longest sequences first."""
        self._inside("step_input")
        if self._helper.check_input(x, "x").lod_level <= level:
            raise self._helper.refuse(f"step_input must have lod_level > {level}, got {x}")
        with self._outside():
            if self._table is None:
                self._table = lod_rank_table(x, level)
                self._limit = max_sequence_len(self._table)
                less_than(self._step, self._limit, cond=self._condition)
            array = lod_tensor_to_array(x, self._table)
            if self._first_array is None:
                self._first_array = array
        return array_read(array, self._step)

    def static_input(self, x: Variable) -> Variable:
        """The rows or sequences of x that belong to sequences which go on."""
        self._inside("static_input")
        table = self._known_table("static_input")
        with self._outside():
            ordered = reorder_lod_tensor_by_rank(self._helper.check_input(x, "x"), table)
        return shrink_memory(ordered, self._step, table)

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Variable:
        """What `update_memory` gave in the step before; in the first one `init`, or `value`.

        shape: of one row. need_reorder: init has the order of the batch, as it usually does, not
        that of the step inputs, the longest first.
        """
        self._inside("memory")
        table = self._known_table("memory")
        if init is not None:
            init = moved_out(self._helper.main_program.current_block(), init)
        with self._outside():
            if self._zero is None:
                self._zero = fill_constant([1], "int64", 0)
            if init is None:
                if shape is None:
                    raise self._helper.refuse("memory needs init or shape")
                assert self._first_array is not None
                like = array_read(self._first_array, self._zero)
                init = fill_constant_batch_size_like(like, [-1, *shape], dtype, value)
            elif need_reorder:
                init = reorder_lod_tensor_by_rank(init, table)
            array = array_write(init, self._zero)
        made = shrink_memory(array_read(array, self._step), self._step, table)
        self._memories[made.name] = array
        return made

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """The memory has this value in the next step."""
        self._inside("update_memory")
        array = self._memories.get(self._helper.check_input(ex_mem, "ex_mem").name)
        if array is None:
            raise self._helper.refuse(f"{ex_mem} is no memory of this network")
        self._updates.append((self._helper.check_input(new_mem, "new_mem"), array))

    def output(self, *outputs: Variable) -> None:
        """Results of the step, which become sequences like those of the step inputs."""
        self._inside("output")
        for each in outputs:
            with self._outside():
                array = create_array(each.dtype)
            array_write(each, self._step, array)
            self._arrays.append(array)

    def __call__(self, *args: Any, **kwargs: Any) -> Variable | list[Variable]:
        """The results, as sequences: one variable, or a list."""
        del args, kwargs
        if self._state != "after":
            raise ValueError("layers.DynamicRNN: it has results after its block() was closed")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs

    def _inside(self, what: str) -> None:
        if self._state != "inside":
            raise ValueError(f"layers.DynamicRNN: {what}() is called within `with rnn.block():`")

    def _known_table(self, what: str) -> Variable:
        if self._table is None:
            raise self._helper.refuse(f"{what} is called after step_input")
        return self._table

    def _outside(self) -> AbstractContextManager[None]:
        """Layers within go before the loop."""
        program = self._helper.main_program
        around: Block | None = program.current_block().parent
        assert around is not None
        return program.block_guard(around)
