"""A block that is run for each step of sequences of one length. Letters: T steps, B batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparsefleet.fluid import unique_name
from sparsefleet.fluid.framework import Block, Variable
from sparsefleet.fluid.layer_helper import LayerHelper
from sparsefleet.fluid.layers._bodies import append_with_body, moved_out
from sparsefleet.fluid.layers.filling import fill_constant_batch_size_like

__all__ = ["StaticRNN"]


class StaticRNN:
    """Layers within `step()` are run for each of the T steps of sequences [T, B, ...].

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
        self._sequences: dict[str, Variable] = {}  # by the name of the step's variable
        self._memories: dict[str, tuple[Variable, str | None]] = {}  # first value, name of the next
        self._outputs: list[tuple[Variable, Variable]] = []  # of a step, of all steps
        self.seq_len: int | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Layers within are one step."""
        if self._body is not None:
            raise ValueError("layers.StaticRNN: step() is called once")
        with self._helper.main_program.new_block() as self._body:
            self._is_open = True
            yield
            self._is_open = False
        self._complete(self._body)

    def step_input(self, x: Variable) -> Variable:
        """The present element of x [T, ...]."""
        body = self._inside("step_input")
        length = self._helper.check_input(x, "x").shape[0]
        if self.seq_len is None:
            self.seq_len = length
        elif x.shape[0] != -1 and self.seq_len not in (-1, length):
            raise ValueError(
                f"layers.StaticRNN: step_input of {length} steps beside one of {self.seq_len}"
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
        """What `update_memory` gave in the step before; in the first one `init`.

        Without init: init_value in this shape, with the batch's size taken from batch_ref: a
        sequence [T, B, ...] or its step.
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
        """The memory has this value in the next step."""
        self._inside("update_memory")
        if mem.name not in self._memories:
            raise ValueError(f"layers.StaticRNN: {mem} is no memory of this network")
        self._memories[mem.name] = (self._memories[mem.name][0], var.name)

    def step_output(self, o: Variable) -> None:
        """A result of the step, to be stacked: [T, ...]."""
        body = self._inside("step_output")
        around = body.parent
        assert around is not None
        name = unique_name.generate(f"{self._helper.name}.out")
        length = -1 if self.seq_len is None else self.seq_len
        outside = around.create_var(name, (length, *o.shape), o.dtype)
        self._outputs.append((o, outside))

    def output(self, *outputs: Variable) -> None:
        """Several results of the step."""
        for each in outputs:
            self.step_output(each)

    def __call__(self, *args: Any, **kwargs: Any) -> Variable | list[Variable]:
        """The results, each [T, ...]: one variable, or a list."""
        del args, kwargs
        if self._body is None or self._is_open:
            raise ValueError("layers.StaticRNN: it has results after its step() was closed")
        if not self._outputs:
            raise ValueError("layers.StaticRNN: call step_output(...) within step()")
        found = [outside for _, outside in self._outputs]
        return found[0] if len(found) == 1 else found

    def _inside(self, what: str) -> Block:
        if not self._is_open or self._body is None:
            raise ValueError(f"layers.StaticRNN: {what}() is called within `with rnn.step():`")
        return self._body

    def _complete(self, body: Block) -> None:
        if not self._sequences:
            raise self._helper.refuse("call step_input(...) within step()")
        still = [name for name, (_, after) in self._memories.items() if after is None]
        if still:
            raise self._helper.refuse(f"memory '{still[0]}' is never updated: call update_memory")
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
