"""The training of a program in one worker."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.model_source import ModelSource
from sparsefleet.fluid.distributed.program_model import ProgramModel
from sparsefleet.fluid.distributed.program_role import ProgramRole
from sparsefleet.fluid.distributed.saved_values import accumulators_of
from sparsefleet.fluid.distributed.served_values import ServedRows, ServedTensor
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.scope import Scope, global_scope
from sparsefleet.modes import ModeConfig, StepGradients
from sparsefleet.store.arrays import Floats

__all__ = ["ProgramTraining"]


class ProgramTraining(ProgramRole):
    """A program that trains on servers: what its runs, its Executor and `fleet` ask for.

    Whoever comes first, `fleet.init_worker` or a run of one of the programs, starts it: servers are
    waited for, tables defined, and all workers begin with the same values. A process that ends
    without `close` closes it then.
    """

    def __init__(self, source: ModelSource, mode: str | ModeConfig, role: RoleInfo) -> None:
        self.source = source
        self._mode_like = mode
        self.role = role
        self._model: ProgramModel | None = None
        self._is_closed = False
        self._linked: WeakSet[Scope] = WeakSet()
        self._lock = threading.RLock()
        self._threads = self._present = 1

    def __str__(self) -> str:
        return f"a worker's program ({self.source.name})"

    # -- life ---------------------------------------------------------------------------------

    @property
    def model(self) -> ProgramModel:
        """Started."""
        if self._model is None or not self._model.is_started:
            raise ConfigError(
                "training on the servers has not begun, or has ended: call fleet.init_worker(), "
                "or run the start-up program"
                if not self._is_closed
                else "training on the servers has ended (fleet.stop_worker or Executor.close): do "
                "this before"
            )
        return self._model

    @property
    def has_begun(self) -> bool:
        """Whether it was started, though it may have ended since."""
        return self._model is not None

    @property
    def is_started(self) -> bool:
        return self._model is not None and self._model.is_started

    def start(self) -> None:
        """Reaches the servers, if that is still to be done; again after `close`."""
        with self._lock:
            if self.is_started:
                return
            if self._model is None:
                self._model = ProgramModel(self.source, self._mode_like, self.role)
            self._model.start()
            self._is_closed = False
            self._linked = WeakSet()
            self._threads = self._present = 1
            atexit.register(self._close_at_exit)

    def close(self) -> None:
        """Everything handed over is applied, the other workers are told. Idempotent."""
        with self._lock:
            if self._model is None or self._is_closed:
                return
            self._is_closed = True
            atexit.unregister(self._close_at_exit)
            self._model.close()

    def fail(self, error: BaseException) -> None:
        if self._model is not None:
            self._model.fail(error)

    def _close_at_exit(self) -> None:
        """A script need not stop; one that ended with an error counts as lost."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.fail(error)
        self.close()

    # -- runs ---------------------------------------------------------------------------------

    def get_ready(self, scope: Scope) -> None:
        if scope in self._linked and self.is_started:
            return
        with self._lock:
            if not self._is_closed:
                self.start()
            if scope not in self._linked:
                self._link(scope)

    def begin_pass(self, program: Program, threads: int) -> bool:
        if not any(op.type == "send" for op in program.global_block().ops):
            return False
        with self._lock:
            if not (self.is_started and threads == self._threads == self._present):
                if not self._is_closed:
                    self.start()
                self.model.mode.set_threads(threads)
                if not self._present:
                    self.model.rejoin()
                self._threads = self._present = threads
        return True

    def leave(self) -> None:
        with self._lock:
            self._present -= 1
        self.model.leave()

    def hand_over(self, parameters: Sequence[str], gradients: Sequence[Any]) -> None:
        given = dict(zip(parameters, gradients, strict=True))
        mode = self.model.mode
        step = StepGradients()
        for name in self.source.tables.sparse:
            if given[name] is not None:
                step.sparse[name] = given[name]
        for table in self.source.tables.dense:
            parts = [_flat(given[u.parameter.name], u.parameter.shape) for u in table.updates]
            if mode.takes_parts and not mode.keeps_gradients:  # a program may write into its own
                step.dense_parts[table.name] = parts
            else:
                step.dense[table.name] = np.concatenate(parts)
        mode.hand_over(step)

    def fetch(self) -> None:
        self.model.flush()

    def _link(self, scope: Scope) -> None:
        """The scope's values of parameters are those that servers and modes write."""
        assert self._model is not None
        model = self._model
        for name, parameter in model.module.parameter_of.items():
            scope.var(name).share(ServedTensor(parameter.data, model.set_dense))
        for name, shape in model.module.shapes.items():
            rows = ServedRows(name, shape, model.tables[name].optimizer, model)
            scope.var(name).share(rows)
        self._linked.add(scope)

    # -- files ----------------------------------------------------------------------------------

    def before_saving(self, scope: Scope) -> None:
        model = self.model
        model.flush()
        if scope not in self._linked:
            self._link(scope)
        found: dict[str, Any] = dict(accumulators_of(model.store, self.source.tables))
        found.update(model.rates.counter_values(model.schedule_steps))
        for name, value in found.items():
            scope.var(name).hold(torch.from_numpy(value))

    def load(self, folder: str | os.PathLike[str], filename: str | None) -> None:
        """All workers call it; the first one brings the values to the servers."""
        with self._lock:
            self.start()
            if global_scope() not in self._linked:
                self._link(global_scope())
            unserved = self.model.load_folder(folder, filename)
            self._threads = self._present = 1
        for name, value in unserved.items():
            held = global_scope().find_var(name) or global_scope().var(name)
            held.hold(torch.from_numpy(value))


def _flat(gradient: torch.Tensor | None, shape: Sequence[int]) -> Floats:
    if gradient is None:  # a step that changes nothing: others may wait for this worker's part
        return np.zeros(math.prod(shape), np.float32)
    found: Floats = gradient.detach().reshape(-1).contiguous().cpu().numpy()
    return found
