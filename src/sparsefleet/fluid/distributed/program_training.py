"""Train a program as one worker of a job."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet import optim
from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.program_model import ProgramModel
from sparsefleet.fluid.distributed.program_role import ProgramRole, counted_at_exit
from sparsefleet.fluid.distributed.saved_values import served_arrays
from sparsefleet.fluid.distributed.update_rules import ModelSource
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.scope import Scope, global_scope
from sparsefleet.fluid.framework.sparse_parameter import SparseParameter
from sparsefleet.modes import ModeConfig
from sparsefleet.modes.mode_setting import StepGradients
from sparsefleet.nn.pulled_rows import Pull
from sparsefleet.store import Store
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.own_loop import declare_own_loop
from sparsefleet.store.table_folders import TableFolders

__all__ = ["ProgramTraining", "ServedRows", "ServedTensor"]


class ServedTensor(LoDTensor):
    """A view of the worker's copy of a parameter. During training, setting it also sets it on
    the servers.
    """

    def __init__(self, tensor: torch.Tensor, model: ProgramModel) -> None:
        super().__init__(tensor)
        self._model = model

    def set(self, array: Any, place: Any = None, zero_copy: bool = False) -> None:
        given = LoDTensor()
        given.set(array, place, zero_copy=True)
        del zero_copy
        held, new = self.tensor, given.tensor
        if held.shape != new.shape:
            raise ValueError(
                f"a parameter on servers has shape {tuple(held.shape)}, but the array has shape "
                f"{tuple(new.shape)}"
            )
        if self._model.is_started:
            self._model.set_dense(held.data, new)
        else:
            held.data.copy_(new)


class ServedRows(SparseParameter):
    """A parameter with rows on servers.

    The training mode reads the rows, and its steps update them.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], optimizer: optim.Optimizer, model: DistributedModel
    ) -> None:
        super().__init__(name, shape, optimizer)
        self._model = model

    @property
    def store(self) -> Store:
        return self._model.store

    @property
    def source(self) -> Pull:
        """Return the store that all tables share, so that one request fetches the rows of all
        tables.
        """
        return self._model.mode.pull

    def set(self, array: Any, place: Any = None, zero_copy: bool = False) -> None:
        """Write the first worker's rows to the servers; other workers change nothing."""
        if self.takes_rows:
            super().set(array, place, zero_copy)

    @property
    def takes_rows(self) -> bool:
        return self._model.role.is_first_worker

    @property
    def is_open(self) -> bool:
        return self._model.is_started

    def push(self, gradient: tuple[Keys, Floats], rate: float) -> None:
        del gradient, rate
        raise ConfigError(
            f"parameter '{self.name}' is on servers, which cannot be updated directly; run the "
            "program that minimize() or transpile() rewrote, which sends its gradients"
        )


if TYPE_CHECKING:
    from sparsefleet.engine.step import Step
    from sparsefleet.fluid.executor.program_workload import ProgramInputs, ProgramWorkload
    from sparsefleet.fluid.lowering.lowered import RunResult


class ProgramTraining(ProgramRole):
    """A program that trains on servers.

    Used by runs of the program, by its Executor and by `fleet`.

    Training starts with `fleet.init_worker` or the first run of one of the programs. Starting waits
    for servers, defines tables, and gives all workers the same values. If a process exits without
    calling `close`, training is closed at exit.
    """

    def __init__(self, source: ModelSource, mode: str | ModeConfig, role: RoleInfo) -> None:
        self.source = source
        self._mode_like = mode
        self.role = role
        self._model: ProgramModel | None = None
        self._is_closed = False
        self._linked: WeakSet[Scope] = WeakSet()
        self._lock = threading.RLock()

    def __str__(self) -> str:
        return f"a worker's program ({self.source.name})"

    # -- lifecycle ----------------------------------------------------------------------------

    @property
    def model(self) -> ProgramModel:
        """Return the started model."""
        if self._model is None or not self._model.is_started:
            raise ConfigError(
                "training on the servers has not begun, or has ended; call fleet.init_worker(), "
                "or run the startup program"
                if not self._is_closed
                else "training on the servers has ended (fleet.stop_worker or Executor.close); do "
                "this before training ends"
            )
        return self._model

    @property
    def has_begun(self) -> bool:
        """Return whether training was ever started."""
        return self._model is not None

    @property
    def is_started(self) -> bool:
        return self._model is not None and self._model.is_started

    def start(self) -> None:
        """Connect to the servers unless already connected; also works after `close`."""
        with self._lock:
            if self.is_started:
                return
            if self._model is None:
                self._model = ProgramModel(self.source, self._mode_like, self.role)
            self._model.start()
            self._is_closed = False
            self._linked = WeakSet()
            atexit.register(self._close_at_exit)

    def close(self) -> None:
        """Wait until all updates are applied and notify the other workers. Idempotent."""
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
        """Close training at exit. A worker whose script failed with an error counts as lost.

        If not all updates could be applied, the process exits with code 1.
        """
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.fail(error)
        with counted_at_exit(f"sending the remaining updates of training run '{self.source.name}'"):
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
            if not self._is_closed:
                self.start()
            self.model.begin_pass(threads)
        return True

    def begin_training(self, workload: ProgramWorkload, threads: int) -> ProgramModel | None:
        if not self.begin_pass(workload.program, threads):
            return None
        self.get_ready(workload.scope)  # a pass may have no batches
        self.model.use_scope(workload.scope, workload)
        return self.model

    def leave(self) -> None:
        self.model.leave()

    def run(self, workload: ProgramWorkload, inputs: ProgramInputs) -> RunResult:
        """Run the program once, as a step of the engine if the program sends gradients."""
        if not inputs.lowered.sends:
            return super().run(workload, inputs)
        self.get_ready(workload.scope)
        declare_own_loop(self.model.store, f"worker-{self.role.index}")
        with (
            self.model.step(batch=inputs, lookups=workload) as step,
            self.running(workload.scope, step),
        ):
            return workload.run(inputs, step.rows)

    def hand_over(
        self, step: Step | None, parameters: Sequence[str], gradients: Sequence[Any]
    ) -> None:
        if step is None:
            raise ConfigError(f"{self} sends gradients outside a step; run it with an Executor")
        given = dict(zip(parameters, gradients, strict=True))
        mode = self.model.mode
        made = StepGradients()
        for name in self.source.tables.sparse:
            if given[name] is not None:
                made.sparse[name] = given[name]
        for table in self.source.tables.dense:
            parts = [_flat(given[u.parameter.name], u.parameter.shape) for u in table.updates]
            if mode.takes_parts:
                made.dense_parts[table.name] = parts
            else:
                made.dense[table.name] = np.concatenate(parts)
        _keep_apart(made.dense_parts)
        step.give(made)

    def fetch(self) -> None:
        self.model.flush()

    def _link(self, scope: Scope) -> None:
        """Make the scope share the parameters that the servers and the training mode write to."""
        assert self._model is not None
        model = self._model
        for name, parameter in model.module.parameter_of.items():
            scope.var(name).share(ServedTensor(parameter.data, model))
        for name, shape in model.module.shapes.items():
            rows = ServedRows(name, shape, model.tables[name].optimizer, model)
            scope.var(name).share(rows)
        self._linked.add(scope)

    # -- files ----------------------------------------------------------------------------------

    @property
    def writes_model(self) -> bool:
        return self.role.is_first_worker

    def before_saving(self, scope: Scope) -> None:
        self.model.flush()
        if scope not in self._linked:
            self._link(scope)

    def open_tables(
        self, folders: Mapping[str, os.PathLike[str]]
    ) -> Iterator[tuple[TableFolders, Mapping[str, NDArray[Any]]]]:
        model, tables = self.model, self.source.tables
        opened = TableFolders(model.store, folders, dense=[table.name for table in tables.dense])
        opened.open()
        try:
            arrays: dict[str, NDArray[Any]] = dict(served_arrays(opened, tables))
            arrays |= model.rates.counter_values(model.schedule_steps)
        except BaseException:
            opened.abort()
            raise
        yield opened, arrays

    def load(self, folder: str | os.PathLike[str], filename: str | None) -> None:
        """Load values on all workers; the first worker sends them to the servers."""
        with self._lock:
            self.start()
            if global_scope() not in self._linked:
                self._link(global_scope())
            unserved = self.model.load_folder(folder, filename)
        for name, value in unserved.items():
            held = global_scope().find_var(name) or global_scope().var(name)
            held.hold(torch.from_numpy(value))


def _keep_apart(tables: Mapping[str, list[Floats]]) -> None:
    """Copy gradients that share memory with others, such as the gradients of the terms of a sum.

    The training mode may overwrite the gradients that it receives.
    """
    seen: set[int] = set()
    for parts in tables.values():
        for place, part in enumerate(parts):
            at = part.__array_interface__["data"][0]
            if at in seen:
                parts[place] = part.copy()
            seen.add(at)


def _flat(gradient: torch.Tensor | None, shape: Sequence[int]) -> Floats:
    if gradient is None:  # an empty step, because other workers may be waiting for it
        return np.zeros(math.prod(shape), np.float32)
    found: Floats = gradient.detach().reshape(-1).contiguous().cpu().numpy()
    return found
