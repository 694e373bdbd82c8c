"""The fleet object: what this process is in its job, and the life of a job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.role_makers import PaddleCloudRoleMaker, RoleMakerBase
from sparsefleet.fleet.roles import split_files
from sparsefleet.fleet.server_notes import MODEL_DIR_NOTE
from sparsefleet.fleet.strategies import DistributedStrategy, strategy_from
from sparsefleet.fleet.transpiler_config import DistributeTranspilerConfig
from sparsefleet.server import ServerConfig, run_server
from sparsefleet.store.checkpoint_path import absolute_path

if TYPE_CHECKING:  # torch takes seconds to load: servers do without it
    import torch
    from torch import nn

    from sparsefleet.collective import CollectiveStrategy, World
    from sparsefleet.export import Manifest, RowFormat
    from sparsefleet.export.inference_model import InferenceModel
    from sparsefleet.export.recorded_graph import Varying
    from sparsefleet.export.targets import TargetsLike
    from sparsefleet.fleet.distributed_model import DistributedModel
    from sparsefleet.fleet.fleet_sharding import FleetSharding
    from sparsefleet.fleet.mail_exchange import MailExchange
    from sparsefleet.fleet.optimizer_with_strategy import DistributedOptimizer
    from sparsefleet.fleet.rate_schedule import ScheduleLike
    from sparsefleet.fleet.training_step import Step
    from sparsefleet.modes import ModeConfig
    from sparsefleet.optim import Optimizer
    from sparsefleet.updates import Update
    from sparsefleet.updates.publisher import Publisher

__all__ = ["Fleet"]

_log = logging.getLogger("sparsefleet.fleet")


class Fleet:
    """One process of a job: its role, its model, and the calls of Fluid's fleet.

    The package has one object for the process, `sparsefleet.fleet.fleet`, and offers its calls as
    functions of `sparsefleet.fleet`. With no environment set, everything runs in this process.

    >>> fleet = Fleet()
    >>> fleet.init()
    >>> fleet.is_worker(), fleet.worker_num(), fleet.server_endpoints()
    (True, 1, [])
    """

    def __init__(self) -> None:
        self._role_maker: RoleMakerBase | None = None
        self._model: DistributedModel | None = None
        self._model_dir: str | None = None
        self._server_ready = False
        self._num_models = 0
        self._world: World | None = None
        self._publishers: dict[tuple[str, str], Publisher] = {}

    # -- role ---------------------------------------------------------------------------------

    def init(
        self,
        role_maker: RoleMakerBase | None = None,
        *,
        is_collective: bool = False,
        world: World | None = None,
    ) -> None:
        """Finds out what this process is: from `role_maker`, or from the environment.

        is_collective: reads the environment as a worker of a collective job, which torchrun or
        paddle.distributed.launch may have started. world: of workers that have met already.
        """
        self._world = world
        if role_maker is None and world is not None:
            from sparsefleet.fleet.joined_role import JoinedRoleMaker

            role_maker = JoinedRoleMaker(world)
        if role_maker is None:
            role_maker = PaddleCloudRoleMaker(is_collective=is_collective)
        if not isinstance(role_maker, RoleMakerBase):
            raise TypeError(
                "role_maker must be a RoleMakerBase such as PaddleCloudRoleMaker(), got "
                f"{type(role_maker).__name__}"
            )
        role_maker.generate_role()
        self._role_maker = role_maker

    @property
    def is_initialized(self) -> bool:
        return self._role_maker is not None

    @property
    def role(self) -> RoleInfo:
        """What this process is, as a plain value."""
        if self._role_maker is None:
            raise RuntimeError("fleet does not know its role yet: call fleet.init() first")
        return self._role_maker.info

    def is_worker(self) -> bool:
        return self.role.is_worker

    def is_server(self) -> bool:
        return self.role.is_server

    def is_first_worker(self) -> bool:
        """True for the one worker which does what is to be done once."""
        return self.role.is_first_worker

    def worker_index(self) -> int:
        """Place among the workers; 0 in a server, so that a script needs no branch for it."""
        return 0 if self.role.is_server else self.role.index

    def worker_num(self) -> int:
        return self.role.worker_num

    def server_index(self) -> int:
        return self.role.index

    def server_num(self) -> int:
        return self.role.server_num

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Every server as "host:port"; joined by commas on demand."""
        endpoints = list(self.role.server_endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Every worker as "host:port", in collective jobs."""
        endpoints = list(self.role.worker_endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def split_files(self, files: list[str]) -> list[str]:
        """The files of this worker: a contiguous part, the first workers one more if need be.

        None are left for the last ones if there are more workers than files; a server gets all.
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
    ) -> DistributedModel:
        """Takes charge of the model; `init_worker()` then starts it.

        mode: "local", "sync", "half_async", "async", "hybrid", "geo", "collective" or a config
            of `sparsefleet.modes`; by default async with servers; without them collective for
            several workers, local for one.
        schedule: a scheduler of torch for `optimizer`, or a function from step to factor.
        track_dirty: tables remember which rows changed, for saves of only those.
        """
        from sparsefleet.fleet.collective_model import CollectiveModel
        from sparsefleet.fleet.distributed_model import DistributedModel
        from sparsefleet.fleet.mode_for_job import mode_for_job
        from sparsefleet.modes import CollectiveConfig

        config = mode_for_job(mode, self.role)
        self._num_models += 1
        settings: dict[str, Any] = {
            "role": self.role,
            "threads": threads,
            "schedule": schedule,
            "name": f"model-{self._num_models}",
            "track_dirty": track_dirty,
        }
        if isinstance(config, CollectiveConfig):
            self._model = CollectiveModel(
                model,
                optimizer,
                config,
                join=lambda: self._join(config.strategy),
                wait_s=config.strategy.timeout_s,
                **settings,
            )
        else:
            self._model = DistributedModel(model, optimizer, mode, **settings)
        return self._model

    def distributed_optimizer(
        self,
        optimizer: torch.optim.Optimizer | Optimizer,
        strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
        *,
        model: nn.Module,
        schedule: ScheduleLike | None = None,
    ) -> DistributedOptimizer:
        """As `distribute`, with one of Fluid's strategies; None is sync."""
        from sparsefleet.fleet.mode_of_strategy import mode_of_strategy, threads_of_strategy
        from sparsefleet.fleet.optimizer_with_strategy import DistributedOptimizer

        if not self.is_initialized:
            raise ConfigError("fleet does not know its role yet: call fleet.init() first")
        strategy = strategy_from(strategy)
        distributed = self.distribute(
            model,
            optimizer,
            mode_of_strategy(strategy),
            threads=threads_of_strategy(strategy),
            schedule=schedule,
        )
        return DistributedOptimizer(optimizer, strategy, distributed)

    @property
    def model(self) -> DistributedModel:
        """The model that the fleet has charge of."""
        if self._model is None:
            raise RuntimeError(
                "fleet has no model yet: call fleet.distribute(model, optimizer) or "
                "fleet.distributed_optimizer(optimizer, strategy, model=model) first"
            )
        return self._model

    def step(self, batch: Any = None) -> Step:
        """A training step as a context: forward and backward inside, gradients go at its end.

        With the batch, the rows for all its ids come in one request a server.
        """
        return self.model.step(batch=batch)

    # -- life ---------------------------------------------------------------------------------

    def init_server(self, model_dir: str | os.PathLike[str] | None = None) -> None:
        """Gets this server ready; with `model_dir`, tables start as `save_persistables` left them.

        The first worker has them loaded once the tables are defined; every server must see the
        directory, and so must the first worker. Any number of servers may have saved it.
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
        """Serves until the launcher or a signal ends the job; then drains and returns."""
        self._require_server("run_server")
        if not self._server_ready:
            self.init_server()
        role = self.role
        notes = {} if self._model_dir is None else {MODEL_DIR_NOTE: os.fsencode(self._model_dir)}
        run_server(
            ServerConfig(
                endpoint=role.server_endpoints[role.index],
                index=role.index,
                num_servers=role.server_num,
                transport=os.environ.get("SPARSEFLEET_TRANSPORT", "auto"),  # type: ignore[arg-type]
                notes=notes,
            )
        )

    def init_worker(self) -> None:
        """Reaches the servers and starts the model; again: a warning, nothing else."""
        if self.role.is_server:
            raise RuntimeError("init_worker() was called in a server: call run_server() there")
        if self.model.is_started:
            self._warn_running()
            return
        self.model.start()

    def stop_worker(self) -> None:
        """Everything handed over is applied, the other workers are told, connections end."""
        if self._model is None or not self._model.is_started:
            raise RuntimeError("stop_worker() must follow init_worker()")
        while self._publishers:
            self._publishers.popitem()[1].close()
        self._model.close()

    def settle(self) -> None:
        """All workers call it: what any of them handed over is applied, and fetched here."""
        self.model.settle()

    def barrier_worker(self) -> None:
        """Returns when every worker has called it."""
        self.model.meeting.barrier()

    def all_gather(self, data: bytes) -> list[bytes]:
        """What every worker gave, by rank, on every worker. All must call it."""
        return self.model.meeting.all_gather(data)

    def open_exchange(self) -> MailExchange:
        """Bytes from each worker to each, as for a global shuffle. All workers call it."""
        return self.model.meeting.open_exchange()

    def sharding(self, name: str = "train") -> FleetSharding:
        """For `Reader(sharding=...)`: files go to whichever worker is free, each once an epoch.

        All workers read the same list of files under one name. Used from `init_worker()` on.
        """
        from sparsefleet.fleet.fleet_sharding import FleetSharding

        return FleetSharding(lambda: (self.model.store, self.model.meeting), name)

    # -- files --------------------------------------------------------------------------------

    def save_persistables(
        self, dirname: str | os.PathLike[str], *, only: Callable[[str], bool] | None = None
    ) -> None:
        """Writes model and tables with optimizer state, to go on training; one worker calls it.

        It is the servers' state that is saved, in every mode, with all that this worker has handed
        over. `init_server(dirname)` starts from it, at any number of servers; all servers and this
        worker must see the directory. only: what to save, by name of parameter or table.
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
    ) -> Manifest:
        """Writes what prediction needs of the model, pruned to what `targets` need.

        As `sparsefleet.export.save_inference_model`, with the fleet's model and tables.
        `load_inference_model` and `sparsefleet.Predictor` read it. One worker calls it.
        """
        from sparsefleet.export.model_export import save_inference_model

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
        )

    def load_inference_model(self, dirname: str | os.PathLike[str]) -> InferenceModel:
        """The model of `save_inference_model`, ready to predict, without servers."""
        from sparsefleet.export.inference_model import load_inference_model

        return load_inference_model(dirname)

    def publish_rows(
        self, dirname: str | os.PathLike[str], target: str | os.PathLike[str]
    ) -> Update:
        """Publishes what has changed since the export in `dirname`, for services that follow.

        One worker calls it, now and then; on return services can see the update. What other
        workers hand over meanwhile may be in it or not; for one moment of all see
        `Trainer(publish=...)`. target: a directory, or `redis://...`; see `PublishConfig`.
        """
        from sparsefleet.fleet.trained_tables import make_publisher
        from sparsefleet.updates.publish_config import PublishConfig

        key = (os.path.abspath(dirname), os.fspath(target))
        self.model.flush()
        if key not in self._publishers:
            config = PublishConfig(model=dirname, target=target)
            self._publishers[key] = make_publisher(self.model, config)
        publisher = self._publishers[key]
        publisher.take()
        return publisher.write()

    def _join(self, strategy: CollectiveStrategy) -> World:
        """The workers of this job, connected to each other: once for all models of the process."""
        from sparsefleet.fleet.joined_role import join_workers

        if self._world is None or not self._world.is_open:
            self._world = join_workers(self.role, timeout_s=strategy.timeout_s)
        return self._world

    def _warn_running(self) -> None:
        _log.warning("init_worker() was called again: the worker is running already")

    def _require_server(self, call: str) -> None:
        if not self.role.is_server:
            hint = (
                "no environment is set, so everything runs in this process"
                if self.role.kind == "local"
                else f"this is worker {self.role.index}"
            )
            raise RuntimeError(f"{call}() is for servers, but {hint}")
