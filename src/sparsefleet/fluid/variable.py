"""Named inputs of a program: what is fed to them, and a check that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefleet.fluid.call_site import site_prefix
from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.variable_arithmetic import VariableArithmetic

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.block import Block

__all__ = ["ARRAY", "TENSOR", "Variable", "check_feed", "data", "declare_input", "dtype_error"]


TENSOR, ARRAY = "lod_tensor", "lod_tensor_array"
"""Types of variables: one tensor, or tensors by number."""


class Variable(VariableArithmetic):
    """A name and what it stands for: a tensor of this shape and type, with so many levels of LoD.

    shape: -1 or None where a size is not known before the run, as that of the batch.
    dtype: a name, or NumPy's or torch's type; kept as its name.
    need_check_feed: whether what is fed is compared with shape and dtype.
    type: what its value is; of an array, shape and dtype are those of its elements.

    >>> ads = Variable("ads", [None, 1], "int64", lod_level=1)
    >>> ads
    Variable('ads', shape=(-1, 1), dtype='int64', lod_level=1)
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int | None],
        dtype: Any = "float32",
        lod_level: int = 0,
        *,
        stop_gradient: bool = False,
        persistable: bool = False,
        is_data: bool = False,
        need_check_feed: bool = False,
        type: str = TENSOR,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a variable must be a text, got {name!r}")
        if not isinstance(lod_level, int) or isinstance(lod_level, bool) or lod_level < 0:
            raise TypeError(f"variable '{name}': lod_level must be an int >= 0, got {lod_level!r}")
        self.name = name
        self.shape = _known_sizes(name, shape)
        self.dtype = dtype_name(dtype)
        self.lod_level = lod_level
        self.stop_gradient = stop_gradient
        self.persistable = persistable
        self.is_data = is_data
        self.need_check_feed = need_check_feed
        self.type = type
        self.block: Block | None = None
        """The block of a program that it is in."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        block = self.__dict__.get("block")
        if block is not None and name in ("persistable", "stop_gradient"):
            block.program.changed()

    @property
    def grad_name(self) -> str:
        """The name of its gradient."""
        return f"{self.name}@GRAD"

    def copy(self) -> Variable:
        """The same variable, for another program."""
        return Variable(
            self.name,
            self.shape,
            self.dtype,
            self.lod_level,
            stop_gradient=self.stop_gradient,
            persistable=self.persistable,
            is_data=self.is_data,
            need_check_feed=self.need_check_feed,
            type=self.type,
        )

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """As printed."""
        del throw_on_error, with_details
        return repr(self)

    def __repr__(self) -> str:
        lod = f", lod_level={self.lod_level}" if self.lod_level else ""
        kind = f", type={self.type!r}" if self.type != TENSOR else ""
        known = f"shape={self.shape}, dtype={self.dtype!r}{lod}{kind}"
        return f"{type(self).__name__}({self.name!r}, {known})"


def data(
    name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0
) -> Variable:
    """An input with its whole shape, which every fed array is checked against.

    >>> data("image", [None, 3, 32, 32], "uint8").shape
    (-1, 3, 32, 32)
    """
    return declare_input(
        Variable(
            name, shape, dtype, lod_level, stop_gradient=True, is_data=True, need_check_feed=True
        )
    )


def declare_input(variable: Variable) -> Variable:
    """Puts an input into the program that layers add to."""
    from sparsefleet.fluid.framework.default_programs import default_main_program

    return default_main_program().global_block().add_var(variable)


def check_feed(variable: Variable, shape: Sequence[int], dtype: Any) -> None:
    """Raises ValueError unless rank, known sizes and type fit; for variables that want it."""
    if not variable.need_check_feed:
        return
    fits = len(shape) == len(variable.shape) and all(
        wanted in (-1, size) for wanted, size in zip(variable.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{site_prefix()}fed to '{variable.name}': shape {tuple(shape)}, wanted "
            f"{variable.shape}, where -1 is any size; fluid.layers.data "
            "declares a variable that is not checked"
        )
    if dtype_name(dtype) != variable.dtype:
        raise dtype_error(variable, dtype)


def dtype_error(variable: Variable, dtype: Any) -> ValueError:
    """For a feed of another type than the variable's."""
    return ValueError(
        f"{site_prefix()}fed to '{variable.name}': dtype {dtype_name(dtype)}, wanted "
        f"{variable.dtype}: cast the array, or declare the variable so"
    )


def _known_sizes(name: str, shape: Sequence[int | None]) -> tuple[int, ...]:
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
        raise TypeError(
            f"{site_prefix()}variable '{name}': shape must be a list or tuple, got {shape!r}"
        )
    sizes = []
    for size in shape:
        if size is not None and (isinstance(size, bool) or not isinstance(size, (int, np.integer))):
            raise TypeError(
                f"{site_prefix()}variable '{name}': sizes in shape are ints or None, got {shape!r}"
            )
        sizes.append(-1 if size is None or size < 0 else int(size))
    return tuple(sizes)
