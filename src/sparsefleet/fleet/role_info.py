"""The role of a process in its job, as a plain value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int

__all__ = ["RoleInfo", "RoleKind"]

RoleKind = Literal["worker", "server", "local"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleInfo:
    """The role of this process, and the structure of its job.

    >>> role = RoleInfo(kind="worker", index=1, worker_num=2, server_endpoints=("10.0.0.7:9100",))
    >>> role.is_worker, role.is_first_worker, role.server_num
    (True, False, 1)
    """

    kind: RoleKind
    """"local" means that everything runs in this process, which is the only worker."""

    index: int = 0
    """Index among the workers or among the servers, from 0."""

    worker_num: int = 1
    """Number of workers in the job."""

    server_endpoints: tuple[str, ...] = ()
    """The "host:port" of every server, in the same order in all processes; () without servers."""

    worker_endpoints: tuple[str, ...] = ()
    """The "host:port" of every worker; known only in collective jobs."""

    current_endpoint: str = ""
    """The "host:port" of this process, if it has an endpoint."""

    meeting_point: str = ""
    """Where the workers of a collective job meet: the "host:port" of worker 0; see `World.join`."""

    is_meeting_kept_elsewhere: bool = False
    """Whether the launcher, such as torchrun, listens at the meeting point instead of worker 0."""

    workers_per_node: int = 0
    """Number of workers per machine, with contiguous indices; 0 means all on one machine."""

    gpu: int | None = None
    """The GPU that the launcher chose for this process, if any."""

    restarts: int = 0
    """How often the job was restarted after a failure."""

    def __post_init__(self) -> None:
        kinds = get_args(RoleKind)
        require(self.kind in kinds, self, "kind", " or ".join(repr(kind) for kind in kinds))
        require_int(self, "index", 0, 2**31 - 1)
        require_int(self, "worker_num", 1, 2**31 - 1)
        require_int(self, "workers_per_node", 0, self.worker_num)
        require_int(self, "restarts", 0, 2**31 - 1)
        if self.meeting_point:
            parse_endpoint(self.meeting_point)
        for field in ("server_endpoints", "worker_endpoints"):
            endpoints: tuple[str, ...] = getattr(self, field)
            for endpoint in endpoints:
                parse_endpoint(endpoint)
            distinct = len(set(endpoints)) == len(endpoints)
            require(distinct, self, field, "a list without duplicates")
        if self.kind == "server" and self.index >= len(self.server_endpoints):
            raise ConfigError(
                f"RoleInfo.index of a server must be less than the number of servers "
                f"({len(self.server_endpoints)}), got {self.index}"
            )

    @property
    def is_worker(self) -> bool:
        """True for a process that trains."""
        return self.kind != "server"

    @property
    def is_server(self) -> bool:
        return self.kind == "server"

    @property
    def is_first_worker(self) -> bool:
        """True for worker 0, which does work that is needed once per job."""
        return self.is_worker and self.index == 0

    @property
    def server_num(self) -> int:
        return len(self.server_endpoints)
