"""Plan the faults of a chaos run; the same seed gives the same schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_positive

__all__ = ["ChaosConfig", "Fault", "FaultKind", "make_schedule"]

FaultKind = Literal["kill", "pause", "partition", "delay", "disk-full"]
RoleName = Literal["servers", "workers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosConfig:
    """Which faults are injected into a job, and when."""

    kinds: tuple[FaultKind, ...] = ("kill",)
    """The kinds of faults to choose from."""

    roles: tuple[RoleName, ...] = ("servers", "workers")
    """The processes that may be killed or paused."""

    every_s: float = 5.0
    """Mean time between two faults."""

    duration_s: float = 60.0
    """Faults stop this long after the first possible fault. The job then runs to completion."""

    fault_s: float = 2.0
    """Mean length of a pause, a partition, a delay or a full disk."""

    delay_s: float = 0.1
    """How long each message is held up during a delay."""

    seed: int = 0
    """Seed of the schedule."""

    def __post_init__(self) -> None:
        for name in ("every_s", "duration_s", "fault_s", "delay_s"):
            require_positive(self, name)
        require(bool(self.kinds), self, "kinds", f"one or more of {', '.join(get_args(FaultKind))}")
        for kind in self.kinds:
            require(kind in get_args(FaultKind), self, "kinds", ", ".join(get_args(FaultKind)))
        for role in self.roles:
            require(role in get_args(RoleName), self, "roles", ", ".join(get_args(RoleName)))

    @property
    def needs_proxy(self) -> bool:
        """Return whether workers must reach servers through a proxy."""
        return "partition" in self.kinds or "delay" in self.kinds


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule."""

    at_s: float
    """Seconds after the first possible fault."""
    kind: FaultKind
    target: str
    """The name of a process, such as "server 0"."""
    lasts_s: float = 0.0

    def __str__(self) -> str:
        how_long = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:7.2f} s  {self.kind} {self.target}{how_long}"


def make_schedule(config: ChaosConfig, num_servers: int, num_workers: int) -> list[Fault]:
    """Return the faults in order; they depend only on the arguments.

    >>> one, *_ = make_schedule(ChaosConfig(roles=("servers",), seed=3), 2, 2)
    >>> one.kind, one.target in ("server 0", "server 1"), one.lasts_s
    ('kill', True, 0.0)
    """
    counts = {"servers": num_servers, "workers": num_workers}
    processes = [f"{role[:-1]} {index}" for role in config.roles for index in range(counts[role])]
    servers = [f"server {index}" for index in range(num_servers)]
    draw = random.Random(config.seed)
    faults: list[Fault] = []
    at_s = 0.0
    while (at_s := at_s + config.every_s * draw.uniform(0.5, 1.5)) <= config.duration_s:
        kind = draw.choice(config.kinds)
        among = processes if kind in ("kill", "pause") else servers
        if not among:
            raise ConfigError(
                f"nothing to {kind}: the job has {num_servers} servers and {num_workers} "
                f"workers, and the chosen targets are {', '.join(config.roles) or 'none'}"
            )
        lasts_s = 0.0 if kind == "kill" else config.fault_s * draw.uniform(0.5, 1.5)
        faults.append(Fault(at_s, kind, draw.choice(among), lasts_s))
    return faults
