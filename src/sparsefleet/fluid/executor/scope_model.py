"""Adapts a program whose values are in a scope, so that the engine can train and save it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.engine.lost_data import LeftOut
from sparsefleet.engine.model_checkpoint import LoadRequest, Predicate, load_model
from sparsefleet.engine.model_tensors import ModelTensors
from sparsefleet.engine.random_state import random_state, set_random_state
from sparsefleet.engine.rank_replacement import RankReplacement
from sparsefleet.engine.step import ReadAhead, Step, StepPosition
from sparsefleet.engine.succession import Succession
from sparsefleet.fleet.board import Board
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.executor.program_workload import ProgramInputs, ProgramWorkload
from sparsefleet.fluid.framework import Program, ProgramError
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.framework.sparse_parameter import LocalRows, SparseParameter, pull_from
from sparsefleet.modes.mode_choice import make_mode
from sparsefleet.modes.mode_setting import BatchOrigin, ModeSetting
from sparsefleet.nn.pulled_rows import Pull, PulledRows, pull_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore, Store, TableSpec
from sparsefleet.store.arrays import Floats, Keys

__all__ = [
    "ScopeModel",
    "ScopeTensors",
    "kept_tensors",
    "make_missing",
    "program_random_state",
    "set_program_random_state",
]


class ScopeTensors(ModelTensors):
    """The tensors that checkpoints save, from a model and from a scope's persistent variables.

    kept: returns the scope's live tensors by name.
    """

    def __init__(
        self,
        model: nn.Module,
        in_tables: Mapping[str, Sequence[str]],
        kept: Callable[[], dict[str, torch.Tensor]],
    ) -> None:
        super().__init__(model, in_tables, None)
        self._kept = kept

    def _own(self) -> dict[str, torch.Tensor]:
        return super()._own() | self._kept()


class ScopeModel:
    """Gives a program that updates its own values the interface of a model in the training engine.

    Its steps do not send gradients. Rows come from tables in the scope: local tables or,
    for a program that only reads rows, tables on servers.
    """

    device: torch.device | None = None
    wait_s = 600.0
    succession: Succession | None = None
    replacement: RankReplacement | None = None

    def __init__(self, program: Program, scope: Scope) -> None:
        self.program = program
        self.scope = scope
        self.name = "program"
        self.role = RoleInfo(kind="local")
        self.threads = 1
        """Number of threads in the next pass."""
        self._leaves = False
        self.workload: ProgramWorkload | None = None
        """The workload that the current pass runs."""
        self._pull: Pull = pull_from([])
        self.store: Store = LocalStore()
        """The store of the tables, set by `keep_tables`."""
        self.board: Board = self.store
        self.meeting = Meeting(self.store, self.role)
        self.mode = make_mode("local", ModeSetting(store=self.store, tables={}))
        self.left_out: dict[int, LeftOut] = {}
        self.tables: dict[str, TableSpec] = {}
        """The tables that checkpoints save, by name."""
        self.model = nn.Module()
        """A module without parameters, since the parameters are in the scope."""
        self.tensors: ModelTensors = ScopeTensors(self.model, {}, self._kept)
        """The part of the scope that checkpoints save."""

    # -- lifecycle ------------------------------------------------------------------------------

    is_started = True

    def begin_pass(self, workload: ProgramWorkload, threads: int, *, leaves: bool) -> None:
        """Prepare for threads that are about to run the program.

        leaves: whether to notify the program's role when a thread has no more data.
        """
        self.workload = workload
        self.threads = threads
        self._leaves = leaves
        self._pull = self._source()

    def start(self) -> None:
        """Do nothing, since the scope already contains the values."""

    def finish(self) -> None:
        """After a failure, replace the training mode with a new object."""
        self.mode = make_mode("local", ModeSetting(store=self.store, tables={}))

    def close(self) -> None:
        """Do nothing, since the values stay in the scope."""

    def flush(self) -> None:
        """Do nothing, since updates are applied immediately."""

    def settle(self) -> None:
        """Do nothing, since updates are applied immediately."""

    def rejoin(self) -> None:
        """Do nothing, since no thread waits for another."""

    @property
    def reads_servers(self) -> bool:
        """Return whether rows come from servers."""
        return any(not isinstance(table.store, LocalStore) for table in self._table_values())

    def leave(self) -> None:
        """Notify the program's role that the calling thread has no more data in this pass."""
        if self._leaves and self.program._distributed is not None:
            self.program._distributed.leave()

    def fail(self, error: BaseException) -> None:
        """Notify the program's role that a thread failed."""
        if self._leaves and self.program._distributed is not None:
            self.program._distributed.fail(error)

    # -- steps ----------------------------------------------------------------------------------

    def step(
        self,
        replica: nn.Module | None = None,
        *,
        batch: Any = None,
        pulled: PulledRows | None = None,
        lookups: Any = None,
        ahead: ReadAhead | None = None,
        place: StepPosition | None = None,
        origin: BatchOrigin | None = None,
    ) -> Step:
        """Enter a step in which the program runs and updates its own values."""
        del replica, ahead, origin
        trains = _trains(batch)
        if pulled is None:
            pulled = pull_rows(lookups.lookups(batch), self._pull, train=trains)
        rows = StepRows(self._pull, train=trains, pulled=pulled)
        return _UnsentStep(self.mode, rows, {}, place=place)

    def prefetch(self, batch: Any, lookups: Any = None) -> PulledRows | None:
        """Pull the rows of a later batch, or return None if the program changes rows."""
        if _trains(batch):
            return None
        return pull_rows(lookups.lookups(batch), self._pull, train=False)

    def plan_ahead(self, batch: Any, lookups: Any = None) -> PulledRows | None:
        """Return None, since steps of this model do not return the rows of a later batch."""
        del batch, lookups
        return None

    @contextmanager
    def evaluating(
        self, replica: nn.Module | None = None, *, batch: Any = None, lookups: Any = None
    ) -> Iterator[nn.Module]:
        """Run only the forward pass in the `with` block; it reads rows but creates none."""
        del replica
        pulled = pull_rows(lookups.lookups(batch), self._pull, train=False)
        with StepRows(self._pull, train=False, pulled=pulled):
            yield self.model

    def _source(self) -> Pull:
        tables = {table.name: table for table in self._table_values()}
        pull = pull_from(tables.values())

        def checked(keys: Mapping[str, Keys], /, **how: Any) -> Mapping[str, Floats]:
            for name in keys:
                if name not in tables:
                    raise ProgramError.no_value(name, self.program.site_of_use(name))
            return pull(keys, **how)

        return checked

    def _table_values(self) -> list[SparseParameter]:
        held = [self.scope.find_var(p.name) for p in self.program.all_parameters() if p.is_table]
        values = [None if found is None else found.value() for found in held]
        return [value for value in values if isinstance(value, SparseParameter)]

    # -- files ----------------------------------------------------------------------------------

    schedule_steps = 0

    def keep_tables(self, *, track_dirty: bool) -> None:
        """Move all tables in the scope into one store, so that one snapshot covers them all.

        Tables that already share a store, for example after an earlier call, stay there.
        """
        values = [value for value in self._table_values() if isinstance(value, LocalRows)]
        stores = {id(value.store): value.store for value in values}
        store: Store = next(iter(stores.values())) if len(stores) == 1 else LocalStore()
        if len(stores) > 1 or not _tracks(store, track_dirty):
            store = together = LocalStore()
            for value in values:
                value.move_to(together, track_dirty=track_dirty)
        self.board = self.store = store
        self.finish()  # the mode owns the store
        names = {value.name for value in values}
        self.tables = {
            name: spec
            for name, spec in store.specs.items()
            if isinstance(spec, TableSpec) and name in names
        }

    def load(
        self,
        directory: str | os.PathLike[str],
        *,
        only: Predicate | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Load a checkpoint; on an error nothing changes."""
        make_missing(self.program, self.scope, directory, storage_options)
        load_model(self, LoadRequest(directory, only, storage_options))

    def random_state(self) -> dict[str, Any]:
        """Return the state of all random number generators that the program uses."""
        return program_random_state(self.workload)

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `random_state`."""
        set_program_random_state(self.workload, state)

    def collect(self) -> None:
        """Do nothing, since all values are in this process."""

    def notes_to_save(self) -> dict[str, Any]:
        return {}

    def take_notes(self, notes: Mapping[str, Any]) -> None:
        del notes

    def fitted(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return tensors

    def _kept(self) -> dict[str, torch.Tensor]:
        names = (found.name for found in self.program.list_vars() if found.persistable)
        return kept_tensors(self.scope, names)


class _UnsentStep(Step):
    """A step that ends without sending gradients."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rows.__exit__(kind, error, trace)


def program_random_state(workload: ProgramWorkload | None) -> dict[str, Any]:
    """Return the random state of the process and of operators with a seed."""
    return {**random_state(), "operators": [] if workload is None else workload.random_state()}


def set_program_random_state(workload: ProgramWorkload | None, state: Mapping[str, Any]) -> None:
    """Restore a state returned by `program_random_state`."""
    set_random_state(state)
    if workload is not None:
        workload.set_random_state(state.get("operators", ()))


def kept_tensors(scope: Scope, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return the tensors in a scope for these variables, excluding tables."""
    found = {}
    for name in names:
        held = scope.find_var(name)
        value = None if held is None else held.value()
        if isinstance(value, torch.Tensor):
            found[name] = value.data
    return found


def make_missing(
    program: Program,
    scope: Scope,
    directory: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Create those variables in a checkpoint that only get a value when the main program runs.

    A process that has only run the startup program does not have these variables.
    """
    checkpoint = Checkpoint.open(absolute_path(directory), dict(storage_options or {}) or None)
    kept = {found.name: found for found in program.list_vars() if found.persistable}
    have = kept_tensors(scope, kept)
    for entry in checkpoint.manifest.dense:
        if entry.name in kept and entry.name not in have:
            dtype = getattr(torch, kept[entry.name].dtype)
            scope.var(entry.name).hold(torch.zeros(entry.shape, dtype=dtype))


def _tracks(store: Store, track_dirty: bool) -> bool:
    """Return whether a store's tables track changed rows, if `track_dirty` is True.

    Always True if `track_dirty` is False.
    """
    specs = [spec for spec in store.specs.values() if isinstance(spec, TableSpec)]
    return not track_dirty or all(spec.track_dirty for spec in specs)


def _trains(batch: ProgramInputs) -> bool:
    plan = batch.lowered.plan
    return plan is not None and plan.trains
