"""Fluid's way to train with less memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.framework import Operator, Program, Variable
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs

__all__ = ["RecomputeOptimizer"]


class RecomputeOptimizer(Optimizer):
    """The optimizer that it is given. Values between checkpoints are kept, not computed again."""

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"RecomputeOptimizer takes an optimizer, got {optimizer!r}")
        vars(self).update(vars(optimizer))
        self._optimizer = optimizer
        self._checkpoints: Sequence[Variable | str] | None = None

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        self._checkpoints = checkpoints

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        grad_clip: Any = None,
    ) -> tuple[list[Operator], Pairs]:
        """As that of the optimizer."""
        if self._checkpoints is None:
            raise AssertionError("RecomputeOptimizer: call _set_checkpoints before minimize")
        return self._optimizer.minimize(
            loss, startup_program, parameter_list, no_grad_set, grad_clip
        )

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """As that of the optimizer."""
        return self._optimizer.apply_gradients(params_grads)
