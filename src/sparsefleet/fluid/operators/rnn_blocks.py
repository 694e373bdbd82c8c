"""Recurrent networks whose step is defined by a block of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sparsefleet.fluid.framework import Block, Variable, unique_name
from sparsefleet.fluid.operators.arrays import (
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
from sparsefleet.fluid.operators.blocks import append_with_body, moved_out
from sparsefleet.fluid.operators.branches import While
from sparsefleet.fluid.operators.elementwise import increment, less_than
from sparsefleet.fluid.operators.filling import fill_constant, fill_constant_batch_size_like
from sparsefleet.fluid.operators.layer_helper import LayerHelper

__all__ = ["DynamicRNN", "StaticRNN"]


class StaticRNN:
    """Runs the layers within `step()` for each of the T steps of sequences [T, B, ...].

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     x = fluid.data("x", [3, None, 1])
    ...     rnn = StaticRNN()
    ...     with rnn.step():
    ...         item = rnn.step_input(x)
    ...         before = rnn.memory(shape=[-1, 1], batch_ref=item)
    ...         total = before + item
    ...         rnn.update_memory(before, total)
    ...         rnn.step_output(total)
    ...     feed = {"x": np.ones((3, 1, 1), "float32")}
    ...     fluid.Executor().run(feed=feed, fetch_list=[rnn()])[0].reshape(-1).tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(self, name: str | None = None) -> None:
        self._helper = LayerHelper("static_rnn", name)
        self._body: Block | None = None
        self._is_open = False
        self._sequences: dict[str, Variable] = {}  # keyed by the name of the variable in a step
        # Initial value, name of the next value.
        self._memories: dict[str, tuple[Variable, str | None]] = {}
        self._outputs: list[
            tuple[Variable, Variable]
        ] = []  # name in a step, and name over all steps
        self.seq_len: int | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Use the layers in the `with` block as one step."""
        if self._body is not None:
            raise ValueError("layers.StaticRNN: step() can be used only once")
        with self._helper.main_program.new_block() as self._body:
            self._is_open = True
            yield
            self._is_open = False
        self._complete(self._body)

    def step_input(self, x: Variable) -> Variable:
        """Return the current element of x [T, ...]."""
        body = self._inside("step_input")
        length = self._helper.check_input(x, "x").shape[0]
        if self.seq_len is None:
            self.seq_len = length
        elif x.shape[0] != -1 and self.seq_len not in (-1, length):
            raise ValueError(
                f"layers.StaticRNN: step_input has {length} steps, but an earlier step_input has "
                f"{self.seq_len}"
            )
        name = unique_name.generate(f"{x.name}@step")
        made = body.create_var(name, x.shape[1:], x.dtype)
        self._sequences[made.name] = x
        return made

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """Return the value set by the last `update_memory` or, in the first step, `init`.

        Without init, the initial value is filled with init_value in the given shape. batch_ref, a
        sequence [T, B, ...] or one of its steps, provides the batch size.
        """
        body = self._inside("memory")
        if init is None:
            if shape is None or batch_ref is None:
                raise ValueError("layers.StaticRNN: memory needs init, or shape and batch_ref")
            around = body.parent
            assert around is not None
            like = self._sequences.get(batch_ref.name, batch_ref)
            with body.program.block_guard(around):
                init = fill_constant_batch_size_like(
                    like, shape, like.dtype, init_value, ref_batch_dim_idx, init_batch_dim_idx
                )
        init = moved_out(body, init)
        name = unique_name.generate(f"{self._helper.name}@mem")
        made = body.create_var(name, init.shape, init.dtype)
        self._memories[made.name] = (init, None)
        return made

    def update_memory(self, mem: Variable, var: Variable) -> None:
        """Set the memory's value in the next step."""
        self._inside("update_memory")
        if mem.name not in self._memories:
            raise ValueError(f"layers.StaticRNN: {mem} is not a memory of this network")
        self._memories[mem.name] = (self._memories[mem.name][0], var.name)

    def step_output(self, o: Variable) -> None:
        """Declare a result of the step, to be stacked: [T, ...]."""
        body = self._inside("step_output")
        around = body.parent
        assert around is not None
        name = unique_name.generate(f"{self._helper.name}.out")
        length = -1 if self.seq_len is None else self.seq_len
        outside = around.create_var(name, (length, *o.shape), o.dtype)
        self._outputs.append((o, outside))

    def output(self, *outputs: Variable) -> None:
        """Declare several results of the step."""
        for each in outputs:
            self.step_output(each)

    def __call__(self, *args: Any, **kwargs: Any) -> Variable | list[Variable]:
        """Return the results, each [T, ...], as one variable or a list."""
        del args, kwargs
        if self._body is None or self._is_open:
            raise ValueError(
                "layers.StaticRNN: its results are only available after step() is closed"
            )
        if not self._outputs:
            raise ValueError("layers.StaticRNN: call step_output(...) within step()")
        found = [outside for _, outside in self._outputs]
        return found[0] if len(found) == 1 else found

    def _inside(self, what: str) -> Block:
        if not self._is_open or self._body is None:
            raise ValueError(f"layers.StaticRNN: {what}() must be called within `with rnn.step():`")
        return self._body

    def _complete(self, body: Block) -> None:
        if not self._sequences:
            raise self._helper.refuse("call step_input(...) within step()")
        still = [name for name, (_, after) in self._memories.items() if after is None]
        if still:
            raise self._helper.refuse(f"memory '{still[0]}' is never updated; call update_memory")
        first = [init for init, _ in self._memories.values()]
        after = [name for _, name in self._memories.values()]
        steps = [each.name for each, _ in self._outputs]
        append_with_body(
            "recurrent",
            body,
            {"Sequences": list(self._sequences.values()), "Initial": first},
            {
                "sequences": [x.name for x in self._sequences.values()],
                "steps": list(self._sequences),
                "initial": [init.name for init in first],
                "before": list(self._memories),
                "after": after,
                "step_outputs": steps,
                "results": list(dict.fromkeys([*after, *steps])),
            },
            [outside.name for _, outside in self._outputs],
        )


class DynamicRNN:
    """Runs the layers within `block()` for each step of the sequences, leaving out finished
    sequences.

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
        """Use the layers in the `with` block as one step."""
        if self._state != "before":
            raise ValueError("layers.DynamicRNN: block() can be used only once")
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
        """Return the current item of each sequence in x that has not ended, longest first."""
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
        """Return the rows or sequences in x that belong to unfinished sequences."""
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
        """Return the value from the last `update_memory` or, in the first step, `init` or `value`.

        shape: the shape of one row. need_reorder: whether init is in batch order, which is usual;
            otherwise, it is in the order of the step inputs, longest first.
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
        """Set the memory's value in the next step."""
        self._inside("update_memory")
        array = self._memories.get(self._helper.check_input(ex_mem, "ex_mem").name)
        if array is None:
            raise self._helper.refuse(f"{ex_mem} is not a memory of this network")
        self._updates.append((self._helper.check_input(new_mem, "new_mem"), array))

    def output(self, *outputs: Variable) -> None:
        """Declare results of the step, which become sequences as long as the step inputs."""
        self._inside("output")
        for each in outputs:
            with self._outside():
                array = create_array(each.dtype)
            array_write(each, self._step, array)
            self._arrays.append(array)

    def __call__(self, *args: Any, **kwargs: Any) -> Variable | list[Variable]:
        """Return the results as sequences, as one variable or a list."""
        del args, kwargs
        if self._state != "after":
            raise ValueError(
                "layers.DynamicRNN: its results are only available after block() is closed"
            )
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs

    def _inside(self, what: str) -> None:
        if self._state != "inside":
            raise ValueError(
                f"layers.DynamicRNN: {what}() must be called within `with rnn.block():`"
            )

    def _known_table(self, what: str) -> Variable:
        if self._table is None:
            raise self._helper.refuse(f"{what} must be called after step_input")
        return self._table

    def _outside(self) -> AbstractContextManager[None]:
        """Make the layers in the `with` block run before the loop."""
        program = self._helper.main_program
        around: Block | None = program.current_block().parent
        assert around is not None
        return program.block_guard(around)
