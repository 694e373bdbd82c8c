"""Optimizers around another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.framework import (
    Operator,
    Program,
    Variable,
    default_startup_program,
    program_guard,
)
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs

__all__ = ["OptimizerWrapper"]


class OptimizerWrapper(ABC):
    """Another optimizer, with a backward pass or updates of its own; the rest is the other's."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """As the optimizer's; the gradients that it gives are those of one batch and its loss."""
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_optimize(loss, startup_program, pairs), pairs

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """The optimizer's."""
        return self._optimizer.backward(
            loss, startup_program, parameter_list, no_grad_set, callbacks
        )

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Pairs
    ) -> list[Operator]:
        """`apply_gradients` in the program of the loss."""
        assert loss.block is not None
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    @abstractmethod
    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Adds the updates: by the optimizer's own, of what has become of the gradients."""
