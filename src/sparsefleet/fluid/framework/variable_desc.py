"""The description of a variable, with the methods of Fluid's VarDesc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.fluid.framework.dtypes import dtype_name

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.variable import Variable

__all__ = ["VariableDesc"]


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
