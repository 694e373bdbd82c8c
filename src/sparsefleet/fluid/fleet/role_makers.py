"""Fluid's role makers, and the base class for the fleets that they give a role."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.job_process import JobProcess
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.roles import read_general_role, role_from_environment, workers_per_node
from sparsefleet.fluid.fleet.settings import unknown_field

if TYPE_CHECKING:
    from sparsefleet.collective import World

__all__ = [
    "Fleet",
    "GeneralRoleMaker",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
]


class Role(IntEnum):
    """The two kinds of processes, with Fluid's numeric values."""

    WORKER = 1
    SERVER = 2


class RoleMakerBase(ABC):
    """Determines this process's role on first use."""

    def __init__(self) -> None:
        self._info: RoleInfo | None = None

    @abstractmethod
    def _find(self) -> RoleInfo:
        """Determine the role; called once."""

    @property
    def info(self) -> RoleInfo:
        """Return the role as a RoleInfo."""
        if self._info is None:
            self._info = self._find()
        return self._info

    def generate_role(self) -> None:
        """Determine the role now; raise ConfigError if that fails."""
        _ = self.info

    def is_worker(self) -> bool:
        return self.info.is_worker

    def is_server(self) -> bool:
        return self.info.is_server

    def is_first_worker(self) -> bool:
        return self.info.is_first_worker

    def role_id(self) -> int:
        return self.info.index

    def worker_index(self) -> int:
        """Return the index of this process, regardless of its role, as in Fluid."""
        return self.info.index

    def server_index(self) -> int:
        """Return the index of this process, regardless of its role, as in Fluid."""
        return self.info.index

    def worker_num(self) -> int:
        return self.info.worker_num

    def server_num(self) -> int:
        return self.info.server_num

    def get_trainer_endpoints(self) -> list[str]:
        return list(self.info.worker_endpoints)

    def get_pserver_endpoints(self) -> list[str]:
        return list(self.info.server_endpoints)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._info or 'not read yet'})"


class PaddleCloudRoleMaker(RoleMakerBase):
    """Reads the role from environment variables on first use (docs/env.md lists them).

    If no variable is set, this process is the only worker and runs everything. Raises a ConfigError
    that names the variable if one is missing or invalid.
    """

    def __init__(self, is_collective: bool = False) -> None:
        super().__init__()
        self._is_collective = is_collective

    def _find(self) -> RoleInfo:
        return role_from_environment(is_collective=self._is_collective)


class UserDefinedRoleMaker(RoleMakerBase):
    """A role that the script specifies.

    >>> role = UserDefinedRoleMaker(0, Role.SERVER, 2, ["127.0.0.1:9100"])
    >>> role.is_server(), role.get_pserver_endpoints()
    (True, ['127.0.0.1:9100'])
    """

    def __init__(
        self,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        server_endpoints: list[str] | None = None,
    ) -> None:
        super().__init__()
        servers = _checked_endpoints("server_endpoints", server_endpoints)
        if isinstance(role, bool) or role not in (Role.WORKER, Role.SERVER):
            raise TypeError(f"role must be Role.WORKER or Role.SERVER, got {role!r}")
        _check_int("current_id", current_id, low=0)
        if role == Role.SERVER and current_id >= len(servers):
            raise ConfigError(
                f"a server's current_id must be less than {len(servers)}, the number of "
                f"server_endpoints, got {current_id}"
            )
        _check_int("worker_num", worker_num, low=1)
        self._given = RoleInfo(
            kind="server" if role == Role.SERVER else "worker",
            index=current_id,
            worker_num=worker_num,
            server_endpoints=servers,
            current_endpoint=servers[current_id] if role == Role.SERVER else "",
        )

    def _find(self) -> RoleInfo:
        return self._given


class UserDefinedCollectiveRoleMaker(RoleMakerBase):
    """A worker in a collective job, with the rank and endpoints that the script specifies."""

    def __init__(self, current_id: int = 0, worker_endpoints: list[str] | None = None) -> None:
        super().__init__()
        workers = _checked_endpoints("worker_endpoints", worker_endpoints)
        _check_int("current_id", current_id, low=0)
        if current_id >= len(workers):
            raise ConfigError(
                f"current_id must be less than {len(workers)}, the number of "
                f"worker_endpoints, got {current_id}"
            )
        self._given = RoleInfo(
            kind="worker",
            index=current_id,
            worker_num=len(workers),
            worker_endpoints=workers,
            current_endpoint=workers[current_id],
            meeting_point=workers[0],
            workers_per_node=workers_per_node(workers, current_id),
        )

    def _find(self) -> RoleInfo:
        return self._given


class GeneralRoleMaker(RoleMakerBase):
    """Reads the role from Paddle's environment variables, including the workers' endpoints.

    Fluid's own rendezvous (HTTP or HDFS) is not needed, since workers connect through the servers.
    Its options are accepted and ignored; unknown options are rejected.
    """

    OPTIONS = (
        "hdfs_name",
        "hdfs_ugi",
        "http_ip_port",
        "iface",
        "init_timeout_seconds",
        "path",
        "run_timeout_seconds",
    )

    def __init__(self, **options: object) -> None:
        super().__init__()
        for name in options:
            if name not in self.OPTIONS:
                raise unknown_field(type(self).__name__, name, self.OPTIONS)
        self.job_id = os.environ.get("SYS_JOB_ID", "")
        """Name of the job, if the scheduler provides one."""

    def _find(self) -> RoleInfo:
        return read_general_role(os.environ)


def _checked_endpoints(name: str, endpoints: Sequence[str] | None) -> tuple[str, ...]:
    if not isinstance(endpoints, list):
        raise TypeError(f"{name} must be a list of 'host:port', got {endpoints!r}")
    if not endpoints:
        raise ConfigError(f"{name} must contain at least one 'host:port', got []")
    for endpoint in endpoints:
        if not isinstance(endpoint, str):
            raise TypeError(f"{name} must contain only strings, got {endpoint!r}")
    if len(set(endpoints)) != len(endpoints):
        raise ConfigError(f"{name} must not contain duplicate endpoints, got {endpoints}")
    return tuple(endpoints)


def _check_int(name: str, value: object, *, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < low:
        raise ConfigError(f"{name} must be >= {low}, got {value}")


class Fleet(JobProcess):
    """A fleet that gets its role from one of Fluid's role makers.

    >>> fleet = Fleet()
    >>> fleet.init(PaddleCloudRoleMaker())
    >>> fleet.worker_num()
    1
    """

    def init(
        self,
        role_maker: RoleMakerBase | RoleInfo | None = None,
        *,
        is_collective: bool = False,
        world: World | None = None,
    ) -> None:
        """Get this process's role from `role_maker` or, if None, from the environment.

        See the base class for is_collective and world.
        """
        if role_maker is None and world is None:
            role_maker = PaddleCloudRoleMaker(is_collective=is_collective)
        if isinstance(role_maker, RoleMakerBase):
            role_maker.generate_role()
            role_maker = role_maker.info
        elif role_maker is not None and not isinstance(role_maker, RoleInfo):
            raise TypeError(
                "role_maker must be a RoleMakerBase such as PaddleCloudRoleMaker(), got "
                f"{type(role_maker).__name__}"
            )
        super().init(role_maker, is_collective=is_collective, world=world)

    def all_reduce_worker(self, input: Any, output: NDArray[Any]) -> None:
        """Write the sum of `input` over all workers to `output`. Must be called by all workers."""
        mine = np.ascontiguousarray(input)
        parts = self.all_gather(mine.tobytes())
        output[...] = sum(np.frombuffer(part, mine.dtype).reshape(mine.shape) for part in parts)
