"""Base class of the optimizers that fleets return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.framework import Operator, Program, Variable, default_startup_program

__all__ = ["FleetOptimizer", "Pairs"]

Pairs = list[tuple[Any, Variable]]


class FleetOptimizer(ABC):
    """Wraps an optimizer; `minimize` also turns the program into what this process of the job
    runs.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Call the optimizer's `backward`."""
        return list(
            self._optimizer.backward(loss, startup_program, parameter_list, no_grad_set, callbacks)
        )

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Call the optimizer's `apply_gradients`."""
        added: list[Operator] = self._optimizer.apply_gradients(params_grads)
        return added

    def _minimize(
        self,
        loss: Variable,
        startup_program: Program | None,
        parameter_list: Sequence[Variable | str] | None,
        no_grad_set: Collection[Variable | str] | None,
    ) -> tuple[list[Operator], Pairs]:
        """Call the optimizer's `minimize`, then `_distribute` the program."""
        if not isinstance(loss, Variable):
            raise TypeError(f"loss must be one Variable, got {type(loss).__name__}")
        if startup_program is not None and not isinstance(startup_program, Program):
            raise TypeError(
                f"startup_program must be one Program, got {type(startup_program).__name__}"
            )
        ops, pairs = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        self._distribute(loss, startup_program or default_startup_program())
        return ops, list(pairs)

    @abstractmethod
    def _distribute(self, loss: Variable, startup: Program) -> None:
        """Turn the training program of the loss into what this process runs."""
