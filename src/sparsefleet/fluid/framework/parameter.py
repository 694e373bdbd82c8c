"""Variables that are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework.call_site import ProgramError, call_site
from sparsefleet.fluid.framework.variable import Variable

__all__ = ["Parameter"]


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
