"""The optimizers that fleets return: the base class, and the optimizer for collective jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.fluid.collective.collective_programs import add_broadcast, train_together
from sparsefleet.fluid.executor.compiler import CompiledProgram
from sparsefleet.fluid.fleet.collective_strategy import (
    DistributedStrategy,
    build_strategy,
    check_conflicts,
    fit_to_ranks,
    rank_strategy,
    wrapped_optimizer,
)
from sparsefleet.fluid.framework import Operator, Program, Variable, default_startup_program
from sparsefleet.fluid.operators.layer_helper import make_plain

if TYPE_CHECKING:
    from sparsefleet.fluid.fleet.collective_fleet import Collective

__all__ = ["CollectiveOptimizer", "FleetOptimizer", "Pairs"]

Pairs = list[tuple[Any, Variable]]


class FleetOptimizer(ABC):
    """Wraps an optimizer; `minimize` also converts the program for this process's role."""

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
            raise TypeError(f"loss must be a Variable, got {type(loss).__name__}")
        if startup_program is not None and not isinstance(startup_program, Program):
            raise TypeError(
                f"startup_program must be a Program, got {type(startup_program).__name__}"
            )
        ops, pairs = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        self._distribute(loss, startup_program or default_startup_program())
        return ops, list(pairs)

    @abstractmethod
    def _distribute(self, loss: Variable, startup: Program) -> None:
        """Convert the training program of the loss into the program that this process runs."""


class CollectiveOptimizer(FleetOptimizer):
    """An optimizer whose `minimize` sets the programs that this rank runs.

    fleet: None uses this process's fleet.
    """

    def __init__(
        self,
        optimizer: Any,
        strategy: DistributedStrategy | None = None,
        fleet: Collective | None = None,
    ) -> None:
        strategy = DistributedStrategy() if strategy is None else strategy
        if not isinstance(strategy, DistributedStrategy):
            raise TypeError(
                "strategy must be a fluid.incubate.fleet.collective.DistributedStrategy, got "
                f"{strategy!r}"
            )
        if strategy.forward_recompute and not isinstance(strategy.recompute_checkpoints, list):
            raise ValueError(
                "DistributedStrategy.recompute_checkpoints must be a list, got "
                f"{strategy.recompute_checkpoints!r}"
            )
        self._fleet = _fleet_of_process() if fleet is None else fleet
        self._strategy = strategy
        self.print_config = False
        super().__init__(optimizer)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Add the backward pass and update for the loss, then convert the program into
        `fleet.main_program`.
        """
        check_conflicts(self._strategy, self._optimizer)
        self._optimizer = wrapped_optimizer(self._strategy, self._optimizer)
        if self._strategy.use_local_sgd and isinstance(loss, Variable):
            self._make_plain(loss, startup_program or default_startup_program())
        return self._minimize(loss, startup_program, parameter_list, no_grad_set)

    def _make_plain(self, loss: Variable, startup: Program) -> None:
        """Convert tables into dense parameters, since ranks average whole parameters, not rows."""
        assert loss.block is not None
        for parameter in loss.block.program.all_parameters():
            make_plain(loss.block.program, startup, parameter.name)

    def _distribute(self, loss: Variable, startup: Program) -> None:
        assert loss.block is not None
        program, ranks, strategy = loss.block.program, self._fleet.ranks, self._strategy
        fit_to_ranks(strategy, ranks)
        if self.print_config:
            print(strategy, flush=True)
        self._fleet.startup_program = startup
        self._fleet._origin_program = program.clone()
        self._fleet._transpiled_program = program
        if strategy.mode == "collective":
            train_together(program, startup, ranks, rank_strategy(strategy, ranks), loss.name)
            self._fleet.main_program = program
            return
        if ranks.size > 1:
            add_broadcast(startup, ranks)
        self._fleet.main_program = CompiledProgram(program).with_data_parallel(
            loss_name=loss.name,
            build_strategy=build_strategy(strategy),
            exec_strategy=strategy.exec_strategy,
        )


def _fleet_of_process() -> Collective:
    from sparsefleet.fluid.fleet.collective_fleet import fleet

    return fleet
