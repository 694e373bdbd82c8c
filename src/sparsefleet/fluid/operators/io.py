"""Input layers and readers, including Fluid 1.0 interfaces that some programs still use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.feeding.generator_loader import GeneratorLoader, PyReader
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.places import Place, cpu_places, cuda_places
from sparsefleet.fluid.framework.variable import declare_input
from sparsefleet.fluid.operators.layer_helper import layer

__all__ = [
    "ParallelDo",
    "create_py_reader_by_data",
    "data",
    "double_buffer",
    "get_places",
    "py_reader",
    "read_file",
]


class PlaceList(list[Place]):
    """A list of places, with the variable kind that Fluid uses for such lists."""

    type = "place_list"


def get_places(device_count: int | None = None, device_type: str | None = None) -> PlaceList:
    """Return `device_count` places of type "CPU" or "CUDA"; by default, CPU_NUM places."""
    if (device_type or "CPU").upper() == "CPU":
        return PlaceList(cpu_places(device_count))
    return PlaceList(cuda_places(None if device_count is None else range(device_count)))


_numbers = count()  # numbers readers without a name


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
    """Create an input whose fed arrays are not checked; `shape` is the shape of one sample.

    append_batch_size: put -1 in front of the shape, unless the shape already has a -1 or None.

    >>> data("C1", [1], dtype="int64", lod_level=1)
    Variable('C1', shape=(-1, 1), dtype='int64', lod_level=1)
    """
    del type  # all types are tensors
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
    """Create a reader with start() and reset() and its own variables, which `read_file` returns.

    >>> reader = py_reader(capacity=64, shapes=[(-1, 3), (-1, 1)], dtypes=["float32", "int64"])
    >>> [variable.shape for variable in read_file(reader)]
    [(-1, 3), (-1, 1)]
    """
    levels = [0] * len(shapes) if lod_levels is None else lod_levels
    if not len(shapes) == len(dtypes) == len(levels):
        raise ConfigError(
            f"py_reader: got {len(shapes)} shapes, {len(dtypes)} dtypes and {len(levels)} "
            "lod_levels, expected one of each per variable"
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
    """Create a reader with start() and reset() for existing variables."""
    return PyReader(feed_list, capacity, use_double_buffer, iterable=False)


def read_file(reader: GeneratorLoader) -> Variable | list[Variable]:
    """Return the variables that a reader feeds, as a list unless there is only one."""
    variables = reader.feed_list
    return variables[0] if len(variables) == 1 else variables


def double_buffer(
    reader: GeneratorLoader,
    place: Place | None = None,  # noqa: ARG001  set by the Executor
    name: str | None = None,  # noqa: ARG001
) -> GeneratorLoader:
    """Return a reader that keeps one more batch ready."""
    reader.use_double_buffer()
    return reader


class ParallelDo:
    """A network that, unlike in Fluid, runs on the whole batch in one place.

    To divide batches among places, use `CompiledProgram.with_data_parallel`.
    """

    def __init__(self, places: Any, use_nccl: bool = False, name: str | None = None) -> None:
        del places, use_nccl, name
        self._outputs: list[Variable] = []

    @contextmanager
    def do(self) -> Iterator[None]:
        """Use the layers in the `with` block as the network."""
        yield

    def read_input(self, var: Variable) -> Variable:
        """Return the variable itself, since there is only one place."""
        return var

    def write_output(self, var: Variable) -> None:
        """Declare a result of the network."""
        self._outputs.append(var)

    def __call__(self) -> Variable | Sequence[Variable]:
        """Return the results: one variable, or a list of several."""
        if not self._outputs:
            raise ValueError("layers.ParallelDo: call write_output(...) within do()")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs
