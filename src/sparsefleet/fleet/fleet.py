"""The fleet object: the role of this process in its job, and the life cycle of the job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.board import MODEL_DIR_NOTE
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.roles import role_from_environment, split_files
from sparsefleet.server import ServerConfig, run_server
from sparsefleet.server.run_server import durable_settings
from sparsefleet.store.own_loop import declare_own_loop

if TYPE_CHECKING:  # torch takes seconds to load: servers do without it
    import torch
    from torch import nn

    from sparsefleet.collective import World
    from sparsefleet.fleet.fleet_model import Binder, FleetModel, FleetStep, ScheduleLike
    from sparsefleet.fleet.fleet_sharding import FleetSharding
    from sparsefleet.fleet.meeting import MailExchange
    from sparsefleet.modes import ModeConfig
    from sparsefleet.optim import Optimizer
    from sparsefleet.serving.export import ExportManifest, RowFormat
    from sparsefleet.serving.export.hashing import Features
    from sparsefleet.serving.export.recorded_graph import Varying
    from sparsefleet.serving.export.targets import TargetsLike
    from sparsefleet.serving.updates import Update
    from sparsefleet.serving.updates.publisher import Publisher

__all__ = ["Fleet"]

_log = logging.getLogger("sparsefleet.fleet")


class Fleet:
    """One process of a job: its role, the model it trains, and the life cycle of both.

    The functions of `sparsefleet.fleet` are the methods of one instance for the whole process.
    If no environment variables are set, everything runs in this process.

    >>> fleet = Fleet()
    >>> fleet.init()
    >>> fleet.is_worker(), fleet.worker_num(), fleet.server_endpoints()
    (True, 1, [])
    """

    binder: ClassVar[Binder]
    """Binds models, for `distribute`. The package sets it, since the engine is above the fleet."""

    def __init__(self) -> None:
        self._role: RoleInfo | None = None
        self._model: FleetModel | None = None
        self._model_dir: str | None = None
        self._server_ready = False
        self._num_models = 0
        self._world: World | None = None
        self._publishers: dict[tuple[str, str], Publisher] = {}
        self._shardings: dict[str, FleetSharding] = {}

    # -- role ---------------------------------------------------------------------------------

    def init(
        self,
        role: RoleInfo | None = None,
        *,
        is_collective: bool = False,
        world: World | None = None,
    ) -> None:
        """Set the role of this process; None reads it from the environment.

        is_collective: read the environment as a worker of a collective job, which torchrun or
            paddle.distributed.launch may have started.
        world: workers that are already connected, in place of the environment.
        """
        if role is None and world is not None:
            role = RoleInfo(kind="worker", index=world.rank, worker_num=world.size)
        if role is None:
            role = role_from_environment(is_collective=is_collective)
        if not isinstance(role, RoleInfo):
            raise TypeError(f"role must be a RoleInfo or None, got {type(role).__name__}")
        self._world = world
        self._role = role

    @property
    def is_initialized(self) -> bool:
        return self._role is not None

    @property
    def role(self) -> RoleInfo:
        """Return the role of this process, as a plain value."""
        if self._role is None:
            raise RuntimeError("fleet is not initialized: call fleet.init() first")
        return self._role

    def is_worker(self) -> bool:
        return self.role.is_worker

    def is_server(self) -> bool:
        return self.role.is_server

    def is_first_worker(self) -> bool:
        """Return True in the one worker that does one-time work."""
        return self.role.is_first_worker

    def worker_index(self) -> int:
        """Return the worker's index; 0 in a server, so that a script needs no branch for it."""
        return 0 if self.role.is_server else self.role.index

    def worker_num(self) -> int:
        return self.role.worker_num

    def server_index(self) -> int:
        return self.role.index

    def server_num(self) -> int:
        return self.role.server_num

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return every server as "host:port"; as one comma-separated string on request."""
        endpoints = list(self.role.server_endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return every worker as "host:port", in collective jobs."""
        endpoints = list(self.role.worker_endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def split_files(self, files: list[str]) -> list[str]:
        """Return this worker's files: a contiguous part; the first workers may get one more.

        With more workers than files the last ones get none; a server gets all.
        """
        return split_files(files, self.role)

    # -- model --------------------------------------------------------------------------------

    def distribute(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Optimizer,
        mode: str | ModeConfig | None = None,
        *,
        threads: int = 1,
        schedule: ScheduleLike | None = None,
        track_dirty: bool = False,
    ) -> FleetModel:
        """Bind a model to the fleet; `init_worker()` then starts it.

        mode: "local", "sync", "half_async", "async", "hybrid", "geo", "collective" or a config
            of `sparsefleet.modes`; by default async with servers; without them collective for
            several workers, local for one.
        schedule: a torch scheduler for `optimizer`, or a function from step to factor.
        track_dirty: tables track which rows changed, so that a save can hold only those.
        """
        return self.binder(
            self,
            model,
            optimizer,
            mode,
            threads=threads,
            schedule=schedule,
            track_dirty=track_dirty,
        )

    def attach(self, model: FleetModel) -> None:
        """Make the fleet manage a bound model: the calls below act on it."""
        self._model = model

    def next_model_name(self) -> str:
        """Return a name for another model; workers that bind models in the same order agree."""
        self._num_models += 1
        return f"model-{self._num_models}"

    @property
    def model(self) -> FleetModel:
        """Return the model that the fleet manages."""
        if self._model is None:
            raise RuntimeError(
                "fleet has no model yet: call fleet.distribute(model, optimizer) first"
            )
        return self._model

    def step(self, batch: Any = None) -> FleetStep:
        """Return a training step: run forward and backward inside; its gradients are sent at the
        end.

        With the batch, the rows for all its ids are fetched in one request per server.
        """
        declare_own_loop()
        return self.model.step(batch=batch)

    def evaluating(self, batch: Any = None) -> AbstractContextManager[nn.Module]:
        """Return the model for evaluation: no gradients; rows are read, not created.

        For the batch see `step`.
        """
        return self.model.evaluating(batch=batch)

    def end_pass(self) -> None:
        """Report that this thread has no more data in this pass, so that others do not wait for it.

        Modes sync, half_async, hybrid and collective need it before workers synchronize, as in
        `settle`.
        """
        self.model.leave()

    def begin_pass(self) -> None:
        """Start another pass over the data, after all threads have ended the last one."""
        self.model.rejoin()

    # -- life ---------------------------------------------------------------------------------

    def init_server(self, model_dir: str | os.PathLike[str] | None = None) -> None:
        """Prepare this server; with `model_dir`, tables start as `save_persistables` left them.

        They are loaded when the first worker has defined the tables; every server and the first
        worker need access to the directory. Any number of servers may have saved it.
        """
        self._require_server("init_server")
        self._model_dir = None
        if model_dir is not None:
            path = absolute_path(model_dir)
            if "://" not in path and not os.path.isdir(path):
                raise ConfigError(f"model_dir {os.fspath(model_dir)!r} is not a directory")
            self._model_dir = path
        self._server_ready = True

    def run_server(self) -> None:
        """Serve until the launcher or a signal ends the job; then drain and return."""
        self._require_server("run_server")
        if not self._server_ready:
            self.init_server()
        role = self.role
        notes = {} if self._model_dir is None else {MODEL_DIR_NOTE: os.fsencode(self._model_dir)}
        run_server(
            ServerConfig(
                endpoint=role.current_endpoint or role.server_endpoints[role.index],
                index=role.index,
                num_servers=role.server_num,
                transport=os.environ.get("SPARSEFLEET_TRANSPORT", "auto"),  # type: ignore[arg-type]
                notes=notes,
                **durable_settings(role.index),
            )
        )

    def init_worker(self) -> None:
        """Connect to the servers and start the model; a second call only logs a warning."""
        if self.role.is_server:
            raise RuntimeError("init_worker() was called in a server: call run_server() there")
        if self.model.is_started:
            self._warn_running()
            return
        self.model.start()

    def stop_worker(self) -> None:
        """Apply everything handed over, notify the other workers, and close connections."""
        if self._model is None or not self._model.is_started:
            raise RuntimeError("stop_worker() must follow init_worker()")
        while self._publishers:
            self._publishers.popitem()[1].close()
        self._model.close()

    def settle(self) -> None:
        """Apply the gradients of all workers and fetch the result. All workers call it."""
        self.model.settle()

    def barrier_worker(self) -> None:
        """Return when every worker has called it."""
        self.model.meeting.barrier()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the values of all workers, by rank, on every worker. All must call it."""
        return self.model.meeting.all_gather(data)

    def open_exchange(self) -> MailExchange:
        """Open an exchange of bytes between all workers, as for a global shuffle. All call it."""
        return self.model.meeting.open_exchange()

    def sharding(self, name: str = "train") -> FleetSharding:
        """Return a sharding for `Reader`: files go to whichever worker is free, once per epoch.

        All workers read the same list of files under one name, the same number of times. Usable
        after `init_worker()`.
        """
        from sparsefleet.fleet.fleet_sharding import FleetSharding

        made = self._shardings.get(name)
        if made is None:
            made = FleetSharding(lambda: (self.model.store, self.model.meeting), name)
            self._shardings[name] = made
        return made

    # -- files --------------------------------------------------------------------------------

    def save_persistables(
        self, dirname: str | os.PathLike[str], *, only: Callable[[str], bool] | None = None
    ) -> None:
        """Write model and tables with optimizer state, to continue training; one worker calls it.

        It saves the servers' state, in every mode, with everything this worker has handed over.
        `init_server(dirname)` starts from it, with any number of servers; all servers and this
        worker need access to the directory. only: what to save, by name of parameter or table.
        """
        self.model.save(dirname, only=only)

    def save_inference_model(
        self,
        dirname: str | os.PathLike[str],
        example_inputs: Any,
        feeds: Sequence[str] | None = None,
        targets: TargetsLike = None,
        *,
        rows: RowFormat = "float32",
        golden: Any = None,
        onnx: bool | None = None,
        varying: Varying | None = None,
        features: Features | None = None,
    ) -> ExportManifest:
        """Write the part of the model that predictions of `targets` need.

        It calls `serving.export.save_inference_model` with the fleet's model and tables;
        `sparsefleet.Predictor` reads the result. One worker calls it.
        """
        from sparsefleet.serving.export.model_export import save_inference_model

        self.model.flush()
        return save_inference_model(
            dirname,
            self.model.model,
            example_inputs,
            feeds=feeds,
            targets=targets,
            store=self.model.store,
            rows=rows,
            golden=golden,
            onnx=onnx,
            varying=varying,
            features=features,
        )

    def publish_rows(
        self, dirname: str | os.PathLike[str], target: str | os.PathLike[str]
    ) -> Update:
        """Publish the changes since the export in `dirname`, for services that follow them.

        One worker calls it, any number of times; on return services can see the update. What other
        workers hand over meanwhile may or may not be in it; for a consistent cut see
        `Trainer(publish=...)`. target: a directory, or `redis://...`; see `PublishConfig`.
        """
        from sparsefleet.serving.updates.publisher import PublishConfig

        key = (os.path.abspath(dirname), os.fspath(target))
        self.model.flush()
        if key not in self._publishers:
            config = PublishConfig(model=dirname, target=target)
            self._publishers[key] = self.model.make_publisher(config)
        publisher = self._publishers[key]
        publisher.take()
        return publisher.write()

    def join_workers(self, *, timeout_s: float) -> World:
        """Connect the workers of this job to each other: once for all models of the process."""
        from sparsefleet.fleet.collective_world import join_workers

        if self._world is None or not self._world.is_open:
            self._world = join_workers(self.role, timeout_s=timeout_s)
        return self._world

    def _warn_running(self) -> None:
        _log.warning("init_worker() was called again: the worker is already running")

    def _require_server(self, call: str) -> None:
        if not self.role.is_server:
            hint = (
                "no environment is set, so everything runs in this process"
                if self.role.kind == "local"
                else f"this is worker {self.role.index}"
            )
            raise RuntimeError(f"{call}() is for servers, but {hint}")
