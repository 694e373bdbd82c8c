"""A program's variables and parameters, and checks on the values fed to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefleet.fluid.framework.call_site import ProgramError, call_site, site_prefix
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.variable_arithmetic import VariableArithmetic

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.block import Block

__all__ = [
    "ARRAY",
    "EMPTY_VAR_NAME",
    "GRAD_VAR_SUFFIX",
    "Parameter",
    "TEMP_VAR_NAME",
    "TENSOR",
    "Variable",
    "VariableDesc",
    "ZERO_VAR_SUFFIX",
    "check_feed",
    "convert_np_dtype_to_dtype_",
    "data",
    "declare_input",
    "dtype_error",
    "grad_var_name",
]


class VariableDesc:
    """Reads and changes the declaration of a variable.

    >>> from sparsefleet import fluid
    >>> rows = fluid.data("rows", [8, 4])
    >>> rows.desc.set_shape([-1, 4])
    >>> rows.shape, rows.desc.name()
    ((-1, 4), 'rows')
    """

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def name(self) -> str:
        return self._variable.name

    def shape(self) -> list[int]:
        return list(self._variable.shape)

    def dtype(self) -> str:
        return self._variable.dtype

    def type(self) -> str:
        return self._variable.type

    def lod_level(self) -> int:
        return self._variable.lod_level

    def persistable(self) -> bool:
        return self._variable.persistable

    def need_check_feed(self) -> bool:
        return self._variable.need_check_feed

    def set_shape(self, shape: Sequence[int]) -> None:
        """Declare a different shape; -1 means an unknown size."""
        self._set("shape", tuple(int(size) for size in shape))

    def set_dtype(self, dtype: Any) -> None:
        self._set("dtype", dtype_name(dtype))

    def set_type(self, type: str) -> None:
        self._set("type", type)

    def set_lod_level(self, lod_level: int) -> None:
        self._set("lod_level", int(lod_level))

    def set_persistable(self, persistable: bool) -> None:
        self._set("persistable", bool(persistable))

    def set_need_check_feed(self, need_check_feed: bool) -> None:
        self._set("need_check_feed", bool(need_check_feed))

    def _set(self, name: str, value: Any) -> None:
        setattr(self._variable, name, value)
        if self._variable.block is not None:
            self._variable.block.program.changed()


EMPTY_VAR_NAME = "@EMPTY@"
TEMP_VAR_NAME = "@TEMP@"
GRAD_VAR_SUFFIX = "@GRAD"
ZERO_VAR_SUFFIX = "@ZERO"


def grad_var_name(var_name: str) -> str:
    """Return the name of a variable's gradient.

    >>> grad_var_name("fc_0.w_0")
    'fc_0.w_0@GRAD'
    """
    return var_name + GRAD_VAR_SUFFIX


def convert_np_dtype_to_dtype_(np_dtype: Any) -> str:
    """Return the name of a type, in the form that variables use.

    >>> convert_np_dtype_to_dtype_("float32")
    'float32'
    """
    return dtype_name(np_dtype)


TENSOR, ARRAY = "lod_tensor", "lod_tensor_array"
"""The kinds of variables: one tensor, or an array of tensors."""


class Variable(VariableArithmetic):
    """A named tensor of this shape and type, with this number of LoD levels.

    shape: -1 or None for sizes unknown before the run, such as the batch.
    dtype: a name, or a NumPy or torch type; stored as its name.
    need_check_feed: check fed values against shape and dtype.
    type: the kind of value; for an array, shape and dtype describe its elements.

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
            raise TypeError(f"a variable name must be a string, got {name!r}")
        if not isinstance(lod_level, int) or isinstance(lod_level, bool) or lod_level < 0:
            raise TypeError(f"variable '{name}': lod_level must be an int >= 0, got {lod_level!r}")
        self.name = name
        self.shape = _known_sizes(name, shape)
        self.dtype: str = dtype_name(dtype)
        self.lod_level = lod_level
        self.stop_gradient = stop_gradient
        self.persistable = persistable
        self.is_data = is_data
        self.need_check_feed = need_check_feed
        self.type = type
        self.error_clip: Any = None
        self.block: Block | None = None
        """The block that contains the variable."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        block = self.__dict__.get("block")
        if block is not None and name in ("persistable", "stop_gradient"):
            block.program.changed()

    def _set_error_clip(self, error_clip: Any) -> None:
        """Clip this variable's gradient in the backward pass; see `fluid.clip.ErrorClipByValue`."""
        self.error_clip = error_clip

    @property
    def desc(self) -> VariableDesc:
        """Return the variable's declaration, with the methods of Fluid's VarDesc."""
        return VariableDesc(self)

    @property
    def grad_name(self) -> str:
        """Return the name of the variable's gradient."""
        return f"{self.name}@GRAD"

    def copy(self) -> Variable:
        """Return a copy for another program."""
        made = Variable(
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
        made.error_clip = self.error_clip
        return made

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Return the variable as text."""
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
    """Create an input with its full shape, which every fed array is checked against.

    >>> data("image", [None, 3, 32, 32], "uint8").shape
    (-1, 3, 32, 32)
    """
    return declare_input(
        Variable(
            name, shape, dtype, lod_level, stop_gradient=True, is_data=True, need_check_feed=True
        )
    )


def declare_input(variable: Variable) -> Variable:
    """Add an input variable to the program that layers currently add to."""
    from sparsefleet.fluid.framework.default_programs import default_main_program

    return default_main_program().global_block().add_var(variable)


def check_feed(variable: Variable, shape: Sequence[int], dtype: Any, num_places: int = 1) -> None:
    """If `need_check_feed` is set, raise ValueError unless the number of axes, the known sizes and
    the type match.

    num_places: the number of places that share the rows.
    """
    if not variable.need_check_feed:
        return
    if num_places > 1 and shape and shape[0]:
        share = -(-shape[0] // num_places)
        if shape[0] % share == 0:  # all places that get rows get the same number
            shape = (share, *shape[1:])
    fits = len(shape) == len(variable.shape) and all(
        wanted in (-1, size) for wanted, size in zip(variable.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{site_prefix()}fed to '{variable.name}': got shape {tuple(shape)}, expected "
            f"{variable.shape}, where -1 is any size; declare it with fluid.layers.data to skip "
            "this check"
        )
    if dtype_name(dtype) != variable.dtype:
        raise dtype_error(variable, dtype)


def dtype_error(variable: Variable, dtype: Any) -> ValueError:
    """Return the error for a feed whose type differs from the variable's."""
    return ValueError(
        f"{site_prefix()}fed to '{variable.name}': got dtype {dtype_name(dtype)}, expected "
        f"{variable.dtype}; cast the array, or declare the variable with that dtype"
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
                f"{site_prefix()}variable '{name}': sizes must be ints or None, got {shape!r}"
            )
        sizes.append(-1 if size is None or size < 0 else int(size))
    return tuple(sizes)


class Parameter(Variable):
    """A variable that is kept between runs and trained.

    learning_rate: a factor for the optimizer's learning rate.
    is_table: whether its rows are in a table in the scope's store, which creates a row when its id
        is first seen.
    table_optimizer: the optimizer that a push applies to a row, as the fields of a
        `sparsefleet.optim` class.

    >>> Parameter("fc_0.w_0", [3, 2], "float32").persistable
    True
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: Any = "float32",
        *,
        trainable: bool = True,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        gradient_clip: Any = None,
        is_table: bool = False,
        lod_level: int = 0,
        need_clip: bool = True,
        **attrs: Any,
    ) -> None:
        stops = bool(attrs.pop("stop_gradient", not trainable))
        persistable = bool(attrs.pop("persistable", True))
        optimize_attr = attrs.pop("optimize_attr", {"learning_rate": learning_rate})
        self.do_model_average = attrs.pop("do_model_average", None)
        self.is_distributed = bool(attrs.pop("is_distributed", False))
        for unused in ("gradient_clip_attr", "error_clip"):
            attrs.pop(unused, None)
        if attrs:
            raise TypeError(f"parameter '{name}' got unknown settings {', '.join(sorted(attrs))}")
        super().__init__(
            name, shape, dtype, lod_level, persistable=persistable, stop_gradient=stops
        )
        if any(size < 1 for size in self.shape) or not self.shape:
            raise ProgramError.at(
                call_site(), f"parameter '{name}'", f"sizes must be >= 1, got {list(shape)}"
            )
        self.trainable = trainable
        self.optimize_attr = dict(optimize_attr)
        self.need_clip = need_clip
        self.regularizer = regularizer
        self.gradient_clip_attr = gradient_clip
        self.is_table = is_table
        self.table_optimizer: dict[str, Any] | None = None

    def copy(self) -> Parameter:
        """Return a copy for another program."""
        made = Parameter(
            self.name,
            self.shape,
            self.dtype,
            trainable=self.trainable,
            learning_rate=self.optimize_attr["learning_rate"],
            regularizer=self.regularizer,
            gradient_clip=self.gradient_clip_attr,
            is_table=self.is_table,
            lod_level=self.lod_level,
            need_clip=self.need_clip,
            do_model_average=self.do_model_average,
            is_distributed=self.is_distributed,
        )
        made.stop_gradient = self.stop_gradient
        made.table_optimizer = self.table_optimizer
        return made
