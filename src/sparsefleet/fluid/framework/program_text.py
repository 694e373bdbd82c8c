"""Show programs as readable text or as Graphviz drawings, and estimate the memory they need."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sparsefleet.fluid.framework.block import Block
from sparsefleet.fluid.framework.operator import Operator
from sparsefleet.fluid.framework.program import Program
from sparsefleet.fluid.framework.variable import Variable

__all__ = [
    "block_to_code",
    "delete_ops",
    "draw_block_graphviz",
    "find_op_by_input_arg",
    "find_op_by_output_arg",
    "memory_usage",
    "op_to_code",
    "pprint_block_codes",
    "pprint_program_codes",
    "program_to_code",
    "variable_to_code",
]


def variable_to_code(var: Variable) -> str:
    """Return a variable as one line of text.

    >>> variable_to_code(Variable("x", [None, 2]))
    'var x : lod_tensor.shape(-1, 2).astype(float32)'
    """
    kept = "persist " if var.persistable else ""
    shape = f"shape{tuple(var.shape)}"
    return f"{kept}var {var.name} : {var.type}.{shape}.astype({var.dtype})"


def op_to_code(op: Operator, skip_op_callstack: bool = True) -> str:
    """Return an operator as one line of text.

    >>> op_to_code(Operator("relu", {"X": ["a"]}, {"Out": ["b"]}))
    "{Out=['b']} = relu(inputs={X=['a']})"
    """
    del skip_op_callstack
    outputs = ", ".join(f"{slot}={names}" for slot, names in op.outputs.items())
    inputs = ", ".join(f"{slot}={names}" for slot, names in op.inputs.items())
    attrs = "".join(f", {name} = {value}" for name, value in sorted(op.attrs.items()))
    return f"{{{outputs}}} = {op.type}(inputs={{{inputs}}}{attrs})"


def block_to_code(
    block: Block,
    block_idx: int | None = None,
    fout: TextIO | None = None,
    skip_op_callstack: bool = False,
) -> None:
    """Print the variables and operators of a block."""
    del skip_op_callstack
    number = block.idx if block_idx is None else block_idx
    lines = [f"{{ // block {number}"]
    lines += [f"    {variable_to_code(variable)}" for variable in block.vars.values()]
    lines += ["", *(f"    {op_to_code(op)}" for op in block.ops), "}"]
    print("\n".join(lines), file=fout or sys.stdout)


def program_to_code(
    prog: Program, fout: TextIO | None = None, skip_op_callstack: bool = True
) -> None:
    """Print all blocks of a program."""
    for block in prog.blocks:
        block_to_code(block, block.idx, fout, skip_op_callstack)


def pprint_program_codes(program_desc: Program) -> list[str]:
    """Return the text of each block."""
    return [pprint_block_codes(block) for block in program_desc.blocks]


def pprint_block_codes(block_desc: Block, show_backward: bool = False) -> str:
    """Return the text of a block; show_backward includes the backward pass and updates."""
    ops = [op for op in block_desc.ops if show_backward or op.role == "forward"]
    return "\n".join(op_to_code(op) for op in ops)


def draw_block_graphviz(
    block: Block, highlights: Collection[str] | None = None, path: str = "./temp.dot"
) -> None:
    """Draw a block as a .dot file: operators as boxes, variables as ovals (colored if
    highlighted).
    """
    lines = ["digraph block {"]
    for name in highlights or ():
        lines.append(f"  {json.dumps(name)} [style=filled, fillcolor=yellow];")
    for number, op in enumerate(block.ops):
        lines.append(f"  op{number} [shape=box, label={json.dumps(op.type)}];")
        lines += [f"  {json.dumps(name)} -> op{number};" for name in op.input_arg_names]
        lines += [f"  op{number} -> {json.dumps(name)};" for name in op.output_arg_names]
    lines.append("}")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def delete_ops(block: Block, ops: Collection[Operator]) -> None:
    """Remove operators from a block."""
    block.hold_ops([op for op in block.ops if all(op is not one for one in ops)])


def find_op_by_input_arg(block: Block, arg_name: str) -> int:
    """Return the index of the first operator that reads a variable, or -1 if none does."""
    places = (place for place, op in enumerate(block.ops) if arg_name in op.input_arg_names)
    return next(places, -1)


def find_op_by_output_arg(block: Block, arg_name: str, reverse: bool = False) -> int:
    """Return the index of the first (or last) operator that writes a variable, or -1 if none
    does.
    """
    found: list[Any] = [
        place for place, op in enumerate(block.ops) if arg_name in op.output_arg_names
    ]
    return -1 if not found else found[-1 if reverse else 0]


_UNITS = ("B", "KB", "MB")


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """Return a lower and an upper bound on the memory of all outputs, and the unit of both.

    batch_size: used in place of unknown sizes. As in Fluid, the bounds are 5% and 10% above the
        size given by the shapes.

    >>> from sparsefleet import fluid
    >>> program = fluid.Program()
    >>> with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
    ...     _ = fluid.layers.scale(fluid.data("x", [None, 256]))
    >>> memory_usage(program, 10)
    (10.5, 11.0, 'KB')
    """
    if not isinstance(program, Program):
        raise TypeError(f"memory_usage takes a Program, got {program!r}")
    if batch_size <= 0:
        raise ValueError(f"memory_usage: batch_size must be positive, got {batch_size}")
    total = 0.0
    seen: set[str] = set()
    for op in program.global_block().ops:
        for name in op.output_arg_names:
            variable = program.global_block().vars.get(name)
            if variable is None or name in seen:
                continue
            seen.add(name)
            sizes = [batch_size if size < 0 else size for size in variable.shape]
            total += math.prod(sizes) * np.dtype(variable.dtype).itemsize
    unit = 0
    while total >= 1024 and unit < len(_UNITS) - 1:
        total, unit = total / 1024, unit + 1
    return total * 1.05, total * 1.1, _UNITS[unit]
