"""Programs rewritten so that some operators compute in half precision."""

from __future__ import annotations

from typing import Literal

from sparsefleet.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists
from sparsefleet.fluid.framework import Block, Operator, Parameter, Program, Variable
from sparsefleet.fluid.lowering.shapes import operator_def

__all__ = ["rewrite_program"]

Kind = Literal["white", "black"]

_DTYPE: dict[Kind, str] = {"white": "float16", "black": "float32"}
_SUFFIX = {"float16": "fp16", "float32": "fp32"}


def rewrite_program(main_prog: Program, amp_lists: AutoMixedPrecisionLists) -> None:
    """Inserts a `cast` wherever a value goes from an operator in float32 to one in half, or back.

    What white operators make is declared float16, which a run has as bfloat16 on the CPU.
    Parameters stay float32: operators read copies of them. Only the outermost block is rewritten;
    what blocks within it read or write stays float32, as do rows of tables.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     out = fluid.layers.fc(fluid.data("x", [None, 2]), 1, bias_attr=False)
    ...     rewrite_program(fluid.default_main_program(), AutoMixedPrecisionLists())
    ...     [op.type for op in fluid.default_main_program().global_block().ops], out.dtype
    (['cast', 'cast', 'mul'], 'float16')
    """
    block = main_prog.global_block()
    kinds = _kinds(block, amp_lists)
    casts = _Casts(block)
    rewritten: list[Operator] = []
    for op, kind in zip(block.ops, kinds, strict=True):
        if kind is not None:
            rewritten += casts.before(op, kind)
            if kind == "white":
                _declare_half(block, op)
        rewritten.append(op)
        casts.forget(op.output_arg_names)
    block.hold_ops(rewritten)


def _kinds(block: Block, lists: AutoMixedPrecisionLists) -> list[Kind | None]:
    """Of each operator; None where nothing before it is of either kind."""
    black_names = lists.black_varnames | _names_of_bodies(block) | _names_made_twice(block)
    kind_of: dict[str, Kind | None] = {}  # of the latest operator that made a variable
    found: list[Kind | None] = []
    for op in block.ops:
        kind: Kind | None
        if op.type in lists.black_list or not _can_be_white(block, op, black_names):
            kind = "black"
        elif op.type in lists.white_list:
            kind = "white"
        elif op.type in lists.gray_list:
            before = {kind_of.get(name) for name in op.input_arg_names}
            kind = "black" if "black" in before else "white" if "white" in before else None
        else:
            kind = "black"
        found.append(kind)
        kind_of.update(dict.fromkeys(op.output_arg_names, kind))
    return found


def _can_be_white(block: Block, op: Operator, black_names: set[str]) -> bool:
    names = [*op.input_arg_names, *op.output_arg_names]
    reads_rows = any(
        isinstance(variable, Parameter) and variable.is_table
        for variable in map(block.vars.get, names)
    )
    draws = "dtype" in operator_def(op).settings and bool(op.input_arg_names)
    return not (reads_rows or draws or op.has_sub_block or black_names.intersection(names))


def _names_of_bodies(block: Block) -> set[str]:
    bodies = [op for op in block.ops if op.has_sub_block]
    return {name for op in bodies for name in (*op.input_arg_names, *op.output_arg_names)}


def _names_made_twice(block: Block) -> set[str]:
    """A variable has one type, whichever operator writes it last."""
    found: set[str] = set()
    made: set[str] = set()
    for op in block.ops:
        names = {name for name in op.output_arg_names if not block.vars[name].persistable}
        found |= names & (made | set(op.input_arg_names))
        made |= names
    return found


class _Casts:
    """Copies of variables in the other precision, each made once."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._made: set[str] = set()

    def before(self, op: Operator, kind: Kind) -> list[Operator]:
        """The casts that `op` needs; it then names their results."""
        added = []
        for slot, names in op.inputs.items():
            if kind == "white" and op.type == "batch_norm" and slot != "X":
                continue  # statistics and their parameters are float32 always
            for place, name in enumerate(names):
                copied = self._copy_of(name, _DTYPE[kind])
                if copied is None:
                    continue
                names[place] = copied.name
                if copied.name not in self._made:
                    self._made.add(copied.name)
                    added.append(_cast(self._block.vars[name], copied, op))
        return added

    def forget(self, names: list[str]) -> None:
        """New values need new copies."""
        for name in names:
            self._made.discard(f"{name}.cast_fp16")
            self._made.discard(f"{name}.cast_fp32")

    def _copy_of(self, name: str, dtype: str) -> Variable | None:
        source = self._block.vars[name]
        if source.dtype not in _SUFFIX or source.dtype == dtype:
            return None
        copied = f"{name}.cast_{_SUFFIX[dtype]}"
        return self._block.vars.get(copied) or self._block.create_var(
            copied, source.shape, dtype, source.lod_level, type=source.type
        )


def _cast(source: Variable, copied: Variable, reader: Operator) -> Operator:
    attrs = {"in_dtype": source.dtype, "out_dtype": copied.dtype, "by_place": True}
    slots = ({"X": [source.name]}, {"Out": [copied.name]})
    return Operator("cast", *slots, attrs, role=reader.role, site=reader.site)


def _declare_half(block: Block, op: Operator) -> None:
    for slot, names in op.outputs.items():
        if op.type == "batch_norm" and slot != "Y":
            continue
        for variable in map(block.vars.__getitem__, names):
            if variable.dtype == "float32":
                variable.dtype = "float16"
                if op.type == "cast":
                    op.attrs |= {"out_dtype": "float16", "by_place": True}
