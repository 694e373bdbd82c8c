"""Programs compiled to run on several places (devices)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sparsefleet.fluid.executor.data_parallel import DataParallel
from sparsefleet.fluid.fleet.settings import BuildStrategy, ExecutionStrategy
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.places import (
    CUDAPlace,
    Place,
    cpu_places,
    cuda_places,
    device_of,
    is_compiled_with_cuda,
    places_of,
)
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.paths import unknown_names

if TYPE_CHECKING:
    from sparsefleet.fluid.executor.predictor import AnalysisConfig, AnalysisPredictor

__getattr__ = unknown_names("fluid.compiler")

__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy", "plain_program"]

AnyStrategy = TypeVar("AnyStrategy", BuildStrategy, ExecutionStrategy)


class CompiledProgram:
    """A program with settings for its runs; `with_data_parallel` runs it on several places.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> main, startup = fluid.Program(), fluid.Program()
    >>> with fluid.program_guard(main, startup):
    ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    ...     _ = fluid.optimizer.SGD(0.1).minimize(loss)
    >>> exe = fluid.Executor(fluid.CPUPlace())
    >>> compiled = CompiledProgram(main).with_data_parallel(
    ...     loss_name=loss.name, places=fluid.cpu_places(2)
    ... )
    >>> with fluid.scope_guard(fluid.Scope()):
    ...     _ = exe.run(startup)
    ...     (losses,) = exe.run(compiled, {"x": np.ones((4, 2), "float32")}, [loss])
    >>> losses.shape
    (2,)
    """

    def __init__(
        self, program_or_graph: Program, build_strategy: BuildStrategy | None = None
    ) -> None:
        if not isinstance(program_or_graph, Program):
            raise TypeError(f"CompiledProgram takes a fluid.Program, got {program_or_graph!r}")
        self._program = program_or_graph
        self._build_strategy = _own_copy(build_strategy, BuildStrategy)
        self._exec_strategy = ExecutionStrategy()
        self._is_data_parallel = False
        self._share_vars_from: CompiledProgram | None = None
        self._is_inference = False
        self._predictor: AnalysisPredictor | None = None
        self._places: list[Place] | None = None
        self._compiled: DataParallel | None = None
        self._compiled_for: tuple[Scope, Place] | None = None
        self._ask_for_fusion()

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: Place | Sequence[Place] | None = None,
    ) -> CompiledProgram:
        """Split later runs across places; return this object.

        loss_name: needed if the program trains.
        build_strategy: replaces any strategy given earlier.
        share_vars_from: a data-parallel program that has run, whose variables are shared.
        places: where replicas run, one per place; by default, CPU_NUM replicas on CPUPlace. If the
            strategy has num_trainers > 1, the replicas of all ranks train together.
        """
        if self._is_data_parallel:
            raise AssertionError("this CompiledProgram is already data-parallel; create a new one")
        block = self._program.global_block()
        if loss_name is not None:
            block.var(getattr(loss_name, "name", loss_name))
        elif any(op.type == "backward" for op in block.ops):
            raise AssertionError(
                "the program has a backward pass, so its loss must be named; use "
                "with_data_parallel(loss_name=loss.name)"
            )
        if build_strategy is not None:
            self._build_strategy = _own_copy(build_strategy, BuildStrategy)
            self._ask_for_fusion()
        self._exec_strategy = _own_copy(exec_strategy, ExecutionStrategy)
        self._build_strategy.update(self._program._exchange_settings)
        self._share_vars_from = share_vars_from
        self._places = None if places is None else places_of(places)
        self._is_data_parallel = True
        return self

    def _with_inference_optimize(self, config: AnalysisConfig) -> CompiledProgram:
        """Make `Executor.run` pass its feed, a list of PaddleTensors, to a predictor (private in
        Fluid).
        """
        from sparsefleet.fluid.executor.predictor import create_paddle_predictor

        if self._is_data_parallel or self._is_inference:
            raise AssertionError("this CompiledProgram is already compiled; create a new one")
        self._predictor = create_paddle_predictor(config)
        self._is_inference = True
        return self

    def of_program(self, program: Program) -> CompiledProgram:
        """Return a copy that runs a different program, compiled with the same settings."""
        made = copy.copy(self)
        made._program = program
        made._compiled = made._compiled_for = None
        return made

    def _ask_for_fusion(self) -> None:
        """Enable operator fusion for the program itself; results do not change."""
        build = self._build_strategy
        asked = {
            "batch_norm": build.fuse_bn_act_ops or build.enable_auto_fusion,
            "elementwise_add": build.fuse_elewise_add_act_ops or build.enable_auto_fusion,
        }
        types = frozenset(type for type, is_asked in asked.items() if is_asked)
        if types - self._program.fused_with_activation:
            self._program.fused_with_activation |= types
            self._program.changed()

    def compiled(self, scope: Scope, place: Place) -> DataParallel:
        """Return the runner, creating it on the first call.

        Raises ValueError if the scope or place has changed since the first call.
        """
        if self._compiled is None or self._compiled_for != (scope, place):
            return self._compile(scope, place)
        return self._compiled

    def _compile(self, scope: Scope, place: Place) -> DataParallel:
        if self._compiled is not None:
            if self._compiled_for != (scope, place) and self._share_vars_from is None:
                raise ValueError(
                    "this CompiledProgram was first run with a different scope or place; compile "
                    "the program again for this one"
                )
            return self._compiled
        self._compiled_for = (scope, place)
        self._compiled = self._made(scope, place)
        return self._compiled

    def _made(self, scope: Scope, place: Place) -> DataParallel:
        shared = None
        if self._share_vars_from is not None:
            shared = self._share_vars_from._compiled
            if not self._share_vars_from._is_data_parallel:
                raise ValueError(
                    "share_vars_from is not data-parallel; call its with_data_parallel first"
                )
            if shared is None:
                raise ValueError(
                    "share_vars_from has not been run, so it has no variables to share; run it "
                    "first"
                )
        return DataParallel(
            self._program,
            len(self._places or self._default_places(place)),
            self._build_strategy,
            self._exec_strategy,
            scope=scope if shared is None else shared.replicas.scope,
            locals=() if shared is None else shared.replicas.locals,
            device=device_of(place) if is_compiled_with_cuda() else None,
        )

    def _default_places(self, place: Place) -> Sequence[Place]:
        if not isinstance(place, CUDAPlace):
            return cpu_places()
        return [place] if self._build_strategy.num_trainers > 1 else cuda_places()


def plain_program(program: Any) -> Any:
    """Return the program in a CompiledProgram; return anything else unchanged."""
    return program._program if isinstance(program, CompiledProgram) else program


def _own_copy(strategy: AnyStrategy | None, kind: type[AnyStrategy]) -> AnyStrategy:
    """Copy the settings, so that, as in Fluid, later changes to them have no effect."""
    if strategy is None:
        return kind()
    if not isinstance(strategy, kind):
        raise TypeError(f"expected a fluid.{kind.__name__}, got {strategy!r}")
    return copy.deepcopy(strategy)
