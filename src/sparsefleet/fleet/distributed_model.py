"""A model bound to a store: its parameters, tables and mode, and the steps it takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet import _core, optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.board import Board
from sparsefleet.fleet.dense_optimizer import DenseGroup, OptimizerLike, dense_groups
from sparsefleet.fleet.flat_parameters import FlatParameters
from sparsefleet.fleet.frozen_state import FrozenState
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.model_checkpoint import ModelSave, Predicate, load_model
from sparsefleet.fleet.model_tensors import ModelTensors
from sparsefleet.fleet.rate_schedule import RateSchedule, ScheduleLike
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.save_hooks import SaveHooks
from sparsefleet.fleet.server_notes import directory_of_servers
from sparsefleet.fleet.step_calls import StepCalls
from sparsefleet.fleet.torch_stepping import TorchStepping
from sparsefleet.fleet.trainable import (
    require_local,
    require_something_to_train,
    require_started,
)
from sparsefleet.modes import (
    GeoConfig,
    Mode,
    ModeConfig,
    ModeSetting,
    RankSetting,
    Schedule,
    make_mode,
    mode_config,
)
from sparsefleet.nn import bind, sparse_modules
from sparsefleet.store import LocalStore, RemoteStore, RemoteStoreConfig, Store, TableSpec

__all__ = ["DistributedModel"]

Floats = NDArray[np.float32]


class DistributedModel(StepCalls, SaveHooks):
    """A model whose tables and parameters live in a store; made by `fleet.distribute`.

    Nothing happens on the wire before `start()`. Dense parameters become views of flat buffers.
    `name` is what the workers call this training among themselves; each training has another.
    `connect_s`: how long servers may take to come up.
    `track_dirty`: tables remember which rows changed, for saves of only those.

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
        track_dirty: bool = False,
    ) -> None:
        self.model = model
        self.name = name
        self.role = role
        self.threads = threads
        self._optimizer = optimizer
        self._stepping = TorchStepping(optimizer)
        self._mode_like = mode or ("async" if role.server_endpoints else "local")
        self.wait_s = wait_s
        self._connect_s = connect_s
        self._track_dirty = track_dirty
        self._groups = dense_groups(model, optimizer)
        self._modules = sparse_modules(model)
        require_something_to_train(model, self._groups, self._modules)
        self._by_torch = self._groups_of_torch()
        self.flat = FlatParameters(model, self._flattened())
        self.tensors = ModelTensors(
            model,
            {group.table: self.flat.names_of(group.table) for group in self._native_groups()},
            self._stepping.optimizer if self._by_torch else None,
        )
        """The dense tensors by name."""
        self._rates = self._rates_of(schedule)
        self._steps = 0  # of the schedule, counted by modes before the present one
        self._starts = 0
        self._failed = False
        # Torch steps on the model's own parameters, which no thread may use then.
        self._start_steps(self.flat, model, spares_model=bool(self._by_torch))
        self._store: Store | None = None
        self._mode: Mode | None = None
        self._meeting: Meeting | None = None
        self._tables: dict[str, TableSpec] = {}

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        return self._mode is not None

    @property
    def store(self) -> Store:
        """Where the tables are; there is one from `start()` on."""
        return require_started(self._store)

    @property
    def device(self) -> torch.device | None:
        """Where batches are to be brought, from `start()` on; None: they stay on the CPU."""
        return None

    @property
    def board(self) -> Board:
        """Where workers leave notes for each other, from `start()` on: the servers, if any."""
        return self.store

    @property
    def mode(self) -> Mode:
        """Who waits for whom; there is one from `start()` on."""
        return require_started(self._mode)

    @property
    def meeting(self) -> Meeting:
        """The other workers; there from `start()` on."""
        return require_started(self._meeting)

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        """The sparse tables by name, from `start()` on."""
        return self._tables

    def start(self) -> None:
        """Reaches the servers, defines the tables; all workers begin with the same values.

        These are the first worker's, or those of the directory that the servers were told to
        load. Raises DeadlineError naming the server that does not come up.
        """
        if self.is_started:
            return
        if self.role.is_server:
            raise ConfigError("a server trains no model: call fleet.run_server()")
        if self._store is None:
            self._store = self._open_store()
            self._meeting = Meeting(
                self.board,
                self.role,
                name=f"{self.name}/{self._starts}",
                wait_s=self.wait_s,
                go_on_without_lost=self._keeps_going,
            )
            self._tables = bind(
                self.model, self._store, self._table_default(), track_dirty=self._track_dirty
            )
            for group in self._native_groups():
                self._store.define(group.spec())
            self._first_values()
            self._share_values()
            self._use_live_values()
        _core.keep_freed_memory()
        self._starts += 1
        self._failed = False
        self._mode = make_mode(self._mode_like, self._mode_setting())
        self._mode.start()
        self._stepping.guard()

    def finish(self) -> None:
        """Everything handed over is applied, the other workers are left, threads end."""
        if self._mode is not None:
            mode, self._mode = self._mode, None
            self._stepping.release()
            try:
                mode.finish()
            finally:
                self._steps += mode.steps_of_schedule

    def close(self) -> None:
        """`finish`, and the connections end. Tables in this process live on in the model."""
        store, self._store = self._store, None
        try:
            self.finish()
            if store is not None and not self._failed:  # a worker that failed counts as lost
                self.meeting.leave()
        finally:
            if isinstance(store, RemoteStore):
                store.close()

    def flush(self) -> None:
        """Everything handed over is applied, and the parameters here are the store's."""
        self.mode.flush()

    def settle(self) -> None:
        """`flush`, on all workers: what anybody handed over before is in the parameters here.

        All workers call it.
        """
        self.flush()
        if not self.meeting.is_alone:
            self.meeting.barrier()
            self.flush()

    def leave(self) -> None:
        """The calling thread has no more data in this pass."""
        self.mode.leave()

    def rejoin(self) -> None:
        """All threads are back for the next pass."""
        self.mode.rejoin()

    def fail(self, error: BaseException) -> None:
        """A thread failed: those that wait for it wake with an error."""
        self._failed = True
        if self._mode is not None:
            self._mode.fail(error)

    # -- files --------------------------------------------------------------------------------

    @property
    def schedule_steps(self) -> int:
        """Where the schedule is, as far as known here."""
        return self._steps + (0 if self._mode is None else self._mode.steps_of_schedule)

    def save(self, directory: str | os.PathLike[str], *, only: Predicate | None = None) -> None:
        """Writes model and tables with all optimizer state; one worker calls it.

        Returns when the checkpoint is in force. What other workers hand over meanwhile may be in
        it or not; for one moment of all see `Trainer.save`. only: what to save, by name.
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
        """Reads what `save` wrote. All workers call it; the first one has it loaded.

        A schedule goes on where it was, here or in what was saved, whichever is further. only:
        what to load, by name. On an error nothing has changed, and all workers get one.
        """
        self.finish()

        def load(_: list[bytes]) -> bytes:
            """In the first worker, when nobody's last push is still to come."""
            self._load(directory, only, storage_options)
            return b""

        self.meeting.decide(b"", load)
        self._share_values()
        self.start()

    # -- inside -------------------------------------------------------------------------------

    def _groups_of_torch(self) -> list[DenseGroup]:
        """The groups on whose parameters torch steps here: all, where it knows one rule alone."""
        found = [group for group in self._groups if group.optimizer is None]
        require_local(found, self.role, self._mode_like)
        return found

    def _flattened(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that become views of flat buffers, by dense table."""
        return {group.table: group.parameters for group in self._groups}

    @property
    def _keeps_going(self) -> bool:
        """Whether the launcher was told to go on without lost workers."""
        return os.environ.get("SPARSEFLEET_KEEP_GOING") == "1"

    def _native_groups(self) -> list[DenseGroup]:
        return [] if self._by_torch else self._groups

    def _table_default(self) -> optim.Optimizer | None:
        """The optimizer of tables that name none; None if only torch knows the model's."""
        if self._groups:
            return self._groups[0].optimizer
        return self._optimizer if isinstance(self._optimizer, optim.Optimizer) else None

    def _open_store(self) -> Store:
        if not self.role.server_endpoints:
            return LocalStore()
        return RemoteStore(
            self.role.server_endpoints,
            name=f"worker-{self.role.index}",
            config=RemoteStoreConfig(connect_timeout_s=self._connect_s),
        )

    def _rank_setting(self) -> RankSetting | None:
        """Of mode "collective" only."""
        return None

    def _mode_setting(self) -> ModeSetting:
        ranks = self._rank_setting()
        return ModeSetting(
            store=self.store,
            tables=self._tables,
            dense=self.flat.arrays,
            dense_is_live=isinstance(self._store, LocalStore) and not self._has_own_copies,
            dense_optimizers={
                group.table: group.optimizer
                for group in self._native_groups()
                if group.optimizer is not None
            },
            threads=self.threads,
            worker_index=self.role.index,
            worker_num=self.role.worker_num,
            # After a failure the servers still know the group of the mode that failed.
            group=f"{self.name}/{self._starts}",
            schedule=self._rates,
            first_step=self._steps,
            go_on_without_lost=self._keeps_going,
            wait_s=self.wait_s,
            dense_step=self._step_by_torch if self._by_torch and ranks is None else None,
            ranks=ranks,
        )

    def _rates_of(self, schedule: ScheduleLike | Schedule | None) -> Schedule | None:
        if schedule is None or isinstance(schedule, Schedule):
            return schedule
        if isinstance(self._optimizer, list):
            raise ConfigError("groups with optimizers of their own need a schedule with rates_at()")
        following: list[str] = []
        if self._table_default() is not None:
            following = [module.name for module in self._modules if module.own_optimizer is None]
        return RateSchedule(
            schedule, self._optimizer, self._groups, following, torch_steps=bool(self._by_torch)
        )

    def _step_by_torch(self, gradients: Mapping[str, Floats]) -> None:
        """One step of an optimizer that only torch knows, on the shared parameters."""
        self._stepping.step(self._parameters[id(self.model)], gradients)

    def _first_values(self) -> None:
        """The first worker's values, or those that servers are to load, go to the store."""
        if not self.role.is_first_worker:
            return
        directory = directory_of_servers(self.store)
        if directory is not None:
            self._load(directory, None, None)
            return
        for group in self._native_groups():
            self.store.write_dense(group.table, self.flat.arrays[group.table])

    def _load(
        self,
        directory: str | os.PathLike[str],
        only: Predicate | None,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        steps = load_model(self, directory, only=only, storage_options=storage_options)
        self._steps = max(self._steps, steps)

    def _share_values(self) -> None:
        """What is in the store, and the first worker's frozen state, becomes everybody's."""
        frozen = FrozenState(self.model, self._groups)
        mine = self._steps.to_bytes(8, "little")
        if self.role.is_first_worker and not self.meeting.is_alone:
            mine += frozen.to_bytes()
        gathered = self.meeting.all_gather(mine)
        self._steps = max(int.from_bytes(part[:8], "little") for part in gathered)
        if not self.role.is_first_worker:
            frozen.take(gathered[0][8:])
        self._fetch_dense()
        self.meeting.barrier()  # before anybody trains, so that all have the same values

    def _use_live_values(self) -> None:
        """Parameters in this process are the table's own memory, not a copy of it."""
        if isinstance(self._store, LocalStore) and not self._has_own_copies:
            for group in self._native_groups():
                live = self._store.live_dense(group.table)
                self.flat.adopt(group.table, live, self._replicas)

    @property
    def _has_own_copies(self) -> bool:
        """Whether the mode trains on copies of the store's values."""
        return isinstance(mode_config(self._mode_like), GeoConfig)

    def _fetch_dense(self) -> None:
        for group in self._native_groups():
            self.store.pull_dense(group.table, out=self.flat.arrays[group.table])
