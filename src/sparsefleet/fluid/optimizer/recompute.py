"""Fluid's way to train with less memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.backward import append_backward
from sparsefleet.fluid.framework import Operator, Program, Variable
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs

__all__ = ["RecomputeOptimizer"]


class RecomputeOptimizer(Optimizer):
    """Another optimizer, with a backward pass that keeps only checkpoints.

    Whatever the forward pass computes before the last checkpoint is let go and computed again when
    its turn in the backward pass comes: results are the same, dropout included.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     hidden = fluid.layers.fc(fluid.data("x", [None, 2]), 3, act="relu")
    ...     loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
    ...     optimizer = RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    ...     optimizer._set_checkpoints([hidden])
    ...     len(optimizer.minimize(loss)[1])
    4
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"RecomputeOptimizer takes an optimizer, got {optimizer!r}")
        vars(self).update(vars(optimizer))
        self._optimizer = optimizer
        self._checkpoints: Sequence[Variable | str] | None = None

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        """Variables, or names, that are kept."""
        for item in checkpoints:
            if not isinstance(item, (str, Variable)):
                raise TypeError(f"a checkpoint is a Variable or its name, got {item!r}")
        self._checkpoints = checkpoints

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Adds the backward pass: parameters and their gradients."""
        del startup_program
        if self._checkpoints is None:
            raise AssertionError("RecomputeOptimizer: call _set_checkpoints before minimize")
        chosen = self._parameter_list if parameter_list is None else parameter_list
        return append_backward(loss, chosen, no_grad_set, callbacks, self._checkpoints)

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """As that of the optimizer."""
        self._optimizer._grad_clip = self._grad_clip
        return self._optimizer.apply_gradients(params_grads)
