"""A process of a job: its role, its collective world, and what all workers do together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.incarnation import Incarnation, are_ranks_replaced
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.roles import role_from_environment, split_files

if TYPE_CHECKING:
    from sparsefleet.collective import World
    from sparsefleet.fleet.fleet_model import StartedModel
    from sparsefleet.fleet.fleet_sharding import FleetSharding
    from sparsefleet.fleet.meeting import MailExchange

__all__ = ["JobProcess", "join_workers", "join_world", "require_known_workers"]


def join_world(role: RoleInfo, *, timeout_s: float = 300.0) -> World:
    """Connect to the other workers of the job; a worker's index is its rank.

    Close the result when it is no longer needed.

    A single worker needs no meeting point (the rendezvous address) and no network. Raises
    ConfigError for a server's role or a role without a meeting point, and any error from
    `World.join`.

    >>> with join_world(RoleInfo(kind="local")) as world:
    ...     world.size
    1
    """
    import torch.distributed as dist

    from sparsefleet.collective import World

    if role.is_server:
        raise ConfigError(
            f"server {role.index} cannot join the world: only workers train collectively"
        )
    if role.worker_num > 1 and not role.meeting_point and not dist.is_initialized():
        raise ConfigError(
            f"worker {role.index} of {role.worker_num} has no meeting point: set "
            "SPARSEFLEET_MEETING_POINT to host:port of worker 0 in all workers, or start the job "
            "with `sparsefleet launch`, torchrun or paddle.distributed.launch"
        )
    return World.join(
        rank=role.index,
        size=role.worker_num,
        ranks_per_node=role.workers_per_node,
        meeting_point=role.meeting_point or None,
        is_kept_elsewhere=role.is_meeting_kept_elsewhere,
        attempt=role.restarts,
        incarnation=Incarnation.from_environment().number if are_ranks_replaced() else None,
        gpu=role.gpu,
        timeout_s=timeout_s,
    )


def join_workers(role: RoleInfo, *, timeout_s: float) -> World:
    """Like `join_world`, but raise an error if this process would train alone in a larger job."""
    require_known_workers(role)
    return join_world(role, timeout_s=timeout_s)


def require_known_workers(role: RoleInfo) -> None:
    """Raise ConfigError if the role is a single worker but the environment names a larger job."""
    if role.kind != "local":
        return
    found = role_from_environment(is_collective=True)
    if found.worker_num > 1:
        raise ConfigError(
            f"this is worker {found.index} of {found.worker_num} in a collective job, but "
            "fleet.init() did not check for that: call fleet.init(is_collective=True), or use a "
            "Trainer with mode='collective'"
        )


_log = logging.getLogger("sparsefleet.fleet")


class JobProcess:
    """The base class of all fleet objects: the role of this process, and collective calls.

    >>> process = JobProcess()
    >>> process.init()
    >>> process.is_worker(), process.server_num()
    (True, 0)
    """

    def __init__(self) -> None:
        self._role: RoleInfo | None = None
        self._num_models = 0
        self._world: World | None = None
        self._shardings: dict[str, FleetSharding] = {}

    @property
    def model(self) -> StartedModel:
        """Return the model that this process trains."""
        raise RuntimeError(
            "this call needs a model on servers, but fleet has none: call fleet.distribute(...) "
            "first"
        )

    def init(
        self,
        role: RoleInfo | None = None,
        *,
        is_collective: bool = False,
        world: World | None = None,
    ) -> None:
        """Set the role of this process; None reads it from the environment.

        is_collective: whether this process is a worker of a collective job, which torchrun or
            paddle.distributed.launch may have started.
        world: workers that are already connected, instead of the environment.
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
        """Return whether this is worker 0, which does work that is needed once per job."""
        return self.role.is_first_worker

    def worker_index(self) -> int:
        """Return the worker's index, or 0 in a server process, so scripts need no branch."""
        return 0 if self.role.is_server else self.role.index

    def worker_num(self) -> int:
        return self.role.worker_num

    def server_index(self) -> int:
        return self.role.index

    def server_num(self) -> int:
        return self.role.server_num

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return a list of "host:port", one for each server, or one comma-separated string."""
        endpoints = list(self.role.server_endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return the "host:port" of every worker; known only in collective jobs."""
        endpoints = list(self.role.worker_endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def split_files(self, files: list[str]) -> list[str]:
        """Return this worker's contiguous part of the files.

        The first workers may get one extra file each. If there are more workers than files, the
        last workers get none. A server process gets all files.
        """
        return split_files(files, self.role)

    # -- all workers together -----------------------------------------------------------------

    def settle(self) -> None:
        """Apply the gradients of all workers and fetch the result; all workers must call it."""
        self.model.settle()

    def barrier_worker(self) -> None:
        """Block until every worker has called this method."""
        self.model.meeting.barrier()

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the values of all workers, by rank, on every worker.

        Must be called by all workers.
        """
        return self.model.meeting.all_gather(data)

    def open_exchange(self) -> MailExchange:
        """Open an exchange of bytes between all workers, for example for a global shuffle.

        Must be called by all workers.
        """
        return self.model.meeting.open_exchange()

    def sharding(self, name: str = "train") -> FleetSharding:
        """Return a sharding for `Reader` that hands out each file once per epoch, to a free worker.

        All workers must read the same list of files, with the same name and the same number of
        times. Available after `init_worker()`.
        """
        from sparsefleet.fleet.fleet_sharding import FleetSharding

        made = self._shardings.get(name)
        if made is None:
            made = FleetSharding(lambda: (self.model.store, self.model.meeting), name)
            self._shardings[name] = made
        return made

    def next_model_name(self) -> str:
        """Return a name for the next model; workers must bind their models in the same order."""
        self._num_models += 1
        return f"model-{self._num_models}"

    def join_workers(self, *, timeout_s: float) -> World:
        """Connect the workers of this job to each other, once for all models of the process."""

        if self._world is None or not self._world.is_open:
            self._world = join_workers(self.role, timeout_s=timeout_s)
        return self._world

    def _warn_running(self) -> None:
        _log.warning("init_worker() was called again, but the worker is already running")

    def _require_server(self, call: str) -> None:
        if not self.role.is_server:
            hint = (
                "no environment is set, so everything runs in this process"
                if self.role.kind == "local"
                else f"this is worker {self.role.index}"
            )
            raise RuntimeError(f"{call}() is for servers, but {hint}")
