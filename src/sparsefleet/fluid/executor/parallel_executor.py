"""Fluid's older way to run a program on several places."""

from __future__ import annotations

import copy
from typing import Any

from sparsefleet.fluid.executor.compiler import CompiledProgram
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.fleet.execution import BuildStrategy, ExecutionStrategy
from sparsefleet.fluid.framework import Program, default_main_program
from sparsefleet.fluid.framework.places import CPUPlace, CUDAPlace, Place, cpu_places, cuda_places
from sparsefleet.fluid.framework.scope import Scope, global_scope
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.parallel_executor")

__all__ = ["BuildStrategy", "ExecutionStrategy", "ParallelExecutor"]


class ParallelExecutor:
    """A data-parallel CompiledProgram and the Executor that runs it.

    use_cuda: run replicas on the GPUs that torch sees; otherwise, CPU_NUM replicas on the CPU.
    loss_name: needed if the program trains.
    main_program: None uses the default main program.
    share_vars_from: a ParallelExecutor that has run, whose variables are shared.
    num_trainers, trainer_id: must be 1 and 0; use fleet to train in several processes.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     double = fluid.data("x", [None, 1]) * 2.0
    ...     pe = ParallelExecutor(use_cuda=False)
    ...     pe.run([double.name], feed={"x": np.ones((2, 1), "float32")})
    [array([[2.],
           [2.]], dtype=float32)]
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: ParallelExecutor | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        *,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ) -> None:
        if share_vars_from is not None and not isinstance(share_vars_from, ParallelExecutor):
            raise AssertionError(
                f"share_vars_from must be a ParallelExecutor, got {share_vars_from!r}"
            )
        build = BuildStrategy() if build_strategy is None else copy.deepcopy(build_strategy)
        build.num_trainers, build.trainer_id = num_trainers, trainer_id
        shared = None if share_vars_from is None else share_vars_from.compiled
        self._places: list[Place] = [*(cuda_places() if use_cuda else cpu_places())]
        self._scope = global_scope() if scope is None else scope
        self.compiled: CompiledProgram = CompiledProgram(
            default_main_program() if main_program is None else main_program
        ).with_data_parallel(
            loss_name=loss_name,
            build_strategy=build,
            exec_strategy=exec_strategy,
            share_vars_from=shared,
            places=self._places,
        )
        self._executor = Executor(CUDAPlace(0) if use_cuda else CPUPlace())

    def run(
        self, fetch_list: Any, feed: Any = None, feed_dict: Any = None, return_numpy: bool = True
    ) -> list[Any]:
        """Run once; return the values of all replicas, concatenated.

        feed: a dict that is split among the replicas, or a list with one dict per replica.
        feed_dict: the older name of feed.
        """
        return self._executor.run(
            self.compiled,
            feed=feed_dict if feed is None else feed,
            fetch_list=fetch_list,
            scope=self._scope,
            return_numpy=return_numpy,
        )

    @property
    def device_count(self) -> int:
        """Return the number of replicas."""
        return len(self._places)

    def drop_local_exe_scopes(self) -> None:
        """Do nothing, since temporary variables are freed at the end of each run."""
