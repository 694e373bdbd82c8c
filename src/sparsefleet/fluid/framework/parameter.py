"""Variables that are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.call_site import ProgramError, call_site
from sparsefleet.fluid.variable import Variable

__all__ = ["Parameter"]


class Parameter(Variable):
    """A variable that is kept between runs and trained.

    learning_rate: a factor of the optimizer's.
    is_table: its rows are in a table of the scope's store, born when their ids are first seen.
    table_optimizer: what a push does to such a row, as the fields of a `sparsefleet.optim` class.

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
    ) -> None:
        super().__init__(name, shape, dtype, persistable=True, stop_gradient=not trainable)
        if any(size < 1 for size in self.shape) or not self.shape:
            raise ProgramError.at(
                call_site(), f"parameter '{name}'", f"sizes must be >= 1, got {list(shape)}"
            )
        self.trainable = trainable
        self.optimize_attr = {"learning_rate": learning_rate}
        self.regularizer = regularizer
        self.gradient_clip_attr = gradient_clip
        self.is_table = is_table
        self.table_optimizer: dict[str, Any] | None = None

    def copy(self) -> Parameter:
        """The same parameter, for another program."""
        made = Parameter(
            self.name,
            self.shape,
            self.dtype,
            trainable=self.trainable,
            learning_rate=self.optimize_attr["learning_rate"],
            regularizer=self.regularizer,
            gradient_clip=self.gradient_clip_attr,
            is_table=self.is_table,
        )
        made.stop_gradient = self.stop_gradient
        made.table_optimizer = self.table_optimizer
        return made
