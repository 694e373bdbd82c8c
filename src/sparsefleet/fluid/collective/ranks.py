"""The ranks of this process's collective job. As in Fluid, a process belongs to one job."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.job_process import join_world
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.program_role import counted_at_exit
from sparsefleet.fluid.fleet.role_makers import UserDefinedCollectiveRoleMaker

if TYPE_CHECKING:
    from sparsefleet.collective import World

__all__ = [
    "Ranks",
    "Training",
    "check_nodes",
    "join_ranks",
    "present_ranks",
    "set_ranks",
    "worker_role",
]


class Training(Protocol):
    """The part of a jointly trained program's interface that is used when ranks pause or finish."""

    def shadow(self) -> None:
        """Take part, without data, in the other ranks' remaining steps."""

    def make_equal(self) -> None:
        """Copy the values of the rank with the most steps to all ranks."""


class Ranks:
    """The ranks in a job, which connect on first use.

    >>> alone = Ranks(RoleInfo(kind="local"))
    >>> alone.rank, alone.size, alone.node_num
    (0, 1, 1)
    """

    def __init__(self, role: RoleInfo, world: World | None = None) -> None:
        self.role = role
        self._world = world
        self._lock = threading.Lock()
        self._trainings: list[Training] = []
        self._has_ended = True
        self._timeout_s = 300.0 if world is None else world.timeout_s

    @property
    def rank(self) -> int:
        """Return the rank of this process."""
        return self.role.index

    @property
    def size(self) -> int:
        return self.role.worker_num

    @property
    def ranks_per_node(self) -> int:
        """Return the number of ranks on each machine."""
        return self.role.workers_per_node or self.size

    @property
    def node_num(self) -> int:
        """Return the number of machines."""
        return self.size // self.ranks_per_node

    @property
    def world(self) -> World:
        """Return the connected ranks. The first call waits until all ranks have connected."""
        with self._lock:
            if self._world is None:
                self._world = join_world(self.role, timeout_s=self._timeout_s)
                # Not `atexit`, because thread pools, which an exchange may need, are closed by
                # then.
                threading._register_atexit(self._end_at_exit)  # type: ignore[attr-defined]
            return self._world

    @property
    def timeout_s(self) -> float:
        """Set the timeout for every wait for other ranks. Must be called before ranks connect."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigError(f"timeout_s must be > 0, got {seconds!r}")
        if self._world is not None and self.size > 1 and seconds != self._timeout_s:
            raise ConfigError(
                f"timeout_s is {seconds:g}, but ranks are already connected with "
                f"{self._timeout_s:g}; call minimize before running the startup program"
            )
        self._timeout_s = seconds

    def of_size(self, wanted: int, what: str) -> Ranks:
        """Return this object. Raises ConfigError if `wanted`, a program's rank count, differs."""
        if wanted != self.size:
            raise ConfigError(
                f"{what} has nranks={wanted}, but this job has {self.size} ranks; call "
                "fleet.init, then pass fleet.worker_num()"
            )
        return self

    # -- training -------------------------------------------------------------------------------

    def add_training(self, training: Training) -> None:
        """Register a program that has started training.

        All ranks must register programs in the same order.
        """
        self._trainings.append(training)
        self.expect_end()

    def expect_end(self) -> None:
        """Re-arm `end`, so that the next call takes effect."""
        self._has_ended = False

    def part(self) -> None:
        """Pause training on this rank; return when all ranks have paused with identical parameters.

        Until then, ranks that run out of data keep participating in the other ranks' steps.
        """
        if len(self._trainings) > 1:
            # Other ranks may run their steps in any order.
            with ThreadPoolExecutor(len(self._trainings), "parting") as pool:
                list(pool.map(lambda training: training.shadow(), self._trainings))
        else:
            for training in self._trainings:
                training.shadow()
        for training in self._trainings:
            training.make_equal()

    def end(self) -> None:
        """Call `part` once, after the last step.

        Called when an Executor is closed and again when the script exits, in case a rank does not
        close its Executor.
        """
        if not self._has_ended:
            self._has_ended = True
            self.part()

    def _end_at_exit(self) -> None:
        """Let other ranks finish training, unless this script failed."""
        if getattr(sys, "last_value", None) is None:
            with counted_at_exit("the last exchange with other ranks"):
                self.end()


_alone = Ranks(RoleInfo(kind="local"))
_present = _alone


def present_ranks() -> Ranks:
    """Return the ranks of this process's job; by default, this process is the only rank."""
    return _present


def set_ranks(ranks: Ranks) -> Ranks:
    """Set and return the ranks of this process's job.

    If they are already set to the same job, the existing object is kept.
    """
    global _present
    if _present.role == ranks.role and ranks._world in (None, _present._world):
        return _present
    if _present.size > 1 and _present._world is not None:
        raise ConfigError(
            f"this process is rank {_present.rank} of {_present.size} and cannot also be rank "
            f"{ranks.rank} of {ranks.size}; start a separate process for that"
        )
    _present = ranks
    return ranks


def worker_role(rank: int, endpoints: Sequence[str]) -> RoleInfo:
    """Return a rank's role in a job with these endpoints."""
    return UserDefinedCollectiveRoleMaker(rank, list(endpoints)).info


def join_ranks(rank: int, size: int, endpoints: Sequence[str]) -> None:
    """Join a job of `size` ranks as `rank`."""
    known = present_ranks()
    if (known.rank, known.size) != (rank, size):
        if not endpoints:
            raise ConfigError(
                f"the program is for rank {rank} of {size}, but this process is rank {known.rank} "
                f"of {known.size}; call fleet.init first"
            )
        known = set_ranks(Ranks(worker_role(rank, endpoints)))
    known.world  # noqa: B018  (joins)


def check_nodes(inner: int, ranks: Ranks) -> None:
    """Raise AssertionError unless the ranks can be divided into nodes of `inner` ranks each."""
    inner = inner if inner > 1 else ranks.ranks_per_node
    if not ranks.size > inner:
        raise AssertionError(
            f"hierarchical_allreduce_inter_nranks must be less than {ranks.size}, the number of "
            f"ranks, got {inner}"
        )
    if ranks.size % inner:
        raise AssertionError(
            f"hierarchical_allreduce_inter_nranks is {inner}, which does not divide the "
            f"{ranks.size} ranks"
        )
