"""Loops, which run a block while a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.operators.blocks import append_with_body, flatten, pack_sequence_as
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

__all__ = ["While", "while_loop"]


def check_condition(helper: LayerHelper, condition: Any, what: str = "cond") -> Variable:
    """Return the variable if it is a single boolean; otherwise raise TypeError."""
    found = helper.check_input(condition, what)
    size = 1
    for length in found.shape:
        size *= abs(length)
    if found.dtype != "bool" or size != 1:
        raise TypeError(
            f"layers.{helper.layer_type}: {what} must be bool with one element, got {found}"
        )
    return found


class While:
    """A loop over the layers added within `block()`, which must also update the condition.

    Variables created before the loop and written in it keep their value between iterations;
    gradients flow through all iterations.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     i = fluid.layers.fill_constant([1], "int64", 0)
    ...     limit = fluid.layers.fill_constant([1], "int64", 10)
    ...     condition = fluid.layers.less_than(i, limit)
    ...     with While(condition).block():
    ...         i = fluid.layers.increment(i, 3)
    ...         condition = fluid.layers.less_than(i, limit, cond=condition)
    ...     fluid.Executor().run(fetch_list=[i])
    [array([12])]
    """

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None) -> None:
        self._helper = LayerHelper("while", name)
        self.cond_var = check_condition(self._helper, cond)
        self.is_test = is_test

    @contextmanager
    def block(self) -> Iterator[None]:
        """Use the layers in the `with` block as the loop's body."""
        with self._helper.main_program.new_block() as body:
            yield
        condition = self.cond_var.name
        if not any(condition in op.output_arg_names for op in body.ops):
            raise self._helper.refuse(
                f"nothing in the loop writes its condition '{condition}', so the loop would never "
                f"end; pass it to the comparison, as in less_than(i, n, cond={condition})"
            )
        append_with_body(
            "while",
            body,
            {"Condition": [self.cond_var]},
            {"condition": condition, "is_test": self.is_test},
        )


@layer
def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> Any:
    """Run `loop_vars = body(*loop_vars)` while `cond(*loop_vars)` holds; return the last loop_vars.

    loop_vars: variables and arrays, or lists, tuples and dicts of them.
    """
    helper = LayerHelper("while_loop", name)
    if not callable(cond) or not callable(body):
        raise TypeError(
            f"layers.while_loop: cond and body must be functions, got {cond!r}, {body!r}"
        )
    if not isinstance(loop_vars, (list, tuple)):
        raise TypeError(
            f"layers.while_loop: loop_vars must be a list of variables, got {loop_vars!r}"
        )
    if not loop_vars:
        raise ValueError("layers.while_loop: loop_vars must not be empty")
    condition = check_condition(helper, cond(*loop_vars), "what cond returns")
    kept = flatten(loop_vars)
    with While(condition, is_test, name).block():
        made = body(*loop_vars)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        found = flatten(made)
        if len(found) != len(kept):
            raise helper.refuse(
                f"body returns {len(found)} variables, but loop_vars has {len(kept)}"
            )
        again = cond(*made)
        for new, old in zip(found, kept, strict=True):
            if new is not old:
                helper.append_op("assign", {"X": new}, {"Out": old})
        helper.append_op("assign", {"X": again}, {"Out": condition})
    return pack_sequence_as(list(loop_vars), kept)
