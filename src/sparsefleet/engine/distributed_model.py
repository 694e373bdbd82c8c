"""A model bound to a store: its parameters, tables, mode and steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet import _core
from sparsefleet.engine.bound_model import require_started
from sparsefleet.engine.dense_groups import (
    DenseGroup,
    OptimizerLike,
    dense_groups,
    require_something_to_train,
    require_table_optimizers,
)
from sparsefleet.engine.flat_parameters import FlatParameters, Replicas
from sparsefleet.engine.given_settings import GivenSettings
from sparsefleet.engine.lost_data import LeftOut, raise_left_out
from sparsefleet.engine.model_checkpoint import LoadRequest, ModelSave, Predicate
from sparsefleet.engine.placement import StorePlacement, warn_of_older_tables
from sparsefleet.engine.random_state import random_state, set_random_state
from sparsefleet.engine.rate_schedule import ScheduleLike, schedule_with_rates
from sparsefleet.engine.step import ReadAhead, Step, StepPosition
from sparsefleet.engine.succession import Succession, TakenOver
from sparsefleet.engine.torch_optimizers import TorchStepping
from sparsefleet.engine.worker_metrics import WORKER
from sparsefleet.engine.workload import LookupSource
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.board import Board
from sparsefleet.fleet.incarnation import Incarnation
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import GeoConfig, ModeConfig
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_choice import data_streams, make_mode, mode_config
from sparsefleet.modes.mode_setting import BatchOrigin, ModeSetting, Schedule
from sparsefleet.nn import bind
from sparsefleet.nn.binding import sparse_modules
from sparsefleet.nn.lookup_plan import LookupPlans
from sparsefleet.nn.pulled_rows import PulledRows, plan_rows, pull_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore, RemoteStore, RemoteStoreConfig, Store, TableSpec

if TYPE_CHECKING:
    from sparsefleet.engine.rank_replacement import RankReplacement
    from sparsefleet.serving.updates.publisher import PublishConfig, Publisher
    from sparsefleet.store.remote_store import WireDtype

__all__ = ["DistributedModel"]

Floats = NDArray[np.float32]


class DistributedModel:
    """A model whose tables and parameters live in a store; created by `fleet.distribute`.

    Nothing is sent before `start()`. Dense parameters become views of flat buffers.

    name: identifies this training run among the workers; each run has its own name.
    connect_s: seconds to wait for servers to start.
    wire_dtype: number format on the network; see `RemoteStoreConfig`.
    track_dirty: whether tables track changed rows, so that a save can contain only those rows.
    placement: where dense parameters live and who updates them; None means that they live in the
        store, which updates them.

    >>> import torch
    >>> from sparsefleet.nn import SparseEmbedding
    >>> model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> distributed = DistributedModel(model, optimizer, "local", role=RoleInfo(kind="local"))
    >>> distributed.start()
    >>> with distributed.step():
    ...     model(torch.tensor([3, 5])).sum().backward()
    >>> int(distributed.store.info("ads").size)
    2
    >>> distributed.finish()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerLike,
        mode: str | ModeConfig | None = None,
        *,
        role: RoleInfo,
        threads: int = 1,
        schedule: ScheduleLike | Schedule | None = None,
        name: str = "model",
        wait_s: float = 600.0,
        connect_s: float = 30.0,
        wire_dtype: WireDtype | None = None,
        track_dirty: bool = False,
        placement: StorePlacement | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.role = role
        self.threads = threads
        self.placement = placement or StorePlacement()
        optimizer = self.placement.own_optimizer(model, optimizer)
        self.stepping = TorchStepping(optimizer)
        """The user's torch optimizer, while this model controls it."""
        self._mode_like = mode or ("async" if role.server_endpoints else "local")
        self.wait_s = wait_s
        self._remote = RemoteStoreConfig(
            connect_timeout_s=connect_s, wire_dtype=self.placement.wire_dtype(wire_dtype)
        )
        self._track_dirty = track_dirty
        self.groups = dense_groups(model, optimizer)
        """The dense parameters, grouped by update rule."""
        self._modules = sparse_modules(model)
        require_something_to_train(model, self.groups, self._modules)
        self._default = self.placement.table_default(self.groups, optimizer)
        require_table_optimizers(self._modules, self.groups, self._default)
        self._by_torch = self.placement.groups_by_torch(self.groups, role, self._mode_like)
        self.flat = FlatParameters(model, self.placement.flattened(self.groups))
        self.tensors = self.placement.tensors(
            model,
            self.groups,
            {group.table: self.flat.names_of(group.table) for group in self._native_groups()},
            self.stepping.optimizer if self._by_torch else None,
        )
        """The dense tensors by name."""
        following = [m.name for m in self._modules if self._default and not m.own_optimizer]
        self._rates = schedule_with_rates(
            schedule, optimizer, self.groups, following, torch_steps=bool(self._by_torch)
        )
        native = self._native_groups()
        self._given = GivenSettings(optimizer, self.groups, native, following, self._rates)
        self._steps = 0  # schedule steps counted by previous modes
        self._starts = 0
        self._failed = False
        self._replicas = Replicas(self.flat, model, spares_model=bool(self._by_torch))
        self.plans = LookupPlans()
        """The lookups for each batch layout, learned from steps."""
        self._store: Store | None = None
        self._board: Board | None = None
        self._mode: Mode | None = None
        self._meeting: Meeting | None = None
        self._incarnation = Incarnation()
        self._shared_at = 0
        self._values_are_shared = False  # and no worker has trained since
        self.succession: Succession | None = None
        """The state for a process that replaces this worker; None if workers are not replaced."""
        self.replacement: RankReplacement | None = None
        """Replaces lost ranks; None if losing a rank stops the job."""
        self.left_out: dict[int, LeftOut] = {}
        """Data of lost workers that nobody has trained on, by worker."""
        self._tables: dict[str, TableSpec] = {}

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        return self._mode is not None

    @property
    def store(self) -> Store:
        """Return the store that holds the tables; available after `start()`."""
        return require_started(self._store)

    @property
    def device(self) -> torch.device | None:
        """Return the device for batches; None keeps them on the CPU. Available after `start()`."""
        return self.placement.device

    @property
    def board(self) -> Board:
        """Return the board where workers exchange notes; available after `start()`."""
        return require_started(self._board)

    @property
    def mode(self) -> Mode:
        """Return the mode, which decides when updates are sent; available after `start()`."""
        return require_started(self._mode)

    @property
    def meeting(self) -> Meeting:
        """Return the meeting, where the workers synchronize; available after `start()`."""
        return require_started(self._meeting)

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """Return the sparse tables by name; available after `start()`."""
        return self._tables

    def start(self) -> None:
        """Connect to the servers and define the tables; all workers start with the same values.

        The values come from the first worker, or from the directory that servers were asked to
        load. Raises a DeadlineError that names the server that did not start.
        """
        if self.is_started:
            return
        if self.role.is_server:
            raise ConfigError(
                "this process is a server and cannot train a model: call fleet.run_server()"
            )
        taken: TakenOver | None = None
        if self._store is None:
            self.placement.join(self)
            store = self._store = self._open_store()
            self._board = self.placement.board(store)
            self._meeting = self._open_meeting()
            taken = self._take_over()
            self._tables = bind(self.model, store, self._default, track_dirty=self._track_dirty)
            if (
                self.role.is_first_worker
                and isinstance(self._store, RemoteStore)
                and not self._incarnation.is_successor
            ):
                warn_of_older_tables(self._store, self._tables)
            for group in self._native_groups():
                self._store.define(group.spec())
            if taken is None:
                self.placement.write_first_values_once(self)
            else:
                self._starts = taken.starts - 1
                self._meeting.continue_from(taken.shared_at, is_over=taken.is_closed)
            self._share_values()
            if taken is not None:
                self._steps = taken.first_step
                self._meeting.continue_from(taken.started_at)
            self._use_live_values()
        _core.keep_freed_memory(self.threads)
        self._starts += 1
        self._failed = False
        self._mode = make_mode(self._mode_like, self._mode_setting(taken))
        self._mode.start()
        self._replicas.speed_up_layers()
        self.stepping.guard()
        self.placement.started(self._mode)
        if self.succession is not None and taken is None:
            self.succession.started(
                self, starts=self._starts, first_step=self._steps, at=self._shared_at
            )
        elif self.succession is not None:
            self.succession.look_again(self._mode.data_streams)
        WORKER.serve(self)

    def finish(self) -> None:
        """Apply all pending updates, leave the group of workers, and stop all threads."""
        if self._mode is not None:
            mode, self._mode = self._mode, None
            self._values_are_shared = False
            self._replicas.reset_layers()
            if not self._failed:
                self.placement.finishing(mode)
            self.stepping.release()
            try:
                mode.finish()
            finally:
                self._steps += mode.steps_of_schedule

    def close(self) -> None:
        """Finish and close the connections. The model keeps tables that live in this process."""
        WORKER.release(self)
        store, self._store = self._store, None
        try:
            self.finish()
            if store is not None and not self._failed:  # the others treat a failed worker as lost
                if self.succession is not None:
                    self.succession.closes()
                self.meeting.leave()
        finally:
            if isinstance(store, RemoteStore):
                store.close()
        if self.left_out and not self._failed:
            raise_left_out(self.left_out)

    def flush(self) -> None:
        """Block until all pending updates are applied and the local parameters are current."""
        self.mode.flush()

    def settle(self) -> None:
        """Flush on all workers; the local parameters then include every worker's updates.

        Must be called by all workers.
        """
        self.flush()
        if not self.meeting.is_alone:
            self.meeting.barrier()
            self.flush()
        self.placement.settled(self)

    def leave(self) -> None:
        """Notify the mode that the calling thread has no more data in this pass."""
        self.mode.leave()

    def rejoin(self) -> None:
        """Notify the mode that all threads are back for the next pass."""
        self.mode.rejoin()

    def fail(self, error: BaseException) -> None:
        """Report that a thread failed; threads that wait for it then raise an error."""
        self._failed = True
        if self.succession is not None and self._store is not None:
            self.succession.keep_session(True)
        if self._mode is not None:
            self._mode.fail(error)
        self.placement.failed(error)

    # -- steps --------------------------------------------------------------------------------

    def replicas(self, count: int) -> list[nn.Module]:
        """Return `count` models that share the same parameters, one per thread; see `Replicas`."""
        return self._replicas.first(count)

    def step(
        self,
        replica: nn.Module | None = None,
        *,
        batch: Any = None,
        pulled: PulledRows | None = None,
        lookups: LookupSource | None = None,
        ahead: ReadAhead | None = None,
        place: StepPosition | None = None,
        origin: BatchOrigin | None = None,
    ) -> Step:
        """Return a training step. Run forward and backward inside the step.

        Gradients are sent when the step ends.

        batch: any nested structure of tensors. If given, the rows for all its ids are fetched in
        one request per server, once a first batch has shown which ids each table looks up.
        pulled: rows that `prefetch` or the previous step fetched for this batch.
        lookups: predicts the lookups of a batch; None uses the plans this model has learned.
        ahead, place, origin: see `Step`.
        """
        clock = (WORKER.own_clock(), perf_counter()) if place is None else None
        mode = self.mode
        self._given.require_unchanged()
        source = None
        if pulled is not None and pulled.wanted():  # planned, but not fetched by an earlier step
            pulled = None
        is_planned = batch is not None and pulled is not None
        if batch is not None:
            source = lookups or self.plans
            if not is_planned:
                found = source.lookups(batch)
                is_planned = found is not None
                pulled = pull_rows(found, mode.pull) if found else None
        return Step(
            mode,
            StepRows(mode.pull, pulled=pulled),
            self._replicas.parameters_of(self.model if replica is None else replica),
            batch=batch,
            lookups=source,
            is_planned=is_planned,
            ahead=ahead,
            place=place,
            origin=origin,
            clock=clock,
        )

    def prefetch(self, batch: Any, lookups: LookupSource | None = None) -> PulledRows | None:
        """Pull the rows for a later batch.

        Return None if the mode needs fresh rows, or if the lookups of the batch are not known.
        """
        may = self.mode.may_prefetch and not self.mode.needs_fresh_rows
        found = (lookups or self.plans).lookups(batch) if may else None
        return pull_rows(found, self.mode.pull) if found else None

    def plan_ahead(self, batch: Any, lookups: LookupSource | None = None) -> PulledRows | None:
        """Return the lookups of a later batch, without rows, for `ReadAhead`.

        Return None if the mode does not return rows, or if the lookups are not known.
        """
        found = (lookups or self.plans).lookups(batch) if self.mode.brings_rows else None
        return plan_rows(found) if found else None

    @contextmanager
    def evaluating(
        self,
        replica: nn.Module | None = None,
        *,
        batch: Any = None,
        lookups: LookupSource | None = None,
    ) -> Iterator[nn.Module]:
        """Return the model for evaluation, without gradients; rows are read but not created.

        `with distributed.evaluating() as model: model(ids)`. For batch and lookups, see `step`.
        """
        # Not `replica or ...`: a compiled module has a length only if the original does.
        model, pull = self.model if replica is None else replica, self.mode.pull
        source = lookups or self.plans
        found = None if batch is None else source.lookups(batch)
        pulled = pull_rows(found, pull, train=False) if found else None
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad(), StepRows(pull, train=False, pulled=pulled) as rows:
                yield model
        finally:
            for module, was_training in modes:
                module.training = was_training
        if batch is not None and found is None:
            source.learn(rows, batch, planned=False)

    # -- files --------------------------------------------------------------------------------

    @property
    def schedule_steps(self) -> int:
        """Return the number of learning-rate schedule steps, as known to this worker."""
        return self._steps + (0 if self._mode is None else self._mode.steps_of_schedule)

    def learning_rates(self) -> dict[str, float]:
        """Return the current learning rate of each table, sparse or dense."""
        rates = {name: spec.optimizer.lr for name, spec in self._tables.items()}
        for group in self.groups:
            if group.optimizer is not None:
                rates[group.table] = group.optimizer.lr
            elif self.stepping.optimizer is not None:
                rates[group.table] = float(self.stepping.optimizer.param_groups[group.index]["lr"])
        if self._rates is not None:
            rates.update(self._rates.rates_at(self.schedule_steps))
        return rates

    def save(self, directory: str | os.PathLike[str], *, only: Predicate | None = None) -> None:
        """Write the model and its tables with all optimizer state; call it on one worker.

        Returns when the checkpoint is committed. Updates that other workers hand over in the
        meantime may or may not be in the checkpoint; for a consistent save, see `Trainer.save`.
        only: selects what to save, by name.
        """
        self.flush()
        save = ModelSave(self, directory, schedule_steps=self.schedule_steps, only=only)
        save.open()
        save.write()

    def load(
        self,
        directory: str | os.PathLike[str],
        *,
        only: Predicate | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Load a checkpoint written by `save`. Must be called by all workers; the first one loads.

        A schedule resumes at its current position or at the one in the checkpoint, whichever is
        further. only: selects what to load, by name. If loading fails, nothing has changed, and all
        workers raise the error.
        """
        self.finish()
        self.placement.load(self, LoadRequest(directory, only, storage_options))
        self._share_values()
        self.start()

    def make_publisher(self, config: PublishConfig) -> Publisher:
        """Return a publisher that updates the export in `config.model` from this model."""
        from sparsefleet.engine.publishing import make_publisher

        return make_publisher(self, config)

    def random_state(self) -> dict[str, Any]:
        """Return the state of the random generators used in training, as JSON values."""
        return random_state()

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `random_state` returned."""
        set_random_state(state)

    def collect(self) -> None:
        """Before a save, send the first worker any state that only other workers have.

        Must be called by all workers.
        """
        self.placement.collect()

    def notes_to_save(self) -> dict[str, Any]:
        """Return the JSON data that a checkpoint stores besides tensors and tables."""
        return self.placement.notes_to_save(self.mode, self.groups)

    def take_notes(self, notes: Mapping[str, Any]) -> None:
        """Restore the data that `notes_to_save` put into the checkpoint that is being loaded."""
        self.placement.take_notes(notes)

    def fitted(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the tensors in a checkpoint in the form that this worker needs."""
        return self.placement.fitted(tensors, self.role.index)

    # -- for placements -----------------------------------------------------------------------

    @property
    def first_step(self) -> int:
        """Number of schedule steps taken before the next call to `start`."""
        return self._steps

    def continue_schedule(self, steps: int) -> None:
        """Resume the schedule at this step, unless the schedule is already past it."""
        self._steps = max(self._steps, steps)

    def write_dense(self) -> None:
        """Write this worker's dense parameters to the store."""
        for group in self._native_groups():
            self.store.write_dense(group.table, self.flat.arrays[group.table])

    def fetch_dense(self) -> None:
        """Overwrite this worker's dense parameters with those in the store."""
        for group in self._native_groups():
            self.store.pull_dense(group.table, out=self.flat.arrays[group.table])

    # -- inside -------------------------------------------------------------------------------

    def _native_groups(self) -> list[DenseGroup]:
        return [] if self._by_torch else self.groups

    def _open_store(self) -> Store:
        if not self.role.server_endpoints:
            return LocalStore()
        self._incarnation = self.placement.incarnation()
        if self._starts:  # this process has already started once
            self._incarnation = replace(self._incarnation, number=0)
        session = self._incarnation.session(self.role.index, self.name)
        store = RemoteStore(
            self.role.server_endpoints,
            name=f"worker-{self.role.index}",
            config=replace(self._remote, session=session),
        )
        if self._incarnation.is_replaceable:
            self.succession = Succession(store, self.role, self._incarnation, self.name)
        return store

    def _open_meeting(self) -> Meeting:
        job = self._incarnation.job
        return Meeting(
            self.board,
            self.role,
            name=f"{job}/{self.name}/{self._starts}" if job else f"{self.name}/{self._starts}",
            wait_s=self.wait_s,
            continue_without_lost=self.placement.continues_without_lost(),
            keeps=self.succession is not None,
        )

    def _take_over(self) -> TakenOver | None:
        """Continue where the previous process of this worker stopped, if there was one."""
        if self.succession is None:
            return None
        return self.succession.take_over(data_streams(self._mode_like))

    def _mode_setting(self, taken: TakenOver | None = None) -> ModeSetting:
        ranks = self.placement.rank_setting(self)
        return ModeSetting(
            store=self.store,
            tables=self._tables,
            dense=self.flat.arrays,
            dense_is_live=isinstance(self._store, LocalStore) and not self._has_own_copies,
            dense_is_shared=self._values_are_shared and taken is None,
            dense_optimizers={
                group.table: group.optimizer
                for group in self._native_groups()
                if group.optimizer is not None
            },
            threads=self.threads,
            worker_index=self.role.index,
            worker_num=self.role.worker_num,
            # After a failure the servers still know the group of the failed mode.
            group=f"{self.name}/{self._starts}",
            schedule=self._rates,
            first_step=self._steps,
            continue_without_lost=self.placement.continues_without_lost(),
            wait_s=self.wait_s,
            dense_step=self._step_by_torch if self._by_torch and ranks is None else None,
            ranks=ranks,
            position=None if taken is None else taken.mode_position,
            outbox=None if self.succession is None else self.succession.outbox,
        )

    def _step_by_torch(self, gradients: Mapping[str, Floats]) -> None:
        """Take one step with an optimizer that only torch implements, on the shared parameters."""
        self.stepping.step(self._replicas.parameters_of(self.model), gradients)

    def _share_values(self) -> None:
        self._shared_at = self.meeting.count
        self.placement.share_values(self)
        self._values_are_shared = True

    def _use_live_values(self) -> None:
        """Make the parameters in this process use the table's memory instead of a copy."""
        if isinstance(self._store, LocalStore) and not self._has_own_copies:
            for group in self._native_groups():
                live = self._store.live_dense(group.table)
                self.flat.adopt(group.table, live, self._replicas.all)

    @property
    def _has_own_copies(self) -> bool:
        """Return whether the mode trains on copies of the store's values."""
        return isinstance(mode_config(self._mode_like), GeoConfig)
