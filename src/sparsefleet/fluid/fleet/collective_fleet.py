"""The fleet object for collective jobs."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.fleet import RoleInfo
from sparsefleet.fluid.collective.ranks import Ranks, set_ranks
from sparsefleet.fluid.executor.compiler import CompiledProgram
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.fleet import Fleet, PaddleCloudRoleMaker, RoleMakerBase
from sparsefleet.fluid.fleet.check_points import PARAMETERS, CheckPoints, TrainStatus
from sparsefleet.fluid.fleet.collective_strategy import DistributedStrategy
from sparsefleet.fluid.fleet.fleet_optimizer import CollectiveOptimizer
from sparsefleet.fluid.framework import Program, Variable
from sparsefleet.fluid.io.file_systems import FS
from sparsefleet.fluid.io.inference_model import save_inference_model
from sparsefleet.fluid.io.saving import load_persistables, save_persistables

if TYPE_CHECKING:
    from sparsefleet.collective import World

__all__ = ["Collective", "fleet"]

_log = logging.getLogger("sparsefleet.fluid")


class Collective(Fleet):
    """One rank of a collective job. With a single process, training is the same as without a fleet.

    `main_program` and `startup_program` are the programs that this rank runs after `minimize`;
    `_origin_program` is a copy that trains alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main_program: CompiledProgram | Program | None = None
        self.startup_program: Program | None = None
        self._origin_program: Program | None = None
        self._transpiled_program: Program | None = None
        self._ranks: Ranks | None = None

    def init(
        self,
        role_maker: RoleMakerBase | RoleInfo | None = None,
        *,
        is_collective: bool = True,
        world: World | None = None,
    ) -> None:
        """Determine the rank of this process from `role_maker` or the environment.

        world: the job's ranks, if they are already connected.
        """
        role_maker = role_maker or PaddleCloudRoleMaker(is_collective=True)
        super().init(role_maker, is_collective=is_collective, world=world)
        self._ranks = set_ranks(Ranks(self.role, world))

    @property
    def ranks(self) -> Ranks:
        """Return the job's ranks, which connect when a program is first run."""
        if self._ranks is None:
            raise RuntimeError("fleet is not initialized; call fleet.init(role) first")
        return self._ranks

    def distributed_optimizer(
        self, optimizer: Any, strategy: DistributedStrategy | None = None
    ) -> CollectiveOptimizer:
        """Return an optimizer whose `minimize` sets the programs that this rank runs."""
        return CollectiveOptimizer(optimizer, strategy, self)

    # -- calls that only servers and their workers need -----------------------------------------

    def init_worker(self) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        self._warn_of("init_worker")

    def run_worker(self, main_programs: Any = None, scopes: Any = None) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        del main_programs, scopes
        self._warn_of("run_worker")

    def init_server(self, model_dir: str | os.PathLike[str] | None = None) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        del model_dir
        self._warn_of("init_server")

    def run_server(self) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        self._warn_of("run_server")

    def stop_worker(self) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        self._warn_of("stop_worker")

    def _warn_of(self, call: str) -> None:
        _log.warning("you should not call '%s' in collective mode; it does nothing", call)

    # -- collectives ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring all ranks to the same values, for example before saving. Must be called by all
        ranks.

        Local SGD averages the parameters; a rank that had less data gets the other ranks' values.
        """
        self.ranks.part()

    def barrier_worker(self) -> None:
        """Return when every rank has called this method."""
        self.settle()
        self.ranks.world.barrier("fleet.barrier_worker")

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the values of all ranks, by rank. Must be called by all ranks."""
        self.settle()
        return self.ranks.world.all_gather_bytes(data)

    # -- files ----------------------------------------------------------------------------------

    def save_persistables(
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        main_program: Program | None = None,
        filename: str | None = None,
    ) -> None:
        """Call `fluid.io.save_persistables` for the program, by default `_origin_program`."""
        program = self._checked("save_persistables", executor, main_program, self._origin_program)
        save_persistables(executor, dirname, program, filename)

    def save_inference_model(
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        feeded_var_names: str | Sequence[str],
        target_vars: Variable | Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> list[str]:
        """Call `fluid.io.save_inference_model` for the program, by default `_origin_program`."""
        program = self._checked(
            "save_inference_model", executor, main_program, self._origin_program
        )
        return save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            program,
            export_for_deployment=export_for_deployment,
        )

    def save_check_point(
        self,
        executor: Executor,
        path: str | os.PathLike[str],
        train_status: TrainStatus,
        main_program: Program | None = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Save a checkpoint under `path`, atomically. Should be called by one rank.

        fs: the file system; None means the local file system. remain_all_checkpoint: if False, keep
        only the last checkpoint.
        """
        program = self._checked(
            "save_check_point", executor, main_program, self._transpiled_program
        )
        points = CheckPoints(path, fs)
        points.add(
            train_status,
            lambda folder: self.save_persistables(executor, folder, program, PARAMETERS),
            local_cache_path,
        )
        if not remain_all_checkpoint:
            points.keep(1)

    def load_check_point(
        self,
        executor: Executor,
        path: str | os.PathLike[str],
        trainer_id: int,
        main_program: Program | None = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Load the last checkpoint into the scope of this rank; return None if there is none."""
        program = self._checked(
            "load_check_point", executor, main_program, self._transpiled_program
        )
        points = CheckPoints(path, fs)
        if points.last() < 0:
            if not ignore_empty:
                raise AssertionError(f"there is no checkpoint in {os.fspath(path)}")
            return None
        return points.load(
            points.last(),
            lambda folder: load_persistables(executor, folder, program, PARAMETERS),
            local_cache_path,
            trainer_id,
        )

    def clean_redundant_check_points(
        self, root_path: str | os.PathLike[str], fs: FS | None = None, checkpoint_num: int = 1
    ) -> None:
        """Remove all but the last `checkpoint_num` checkpoints."""
        CheckPoints(root_path, fs).keep(checkpoint_num)

    def _checked(self, call: str, executor: Any, given: Any, usual: Program | None) -> Program:
        program = usual if given is None else given
        if not isinstance(executor, Executor):
            raise AssertionError(f"fleet.{call}: expected a fluid.Executor, got {executor!r}")
        if not isinstance(program, Program):
            raise AssertionError(f"fleet.{call}: expected a fluid.Program, got {program!r}")
        return program


fleet = Collective()
"""This process's fleet object for collective training."""
