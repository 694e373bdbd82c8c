"""The fleet object: the role of this process in its job, and the life cycle of the job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.board import MODEL_DIR_NOTE
from sparsefleet.fleet.job_process import JobProcess
from sparsefleet.server import ServerConfig, run_server
from sparsefleet.server.run_server import durable_settings
from sparsefleet.store.own_loop import declare_own_loop

if TYPE_CHECKING:  # torch takes seconds to load, and servers do not need it
    import torch
    from torch import nn

    from sparsefleet.fleet.fleet_model import Binder, FleetModel, FleetStep, ScheduleLike
    from sparsefleet.modes import ModeConfig
    from sparsefleet.optim import Optimizer
    from sparsefleet.serving.export import ExportManifest, RowFormat
    from sparsefleet.serving.export.hashing import Features
    from sparsefleet.serving.export.recorded_graph import Varying
    from sparsefleet.serving.export.signature import TargetsLike
    from sparsefleet.serving.updates import Update
    from sparsefleet.serving.updates.publisher import Publisher
    from sparsefleet.store.remote_store import WireDtype

__all__ = ["Fleet"]


class Fleet(JobProcess):
    """One process of a job: its role, the model it trains, and the life cycle of both.

    The functions of `sparsefleet.fleet` are the methods of one instance for the whole process.
    If no environment variables are set, everything runs in this process.

    >>> fleet = Fleet()
    >>> fleet.init()
    >>> fleet.is_worker(), fleet.worker_num(), fleet.server_endpoints()
    (True, 1, [])
    """

    binder: ClassVar[Binder]
    """Binds models, for `distribute`. Set by the package, since the engine is a higher layer than
    the fleet.
    """

    def __init__(self) -> None:
        super().__init__()
        self._model: FleetModel | None = None
        self._model_dir: str | None = None
        self._server_ready = False
        self._publishers: dict[tuple[str, str], Publisher] = {}

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
        wire_dtype: WireDtype | None = None,
    ) -> FleetModel:
        """Bind a model to the fleet; `init_worker()` then starts it.

        mode: "local", "sync", "half_async", "async", "hybrid", "geo", "collective" or a config of
            `sparsefleet.modes`. The default is async with servers; without servers, collective for
            several workers and local for one.
        schedule: a torch scheduler for `optimizer`, or a function from step to factor.
        track_dirty: whether tables track changed rows, so that a save can contain only those rows.
        wire_dtype: number format on the network, "float32" or "bf16"; see `RemoteStoreConfig`.
        """
        return self.binder(
            self,
            model,
            optimizer,
            mode,
            threads=threads,
            schedule=schedule,
            track_dirty=track_dirty,
            wire_dtype=wire_dtype,
        )

    def attach(self, model: FleetModel) -> None:
        """Make the fleet manage a bound model; the methods below act on it."""
        self._model = model

    @property
    def model(self) -> FleetModel:
        """Return the model that the fleet manages."""
        if self._model is None:
            raise RuntimeError(
                "fleet has no model yet: call fleet.distribute(model, optimizer) first"
            )
        return self._model

    def step(self, batch: Any = None) -> FleetStep:
        """Return a training step.

        Run forward and backward inside the step; gradients are sent when the step ends. If the
        batch is given, the rows for all its ids are fetched in one request per server.
        """
        step = self.model.step(batch=batch)
        declare_own_loop(self.model.store, f"worker-{self.role.index}")
        return step

    def evaluating(self, batch: Any = None) -> AbstractContextManager[nn.Module]:
        """Return the model for evaluation, without gradients; rows are read but not created.

        For the batch, see `step`.
        """
        return self.model.evaluating(batch=batch)

    def end_pass(self) -> None:
        """Report that this thread has no more data in this pass, so others do not wait for it.

        Modes sync, half_async, hybrid and collective need this call before workers synchronize, for
        example in `settle`.
        """
        self.model.leave()

    def begin_pass(self) -> None:
        """Start the next pass over the data, after all threads have finished the previous one."""
        self.model.rejoin()

    # -- life ---------------------------------------------------------------------------------

    def init_server(self, model_dir: str | os.PathLike[str] | None = None) -> None:
        """Prepare this server.

        model_dir: a directory that `save_persistables` wrote; tables start with the values in it.
            They are loaded once the first worker has defined the tables. Every server and the first
            worker need access to the directory. The number of servers may have been different when
            it was saved.
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
        """Serve until the launcher or a signal stops the job, then drain and return."""
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
            raise RuntimeError(
                "init_worker() was called in a server process: call run_server() instead"
            )
        if self.model.is_started:
            self._warn_running()
            return
        self.model.start()

    def stop_worker(self) -> None:
        """Apply all pending updates, notify the other workers, and close connections."""
        if self._model is None or not self._model.is_started:
            raise RuntimeError(
                "stop_worker() must follow init_worker(): call fleet.init_worker() first"
            )
        while self._publishers:
            self._publishers.popitem()[1].close()
        self._model.close()

    # -- files --------------------------------------------------------------------------------

    def save_persistables(
        self, dirname: str | os.PathLike[str], *, only: Callable[[str], bool] | None = None
    ) -> None:
        """Write the model and tables with optimizer state, so that training can continue later.

        Call it on one worker. In every mode, it saves the servers' state, including all pending
        updates of this worker. `init_server(dirname)` starts from the saved state, with any number
        of servers; all servers and this worker need access to the directory. only: selects what to
        save, by name of parameter or table.
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
        """Write the part of the model needed to predict `targets`.

        Calls `serving.export.save_inference_model` with the fleet's model and tables;
        `sparsefleet.Predictor` reads the result. Call it on one worker.
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
        """Publish the changes since the export in `dirname`, for services that apply updates.

        Call it on one worker, any number of times; when it returns, services can see the update.
        Gradients that other workers hand over in the meantime may or may not be included; for a
        consistent update, see `Trainer(publish=...)`. target: a directory, or `redis://...`; see
        `PublishConfig`.
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
