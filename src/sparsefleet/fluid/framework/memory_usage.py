"""Estimate the memory that a program's variables need."""

from __future__ import annotations

import math

import numpy as np

from sparsefleet.fluid.framework import Program

__all__ = ["memory_usage"]

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
