"""Rows that go different ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper

__all__ = ["IfElse", "merge_lod_tensor", "split_lod_tensor"]


def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, Variable]:
    """The rows of input where mask bool[B, 1] holds, and the others."""
    del level
    helper = LayerHelper("split_lod_tensor")
    true, false = helper.new_variable(input.dtype), helper.new_variable(input.dtype)
    inputs = {"X": helper.check_input(input), "Mask": helper.check_input(mask, "mask")}
    helper.append_op("split_lod_tensor", inputs, {"OutTrue": true, "OutFalse": false})
    true.dtype = false.dtype = input.dtype
    return true, false


def merge_lod_tensor(
    in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0
) -> Variable:
    """Rows in the order they had before they were split by mask."""
    del level, x
    helper = LayerHelper("merge_lod_tensor")
    inputs = {"InTrue": in_true, "InFalse": in_false, "Mask": helper.check_input(mask, "mask")}
    made = helper.add("merge_lod_tensor", inputs)
    made.dtype = in_true.dtype
    return made


class IfElse:
    """Rows where `cond` bool[B, 1] holds go through one block, the others through another.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     x = fluid.data("x", [None, 1])
    ...     branch = IfElse(x > 0.0)
    ...     with branch.true_block():
    ...         branch.output(branch.input(x) * 2.0)
    ...     with branch.false_block():
    ...         branch.output(branch.input(x) - 1.0)
    ...     feed = {"x": np.array([[1.0], [-1.0], [2.0]], "float32")}
    ...     fluid.Executor().run(feed=feed, fetch_list=branch())[0][:, 0].tolist()
    [2.0, -2.0, 4.0]
    """

    def __init__(self, cond: Variable, name: str | None = None) -> None:
        self._helper = LayerHelper("ifelse", name)
        self.cond = self._helper.check_input(cond, "cond")
        self._branch: int | None = None
        self._parts: dict[str, tuple[Variable, Variable]] = {}
        self._outputs: tuple[list[Variable], list[Variable]] = ([], [])

    def true_block(self) -> AbstractContextManager[None]:
        """Layers within work on rows where the condition holds."""
        return self._block(0)

    def false_block(self) -> AbstractContextManager[None]:
        """Layers within work on the other rows."""
        return self._block(1)

    @contextmanager
    def _block(self, branch: int) -> Iterator[None]:
        if self._branch is not None:
            raise ValueError("layers.IfElse: one block cannot be opened in the other")
        self._branch = branch
        try:
            yield
        finally:
            self._branch = None
        if not self._outputs[branch]:
            raise ValueError("layers.IfElse: a block must call output(...)")

    def input(self, x: Variable) -> Variable:
        """The rows of x of this block."""
        branch = self._present("input")
        if x.name not in self._parts:
            self._parts[x.name] = split_lod_tensor(x, self.cond)
        return self._parts[x.name][branch]

    def output(self, *outs: Variable) -> None:
        """What the block gives, row by row."""
        self._outputs[self._present("output")].extend(outs)

    def __call__(self) -> list[Variable]:
        """The outputs of both blocks, rows in their old order; of one, if there is only one."""
        true, false = self._outputs
        if not true or not false:
            if not true and not false:
                raise ValueError("layers.IfElse: open true_block() or false_block() first")
            return true or false
        if len(true) != len(false):
            raise ValueError(
                f"layers.IfElse: {len(true)} outputs of true_block, {len(false)} of false_block"
            )
        pairs = zip(true, false, strict=True)
        return [merge_lod_tensor(a, b, self.cond, self.cond) for a, b in pairs]

    def _present(self, what: str) -> int:
        if self._branch is None:
            raise ValueError(f"layers.IfElse: {what}() is called within true_block or false_block")
        return self._branch
