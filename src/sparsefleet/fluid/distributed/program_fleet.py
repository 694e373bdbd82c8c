"""The fleet object of programs: the calls of Fluid's, on the engine of `sparsefleet.fleet`."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.fleet import DistributedStrategy, DistributeTranspilerConfig, Fleet, strategy_from
from sparsefleet.fleet.distributed_model import DistributedModel
from sparsefleet.fleet.mode_of_strategy import mode_of_strategy
from sparsefleet.fluid.distributed.distribute_program import (
    model_source,
    require_apart,
    train_on_servers,
)
from sparsefleet.fluid.distributed.fleet_optimizer import FleetOptimizer, Pairs
from sparsefleet.fluid.distributed.program_server import ProgramServer
from sparsefleet.fluid.distributed.program_training import ProgramTraining
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Operator, Program, Variable
from sparsefleet.fluid.inference_model import save_inference_model
from sparsefleet.fluid.optimizer import Optimizer
from sparsefleet.fluid.saving import save_persistables
from sparsefleet.fluid.scope import global_scope

__all__ = ["ProgramFleet", "ProgramOptimizer"]

Part = TypeVar("Part")


class ProgramFleet(Fleet):
    """One process of a job that trains a program.

    `main_program` and `startup_program` are what this process runs, from `minimize` on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main_program: Program | None = None
        self.startup_program: Program | None = None
        self._origin_program: Program | None = None
        self._strategy: DistributedStrategy | None = None
        self._training: ProgramTraining | None = None  # of the latest program
        self._trainings: list[ProgramTraining] = []
        self._server: ProgramServer | None = None

    # -- building -----------------------------------------------------------------------------

    def distributed_optimizer(  # type: ignore[override]
        self,
        optimizer: Optimizer,
        strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    ) -> ProgramOptimizer:
        """An optimizer whose `minimize` makes the program one of this job; None is sync."""
        if not hasattr(optimizer, "apply_gradients"):  # wrappers are no Optimizer themselves
            raise ConfigError(
                f"optimizer must be one of fluid.optimizer, got {type(optimizer).__name__}"
            )
        if not self.is_initialized:
            raise ConfigError("fleet does not know its role yet: call fleet.init(role) first")
        return ProgramOptimizer(self, optimizer, strategy_from(strategy))

    def distribute_program(
        self, program: Program, startup: Program, strategy: DistributedStrategy
    ) -> None:
        """Changes a program that was minimized into what this process runs."""
        role = self.role
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

    # -- life ---------------------------------------------------------------------------------

    @property
    def model(self) -> DistributedModel:
        """What this worker trains, once it has begun."""
        return self._minimized(self._training).model

    def init_server(self, model_dir: str | os.PathLike[str] | None = None) -> None:
        """Gets this server ready; with `model_dir`, the job starts from what is saved there.

        That is a folder of `save_persistables`; only the first server reads it.
        """
        self._require_server("init_server")
        server = self._minimized(self._server)
        if model_dir is not None:
            if not os.path.isdir(model_dir):
                raise ConfigError(f"model_dir {os.fspath(model_dir)!r} is not a directory")
            server.load(model_dir, None)

    def run_server(self) -> None:
        """Serves until the launcher or a signal ends the job; then drains and returns."""
        self._require_server("run_server")
        self._minimized(self._server).serve()

    def init_worker(self) -> None:
        """Reaches the servers, which may still be starting; again: a warning, nothing else."""
        if self.role.is_server:
            raise RuntimeError("init_worker() was called in a server: call run_server() there")
        self._minimized(self._training)
        waiting = [training for training in self._trainings if not training.is_started]
        if not waiting:
            self._warn_running()
            return
        if self.role.server_endpoints and self._strategy is not None:
            print(self._strategy.get_trainer_runtime_config(), flush=True)
        for training in waiting:
            training.start()
            training.get_ready(global_scope())

    def stop_worker(self) -> None:
        """Everything handed over is applied, the other workers are told, connections end.

        Of all programs that this fleet trains. Nothing is left to do after `Executor.close`.
        """
        begun = [training for training in self._trainings if training.has_begun]
        if not begun:
            raise RuntimeError("stop_worker() must follow init_worker()")
        with ExitStack() as closing:
            for training in begun:
                closing.callback(training.close)

    def all_reduce_worker(self, input: Any, output: NDArray[Any]) -> None:
        """The sum of `input` over all workers, into `output`. All must call it."""
        mine = np.ascontiguousarray(input)
        parts = self.all_gather(mine.tobytes())
        output[...] = sum(np.frombuffer(part, mine.dtype).reshape(mine.shape) for part in parts)

    # -- files --------------------------------------------------------------------------------

    def save_persistables(  # type: ignore[override]
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        main_program: Program | None = None,
    ) -> None:
        """Writes the files that one process would write; one worker calls it.

        It is the servers' state that is saved, in every mode, with all that this worker has handed
        over. `init_server(dirname)` starts from it; `fluid.io.load_persistables` reads it, too.
        """
        program = self._checked(executor, main_program) or self._minimized(self.main_program)
        if program._distributed is None:
            raise ConfigError("main_program is of no parameter-server job: use fluid.io")
        save_persistables(executor, dirname, program)

    def save_inference_model(  # type: ignore[override]
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        feeded_var_names: str | Sequence[str],
        target_vars: Variable | Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> list[str]:
        """Writes what predictions need, as one process would; one worker calls it."""
        program = self._checked(executor, main_program) or self._minimized(self._origin_program)
        return save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            program,
            export_for_deployment=export_for_deployment,
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
                "fleet has no program yet: call "
                "fleet.distributed_optimizer(optimizer, strategy).minimize(loss) first"
            )
        return part


class ProgramOptimizer(FleetOptimizer):
    """What `ProgramFleet.distributed_optimizer` gives."""

    def __init__(
        self, fleet: ProgramFleet, optimizer: Optimizer, strategy: DistributedStrategy
    ) -> None:
        super().__init__(optimizer)
        self._fleet = fleet
        self._strategy = strategy

    def minimize(
        self,
        loss: Variable,
        scopes: Any = None,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[Operator], Pairs]:
        """Adds the training of the loss and makes the program what this process has to run."""
        del scopes
        return self._minimize(loss, startup_program, parameter_list, no_grad_set)

    def _distribute(self, loss: Variable, startup: Program) -> None:
        assert loss.block is not None
        self._fleet.distribute_program(loss.block.program, startup, self._strategy)
