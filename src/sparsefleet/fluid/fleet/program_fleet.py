"""The fleet object for programs on parameter servers, with Fluid's calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.distributed.distribute_program import (
    ProgramServer,
    model_source,
    require_apart,
    train_on_servers,
)
from sparsefleet.fluid.distributed.program_training import ProgramTraining
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.fleet import (
    DistributedStrategy,
    DistributeTranspilerConfig,
    Fleet,
    strategy_from,
)
from sparsefleet.fluid.fleet.fleet_optimizer import FleetOptimizer, Pairs
from sparsefleet.fluid.fleet.strategies import mode_of_strategy
from sparsefleet.fluid.framework import Operator, Program, Variable
from sparsefleet.fluid.framework.scope import global_scope
from sparsefleet.fluid.io.inference_model import save_inference_model
from sparsefleet.fluid.io.saving import TableLayout, save_persistables
from sparsefleet.fluid.optimizer.optimizer import Optimizer

__all__ = ["Mode", "ProgramFleet", "ProgramOptimizer", "fleet"]

Part = TypeVar("Part")

_log = logging.getLogger("sparsefleet.fluid")


class Mode:
    """The kinds of fleets, with Fluid's numeric values."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3


class ProgramFleet(Fleet):
    """One process of a job that trains a program.

    `main_program` and `startup_program` are the programs that this process runs after `minimize`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main_program: Program | None = None
        self.startup_program: Program | None = None
        self._origin_program: Program | None = None
        self._strategy: DistributedStrategy | None = None
        self._training: ProgramTraining | None = None  # the training state of the latest program
        self._trainings: list[ProgramTraining] = []
        self._server: ProgramServer | None = None
        self._is_ready = False  # set by init_worker

    # -- building -----------------------------------------------------------------------------

    def distributed_optimizer(
        self,
        optimizer: Optimizer,
        strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    ) -> ProgramOptimizer:
        """Return an optimizer whose `minimize` adds the program to this job.

        If `strategy` is None, training is synchronous.
        """
        if not hasattr(optimizer, "apply_gradients"):  # wrappers do not derive from Optimizer
            raise ConfigError(
                f"optimizer must be from fluid.optimizer, got {type(optimizer).__name__}"
            )
        if not self.is_initialized:
            raise ConfigError("fleet is not initialized; call fleet.init(role) first")
        return ProgramOptimizer(self, optimizer, strategy_from(strategy))

    def distribute_program(
        self, program: Program, startup: Program, strategy: DistributedStrategy
    ) -> None:
        """Convert a minimized program into the program that this process runs."""
        role = self.role
        if not any(op.role == "optimize" for op in program.global_block().ops):
            _log.warning(
                "the program does not update any parameters, so servers have nothing to do; call "
                "minimize on a loss with parameters"
            )
            self.main_program, self.startup_program = program, startup
            self._origin_program = program
            return
        mode = mode_of_strategy(strategy) if role.server_endpoints else "local"
        block_size = strategy.get_program_config().min_block_size
        self._num_models += 1
        name = f"program-{self._num_models}"
        source = model_source(program, startup, mode, name=name, min_block_size=block_size)
        for other in self._trainings:
            require_apart(other.source, source)
        self._strategy = strategy
        self._origin_program = source.program.clone()
        if role.is_server:
            self._server = ProgramServer(role, source)
            self.main_program = self._server.main_program()
            self.startup_program = self._server.startup_program()
            return
        self._training = train_on_servers(program, startup, source, mode, role)
        self._trainings.append(self._training)
        self._origin_program._distributed = self._training
        self.main_program, self.startup_program = program, startup

    # -- lifecycle ----------------------------------------------------------------------------

    @property
    def model(self) -> DistributedModel:
        """Return the model that this worker trains, once training has started."""
        return self._minimized(self._training).model

    def init_server(self, model_dir: str | os.PathLike[str] | None = None) -> None:
        """Prepare this server. If `model_dir` is given, the job starts from the values saved in it.

        `model_dir` must be a folder written by `save_persistables`. Each server reads its own rows
        from the folders of tables; the first server reads everything else, including tables that
        are files.
        """
        self._require_server("init_server")
        server = self._minimized(self._server)
        if model_dir is not None:
            if not os.path.isdir(model_dir):
                raise ConfigError(f"model_dir {os.fspath(model_dir)!r} is not a directory")
            server.load(model_dir, None)

    def run_server(self) -> None:
        """Serve until the launcher or a signal stops the job, then drain and return."""
        self._require_server("run_server")
        self._minimized(self._server).serve()

    def init_worker(self) -> None:
        """Connect to the servers, waiting for them to start; further calls only warn.

        If the program's configuration has `wait_port=False`, this method does not wait, and the
        first run connects.
        """
        if self.role.is_server:
            raise RuntimeError("init_worker() was called on a server; call run_server() instead")
        self._minimized(self._training)
        waiting = [training for training in self._trainings if not training.is_started]
        if not waiting:
            self._warn_running()
            return
        if self.role.server_endpoints and self._strategy is not None:
            print(self._strategy.get_trainer_runtime_config(), flush=True)
        self._is_ready = True
        if self._strategy is not None and not self._strategy.get_program_config().wait_port:
            return
        for training in waiting:
            training.start()
            training.get_ready(global_scope())

    def stop_worker(self) -> None:
        """Wait until all updates are applied, notify the other workers, and disconnect.

        This applies to all programs in this fleet. After `Executor.close`, this method does
        nothing.
        """
        begun = [training for training in self._trainings if training.has_begun]
        if not begun and not self._is_ready:
            raise RuntimeError("stop_worker() must follow init_worker()")
        self._is_ready = False
        with ExitStack() as closing:
            for training in begun:
                closing.callback(training.close)

    # -- files --------------------------------------------------------------------------------

    def save_persistables(
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        main_program: Program | None = None,
        *,
        table_layout: TableLayout | None = None,
    ) -> None:
        """Save the servers' state, which includes everything that this worker has sent, in every
        mode.

        Worker 0 writes a file for each variable, and the servers write a folder for each table;
        other workers may call this method but write nothing. With table_layout="file", worker 0
        also writes the tables as files. `init_server(dirname)` starts a job from the saved folder,
        and `fluid.io.load_persistables` reads the folder.
        """
        program = self._checked(executor, main_program) or self._minimized(self.main_program)
        if program._distributed is None:
            raise ConfigError(
                "main_program does not belong to a parameter-server job; use fluid.io"
            )
        save_persistables(executor, dirname, program, table_layout=table_layout)

    def save_inference_model(
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        feeded_var_names: str | Sequence[str],
        target_vars: Variable | Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
        *,
        table_layout: TableLayout | None = None,
    ) -> list[str]:
        """Save the inference model; see `save_persistables` for which process writes the files."""
        program = self._checked(executor, main_program) or self._minimized(self._origin_program)
        return save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            program,
            export_for_deployment=export_for_deployment,
            table_layout=table_layout,
        )

    def _checked(self, executor: Any, program: Any) -> Program | None:
        if not isinstance(executor, Executor):
            raise TypeError(f"executor must be a fluid.Executor, got {type(executor).__name__}")
        if program is not None and not isinstance(program, Program):
            raise TypeError(f"main_program must be a fluid.Program, got {type(program).__name__}")
        return program

    def _minimized(self, part: Part | None) -> Part:
        if part is None:
            raise ConfigError(
                "fleet has no program yet; call fleet.distributed_optimizer(optimizer, "
                "strategy).minimize(loss) first"
            )
        return part


class ProgramOptimizer(FleetOptimizer):
    """The optimizer that `ProgramFleet.distributed_optimizer` returns."""

    def __init__(
        self, fleet: ProgramFleet, optimizer: Optimizer, strategy: DistributedStrategy
    ) -> None:
        super().__init__(optimizer)
        self._fleet = fleet
        self.strategy = strategy

    def minimize(
        self,
        loss: Variable,
        scopes: Any = None,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Add the backward pass and update for the loss, and convert the program for this
        process's role.
        """
        del scopes
        return self._minimize(loss, startup_program, parameter_list, no_grad_set)

    def _distribute(self, loss: Variable, startup: Program) -> None:
        assert loss.block is not None
        self._fleet.distribute_program(loss.block.program, startup, self.strategy)


fleet = ProgramFleet()
"""This process's fleet object for programs on parameter servers."""
