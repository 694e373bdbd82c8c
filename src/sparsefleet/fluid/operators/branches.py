"""Loops and branches, which run a block depending on a condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.operators.blocks import append_with_body, flatten, pack_sequence_as
from sparsefleet.fluid.operators.elementwise import equal
from sparsefleet.fluid.operators.filling import fill_constant
from sparsefleet.fluid.operators.inspection import is_empty
from sparsefleet.fluid.operators.layer_helper import LayerHelper, check_variable_and_dtype, layer

__all__ = [
    "IfElse",
    "Switch",
    "While",
    "case",
    "cond",
    "merge_lod_tensor",
    "split_lod_tensor",
    "switch_case",
    "while_loop",
]


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


Function = Callable[[], Any]


@contextmanager
def _run_if(helper: LayerHelper, condition: Variable) -> Iterator[None]:
    """Run the layers in the `with` block if the condition holds."""
    with helper.main_program.new_block() as body:
        yield
    inputs = {"Condition": [condition]}
    append_with_body("conditional_block", body, inputs, {"condition": condition.name})


def _not(helper: LayerHelper, condition: Variable) -> Variable:
    made = helper.add("logical_not", {"X": condition})
    made.stop_gradient = True
    return made


def _both(helper: LayerHelper, one: Variable, other: Variable) -> Variable:
    made = helper.add("logical_and", {"X": one, "Y": other})
    made.stop_gradient = True
    return made


class Switch:
    """Runs the first case whose condition holds, otherwise the default; used in a `with` block.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     step = fluid.data("step", [1], "int64")
    ...     rate = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True)
    ...     with Switch() as switch:
    ...         with switch.case(step < 3):
    ...             _ = fluid.layers.fill_constant([1], "float32", 0.5, out=rate)
    ...         with switch.default():
    ...             _ = fluid.layers.fill_constant([1], "float32", 0.25, out=rate)
    ...     exe = fluid.Executor()
    ...     _ = exe.run(fluid.default_startup_program())
    ...     [exe.run(feed={"step": np.array([i])}, fetch_list=[rate])[0].item() for i in (2, 3)]
    [0.5, 0.25]
    """

    def __init__(self, name: str | None = None) -> None:
        self._helper = LayerHelper("switch", name)
        self._inside = False
        self._none_before: Variable | None = None

    @contextmanager
    def case(self, condition: Variable) -> Iterator[None]:
        """Run the layers in the `with` block if the condition holds and no earlier case ran."""
        helper = self._checked("case")
        check_condition(helper, condition, "the condition of a case")
        before = self._none_before
        negated = _not(helper, condition)
        self._none_before = negated if before is None else _both(helper, before, negated)
        with _run_if(helper, condition if before is None else _both(helper, before, condition)):
            yield

    @contextmanager
    def default(self) -> Iterator[None]:
        """Run the layers in the `with` block if no case ran."""
        helper = self._checked("default")
        if self._none_before is None:
            raise ValueError("layers.Switch: default() must follow a case()")
        with _run_if(helper, self._none_before):
            yield

    def _checked(self, what: str) -> LayerHelper:
        if not self._inside:
            raise ValueError(
                f"layers.Switch: {what}() must be called within `with Switch() as switch:`"
            )
        return self._helper

    def __enter__(self) -> Switch:
        self._inside = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside = False


@layer
def cond(
    pred: Variable,
    true_fn: Function | None = None,
    false_fn: Function | None = None,
    name: str | None = None,
) -> Any:
    """Run true_fn if pred holds, otherwise false_fn; return the results of that function.

    Both must return the same structure: a variable, or lists, tuples and dicts of variables, or
    None.
    """
    helper = LayerHelper("cond", name)
    check_condition(helper, pred, "pred")
    for what, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        if function is not None and not callable(function):
            raise TypeError(f"layers.cond: {what} must be a function, got {function!r}")
    true, true_leaves = _branch(helper, pred, true_fn)
    false, false_leaves = _branch(helper, _not(helper, pred), false_fn)
    if len(true_leaves) != len(false_leaves):
        raise helper.refuse(
            "true_fn and false_fn must return the same structure, got "
            f"{_shown(true)} and {_shown(false)}"
        )
    if not true_leaves:
        return None
    mask = helper.add("cast", {"X": pred}, {"out_dtype": "int32"})
    return pack_sequence_as(
        true,
        [_selected(helper, *pair, mask) for pair in zip(false_leaves, true_leaves, strict=True)],
    )


def _branch(
    helper: LayerHelper, condition: Variable, function: Function | None
) -> tuple[Any, list[Variable]]:
    """Return the function's results, and the variables outside the branch that receive them."""
    if function is None:
        return None, []
    around = helper.main_program.current_block()
    leaves = []
    with _run_if(helper, condition):
        made = function()
        if made is None:
            return None, []
        for leaf in flatten(made):
            helper.check_input(leaf, "a branch's result")
            with helper.main_program.block_guard(around):
                outside = helper.new_variable(leaf.dtype, lod_level=leaf.lod_level)
                outside.type = leaf.type
            helper.append_op("assign", {"X": leaf}, {"Out": outside})
            leaves.append(outside)
    return made, leaves


def _selected(helper: LayerHelper, false: Variable, true: Variable, mask: Variable) -> Variable:
    made = helper.add("select_input", {"X": [false, true], "Mask": mask})
    same = len(false.shape) == len(true.shape)
    sizes = zip(false.shape, true.shape, strict=False)
    made.shape = tuple(a if a == b else -1 for a, b in sizes) if same else true.shape
    made.dtype, made.lod_level, made.type = true.dtype, true.lod_level, true.type
    return made


def _shown(made: Any) -> str:
    return "nothing" if made is None else f"{len(flatten(made))} variables"


@layer
def case(
    pred_fn_pairs: Sequence[tuple[Variable, Function]],
    default: Function | None = None,
    name: str | None = None,
) -> Any:
    """Run the function in the first pair whose condition holds, otherwise the default.

    default: if None, the last function is the default.
    """
    pairs = list(pred_fn_pairs) if isinstance(pred_fn_pairs, (list, tuple)) else []
    if not pairs or any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise TypeError(
            "layers.case: pred_fn_pairs must be a list of (condition, function), got "
            f"{pred_fn_pairs!r}"
        )
    if default is None:
        _, default = pairs.pop()
    return _chain(pairs, default, name)


def _chain(pairs: Sequence[tuple[Variable, Function]], default: Function, name: str | None) -> Any:
    if not pairs:
        return default()
    (condition, function), *others = pairs
    return cond(condition, function, lambda: _chain(others, default, None), name)


@layer
def switch_case(
    branch_index: Variable,
    branch_fns: Mapping[int, Function] | Sequence[Any],
    default: Function | None = None,
    name: str | None = None,
) -> Any:
    """Run the function whose index is `branch_index`, or the default if there is none.

    branch_fns: a dict from index to function, (index, function) pairs, or a list of functions.
    default: if None, the function with the largest index is the default.
    """
    check_variable_and_dtype(
        branch_index, "branch_index", ("uint8", "int32", "int64"), "layers.switch_case"
    )
    if branch_index.dtype != "int64":
        branch_index = branch_index.astype("int64")
    items = branch_fns.items() if isinstance(branch_fns, Mapping) else branch_fns
    numbered = [
        item if isinstance(item, tuple) else (place, item) for place, item in enumerate(items)
    ]
    if not numbered or any(not callable(function) for _, function in numbered):
        raise TypeError(
            f"layers.switch_case: branch_fns must map numbers to functions, got {branch_fns!r}"
        )
    if len({number for number, _ in numbered}) != len(numbered):
        raise ValueError(f"layers.switch_case: a number appears twice in {branch_fns!r}")
    numbered.sort(key=lambda item: int(item[0]))
    default = numbered.pop()[1] if default is None else default
    pairs = [
        (equal(branch_index, fill_constant([1], branch_index.dtype, int(number))), function)
        for number, function in numbered
    ]
    return _chain(pairs, default, name)


def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, Variable]:
    """Split the rows of input, or the sequences in a level, by mask bool[B, 1]."""
    helper = LayerHelper("split_lod_tensor")
    helper.check_input(input)
    true, false = helper.new_variable(input.dtype), helper.new_variable(input.dtype)
    inputs = {"X": helper.check_input(input), "Mask": helper.check_input(mask, "mask")}
    outputs = {"OutTrue": true, "OutFalse": false}
    helper.append_op("split_lod_tensor", inputs, outputs, {"level": level})
    true.dtype = false.dtype = input.dtype
    true.lod_level = false.lod_level = max(input.lod_level - level, 0)
    return true, false


def merge_lod_tensor(
    in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0
) -> Variable:
    """Merge rows or sequences in the order they had before the split by mask."""
    del level
    helper = LayerHelper("merge_lod_tensor")
    given = {"x": x, "mask": mask, "in_true": in_true, "in_false": in_false}
    for what, value in given.items():
        helper.check_input(value, what)
    inputs = {"InTrue": in_true, "InFalse": in_false, "Mask": mask}
    made = helper.add("merge_lod_tensor", inputs)
    made.dtype, made.lod_level = in_true.dtype, in_true.lod_level
    return made


def select_output(
    input: Variable, outputs: Sequence[Variable], mask: Variable
) -> Sequence[Variable]:
    """Assign the input to the output whose index is mask, int32[1]; other outputs get no value."""
    helper = LayerHelper("select_output")
    if not isinstance(outputs, (list, tuple)):
        raise TypeError(f"layers.select_output: outputs must be a list, got {outputs!r}")
    for what, value in (("input", input), ("mask", mask), *(("outputs", x) for x in outputs)):
        helper.check_input(value, what)
    if mask.dtype != "int32":
        raise TypeError(f"layers.select_output: mask must be int32, got {mask.dtype}")
    inputs, attrs = {"X": input, "Mask": mask}, {"count": len(outputs)}
    helper.append_op("select_output", inputs, {"Out": list(outputs)}, attrs)
    for output in outputs:
        output.dtype, output.lod_level = input.dtype, input.lod_level
    return outputs


def select_input(inputs: Sequence[Variable], mask: Variable) -> Variable:
    """Return the input whose index is mask, int32[1]; only that input needs a value."""
    helper = LayerHelper("select_input")
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"layers.select_input: inputs must be a list, got {inputs!r}")
    for what, value in (("mask", mask), *(("inputs", x) for x in inputs)):
        helper.check_input(value, what)
    if mask.dtype != "int32":
        raise TypeError(f"layers.select_input: mask must be int32, got {mask.dtype}")
    made = helper.add("select_input", {"X": list(inputs), "Mask": mask}, dtype=inputs[0].dtype)
    made.dtype, made.lod_level = inputs[0].dtype, inputs[0].lod_level
    return made


class ConditionalBlock:
    """Runs the layers within `block()` if the condition holds.

    inputs: with is_scalar_condition, the condition bool[1]; otherwise, variables that must not be
        empty.
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        is_scalar_condition: bool = False,
        name: str | None = None,
    ) -> None:
        self._helper = LayerHelper("conditional_block", name)
        for item in inputs:
            self._helper.check_input(item, "inputs")
        condition = inputs[0]
        if not is_scalar_condition:
            condition = _not(self._helper, is_empty(inputs[0]))
            for item in inputs[1:]:
                there = _not(self._helper, is_empty(item))
                condition = _both(self._helper, condition, there)
        self._condition = condition

    def block(self) -> AbstractContextManager[None]:
        """Use the layers in the `with` block as the body."""
        return _run_if(self._helper, self._condition)


class IfElse:
    """Runs one block on the rows where `cond` bool[B, 1] holds, and another block on the other
    rows.

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
        """Apply the layers in the `with` block to rows where the condition holds."""
        return self._block(0)

    def false_block(self) -> AbstractContextManager[None]:
        """Apply the layers in the `with` block to the other rows."""
        return self._block(1)

    @contextmanager
    def _block(self, branch: int) -> Iterator[None]:
        if self._branch is not None:
            raise ValueError("layers.IfElse: blocks cannot be nested")
        self._branch = branch
        try:
            yield
        finally:
            self._branch = None
        if not self._outputs[branch]:
            raise ValueError("layers.IfElse: a block must call output(...)")

    def input(self, x: Variable) -> Variable:
        """Return the rows of x that the current block applies to."""
        branch = self._present("input")
        if x.name not in self._parts:
            self._parts[x.name] = split_lod_tensor(x, self.cond)
        return self._parts[x.name][branch]

    def output(self, *outs: Variable) -> None:
        """Set the outputs of the block, each with one row per input row."""
        self._outputs[self._present("output")].extend(outs)

    def __call__(self) -> list[Variable]:
        """Return the blocks' outputs, with rows in their original order."""
        true, false = self._outputs
        if not true or not false:
            if not true and not false:
                raise ValueError("layers.IfElse: open true_block() or false_block() first")
            return true or false
        if len(true) != len(false):
            raise ValueError(
                f"layers.IfElse: true_block has {len(true)} outputs and false_block has "
                f"{len(false)}, expected the same number of outputs"
            )
        pairs = zip(true, false, strict=True)
        return [merge_lod_tensor(a, b, self.cond, self.cond) for a, b in pairs]

    def _present(self, what: str) -> int:
        if self._branch is None:
            raise ValueError(
                f"layers.IfElse: {what}() must be called within true_block or false_block"
            )
        return self._branch
