"""Inputs of a program, and readers that feed them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.generator_loader import GeneratorLoader
from sparsefleet.fluid.layer_helper import layer
from sparsefleet.fluid.places import Place
from sparsefleet.fluid.py_reader import PyReader
from sparsefleet.fluid.variable import Variable, declare_input

__all__ = ["create_py_reader_by_data", "data", "double_buffer", "py_reader", "read_file"]

_numbers = count()  # of readers without a name


@layer
def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: Any = None,
    stop_gradient: bool = True,
) -> Variable:
    """An input whose fed arrays are not checked; the shape is that of one sample.

    append_batch_size: put -1 in front of the shape, unless the shape has a -1 or None already.

    >>> data("C1", [1], dtype="int64", lod_level=1)
    Variable('C1', shape=(-1, 1), dtype='int64', lod_level=1)
    """
    del type  # all are tensors
    known = Variable(name, shape, dtype, lod_level, stop_gradient=stop_gradient, is_data=True)
    if append_batch_size and -1 not in known.shape:
        known.shape = (-1, *known.shape)
    return declare_input(known)


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int | None]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    *,
    use_double_buffer: bool = True,
) -> PyReader:
    """A reader that is started and reset, with variables of its own; `read_file` gives them.

    >>> reader = py_reader(capacity=64, shapes=[(-1, 3), (-1, 1)], dtypes=["float32", "int64"])
    >>> [variable.shape for variable in read_file(reader)]
    [(-1, 3), (-1, 1)]
    """
    levels = [0] * len(shapes) if lod_levels is None else lod_levels
    if not len(shapes) == len(dtypes) == len(levels):
        raise ConfigError(
            f"py_reader: {len(shapes)} shapes, {len(dtypes)} dtypes and {len(levels)} lod_levels, "
            "wanted one of each for a variable"
        )
    prefix = f"py_reader_{next(_numbers)}" if name is None else name
    variables = [
        declare_input(
            Variable(f"{prefix}_{number}", shape, dtype, level, stop_gradient=True, is_data=True)
        )
        for number, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels, strict=True))
    ]
    return PyReader(variables, capacity, use_double_buffer, iterable=False)


def create_py_reader_by_data(
    capacity: int,
    feed_list: Sequence[Variable],
    name: str | None = None,  # noqa: ARG001  the variables have names
    use_double_buffer: bool = True,
) -> PyReader:
    """A reader that is started and reset, for variables that there are."""
    return PyReader(feed_list, capacity, use_double_buffer, iterable=False)


def read_file(reader: GeneratorLoader) -> Variable | list[Variable]:
    """The variables that a reader feeds; of one, that one."""
    variables = reader.feed_list
    return variables[0] if len(variables) == 1 else variables


def double_buffer(
    reader: GeneratorLoader,
    place: Place | None = None,  # noqa: ARG001  where the Executor is
    name: str | None = None,  # noqa: ARG001
) -> GeneratorLoader:
    """The reader with one more batch kept ready."""
    reader.use_double_buffer()
    return reader
