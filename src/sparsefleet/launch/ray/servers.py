"""A job's servers on Ray, and the plan that every process of the job receives."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, get_args

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import (
    require,
    require_int,
    require_not_negative,
    require_positive,
)
from sparsefleet.launch.launch_config import DurabilityName, RestartName, TransportName

__all__ = [
    "FleetPlan",
    "PlacementName",
    "ScriptPlan",
    "Servers",
    "log_base",
    "memory_bytes",
    "waiting_text",
]

PlacementName = Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"]

_MAX_SERVERS = 2**16
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, slots=True)
class Servers:
    """The number, resources, placement and durability of a job's servers.

    >>> Servers(2, memory="8GiB").memory_bytes
    8589934592
    """

    num_servers: int = 1
    """The number of servers. If 0, workers train collectively."""

    _: KW_ONLY

    memory: int | str = 0
    """Memory that Ray reserves for each server: bytes, or text such as "8GiB" or "500MB". Ray only
    uses it to choose a node with room. If 0, it is not considered.
    """

    num_cpus: float = 1.0
    """CPUs that Ray reserves for each server."""

    resources: Mapping[str, float] = field(default_factory=dict)
    """Other Ray resources that each server needs, by name."""

    placement: PlacementName = "SPREAD"
    """Ray's strategy for the servers' placement group: "SPREAD" uses different nodes if possible,
    "STRICT_SPREAD" requires them, and "PACK" and "STRICT_PACK" keep servers together. Workers
    follow `ScalingConfig.placement_strategy`.
    """

    durability: DurabilityName = "process"
    """Failures that acknowledged changes survive, as for `sparsefleet launch`. With "replica", a
    server whose node is lost comes back on a different one.
    """

    max_restarts: int = 20
    """How many times Ray restarts each server."""

    transport: TransportName = "auto"
    """How servers and workers communicate."""

    log_dir: str = ""
    """Directory on every node for the logs of durable servers, removed when the job ends. If empty,
    sparsefleet-ray-UID in the system's temporary directory, accessible only to this user.
    """

    start_timeout_s: float = 300.0
    """Seconds that Ray has to find room for all servers, and then to start all workers unless
    RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S is set.
    """

    def __post_init__(self) -> None:
        require_int(self, "num_servers", 0, _MAX_SERVERS)
        require_not_negative(self, "num_cpus")
        require_int(self, "max_restarts", 0, 2**31 - 1)
        require_positive(self, "start_timeout_s")
        for name, kind in (
            ("placement", PlacementName),
            ("durability", DurabilityName),
            ("transport", TransportName),
        ):
            choices = get_args(kind)
            require(getattr(self, name) in choices, self, name, " or ".join(choices))
        memory_bytes(self.memory)
        for name, amount in self.resources.items():
            is_amount = isinstance(amount, (int, float)) and amount >= 0
            if not isinstance(name, str) or not is_amount:
                raise ConfigError(
                    "Servers.resources must have an amount >= 0 for each Ray resource, got "
                    f"{amount!r} for {name!r}"
                )
            if name in ("CPU", "memory"):
                field_name = "num_cpus" if name == "CPU" else "memory"
                raise ConfigError(
                    f"Servers.resources must not contain {name!r}; use Servers({field_name}=...)"
                )

    @property
    def memory_bytes(self) -> int:
        """Return `memory` in bytes."""
        return memory_bytes(self.memory)

    @property
    def bundle(self) -> dict[str, float]:
        """Return the resources of one server, under Ray's names."""
        wanted = {"CPU": self.num_cpus, "memory": float(self.memory_bytes), **self.resources}
        return {name: amount for name, amount in wanted.items() if amount} or {"CPU": 0.001}

    @property
    def is_restartable(self) -> bool:
        """Return whether a server that died comes back with all acknowledged changes."""
        return self.num_servers > 0 and self.durability != "off" and self.max_restarts > 0


def log_base(servers: Servers) -> str:
    """Return the directory for the logs of all jobs on this node, creating it if needed.

    Raises ConfigError if it belongs to another user, who could read or replace its contents.
    """
    if servers.log_dir:
        return servers.log_dir
    path = os.path.join(tempfile.gettempdir(), f"sparsefleet-ray-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"{path} must be a directory owned by user {os.getuid()}, but belongs to user "
            f"{found.st_uid}; remove it, or choose a different directory with Servers(log_dir=...) "
            "or TMPDIR"
        )
    return path


def memory_bytes(amount: int | str) -> int:
    """Return the number of bytes in "8GiB", "500 MB" or a plain number.

    >>> memory_bytes("500MB")
    500000000
    """
    if isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:
        return amount
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", str(amount))
    if match is None or isinstance(amount, bool):
        raise ConfigError(
            f"Servers.memory must be a number of bytes or text such as '8GiB' or '500MB', "
            f"got {amount!r}"
        )
    unit = match[2] or ""
    return int(float(match[1]) * (_BINARY_UNITS | _UNITS)[unit])


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptPlan:
    """A script that all processes of a job run, for `sparsefleet launch --on ray`."""

    script: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    native_servers: bool = False
    """Whether only workers run the script."""
    directory: str
    """The directory that relative paths start from: the command's own, if a node has it."""
    restart: RestartName = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPlan:
    """The settings that the driver passes to all processes of a job as actor arguments."""

    name: str
    job_id: str
    """The id of the run, which stays the same if the driver is killed and restarted."""
    job_key: str = field(repr=False)
    servers: Servers
    num_workers: int
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for every process."""
    script: ScriptPlan | None = None
    attempt: int = 0
    """How many times the driver has been restarted."""
    server_nodes: Mapping[str, str] = field(default_factory=dict)
    """For a restarted driver, the node that has each server's log, by server name."""
    checkpoint: str | None = None
    """For a restarted driver, the checkpoint that the job started from; if None, Ray Train's."""
    state_file: str = ""
    """The file that a restarted driver continues from; empty if there is none."""

    @property
    def actor_prefix(self) -> str:
        """Return the prefix of the actors' names, which Ray's dashboard shows."""
        return f"{self.name}-{self.job_id[:8]}-{self.attempt}"

    @property
    def coordinator_name(self) -> str:
        """Return the name of the coordinator's actor."""
        return f"{self.actor_prefix}/coordinator"

    @property
    def process_names(self) -> list[str]:
        """Return the names of all servers and workers."""
        counts = {"server": self.servers.num_servers, "worker": self.num_workers}
        return [f"{role}-{index}" for role, count in counts.items() for index in range(count)]

    @property
    def shape(self) -> str:
        """Describe what must stay the same when the driver is restarted."""
        servers = self.servers
        return (
            f"{servers.num_servers} servers and {self.num_workers} workers with "
            f"durability={servers.durability!r}"
        )


def waiting_text(
    missing: Sequence[str],
    seconds: float,
    wanted: Mapping[str, Mapping[str, float]],
    *,
    free: Mapping[str, float],
    total: Mapping[str, float],
) -> str:
    """Describe which processes have not started, what each role requests, and what Ray has free.

    >>> waiting_text(["worker-1"], 20.4, {"server": {"CPU": 1.0}, "worker": {"CPU": 2.0}},
    ...              free={"CPU": 1.0}, total={"CPU": 4.0})
    'still waiting after 20 s for worker-1. Each worker asks Ray for CPU 2; free: CPU 1 of 4. If \
that is too little, ask for less (Servers(num_cpus=...), ScalingConfig(resources_per_worker=...); \
--server-cpus, --worker-cpus), stop other jobs or add nodes; `ray status` shows who waits'
    """
    roles = [role for role in wanted if any(name.startswith(role) for name in missing)]
    asked = "; ".join(
        f"each {role} asks Ray for "
        + (", ".join(f"{name} {amount:g}" for name, amount in wanted[role].items()) or "nothing")
        for role in roles
    )
    names = sorted({name for role in roles for name in wanted[role]})
    has = ", ".join(f"{name} {free.get(name, 0.0):g} of {total.get(name, 0.0):g}" for name in names)
    who = ", ".join(missing[:8]) + (f" and {len(missing) - 8} others" if len(missing) > 8 else "")
    return (
        f"still waiting after {seconds:.0f} s for {who}. {asked[:1].upper()}{asked[1:]}; free: "
        f"{has or 'not counted'}. If that is too little, ask for less (Servers(num_cpus=...), "
        "ScalingConfig(resources_per_worker=...); --server-cpus, --worker-cpus), stop other jobs "
        "or add nodes; `ray status` shows who waits"
    )
