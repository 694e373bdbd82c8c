"""The actor that tracks where a job's servers, replicas and workers are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sparsefleet.errors import ConfigError, PeerLostError
from sparsefleet.launch.ray.servers import FleetPlan
from sparsefleet.monitor.endpoint_file import write_atomically

__all__ = ["Coordinator", "Membership", "News", "Presence", "Reported", "continued"]

_POLL_S = 2.0
_STARTS_IN_VAIN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """The calls to `ray.train.report` that a rank has made, over all its processes."""

    count: int = 0
    """Number of reports that all workers have agreed on."""
    outside: int = 0
    """Number of calls outside of `fit`. A process that replaces another one repeats these calls."""
    place: str = ""
    """The pass in which the last call inside `fit` was made."""
    within: int = 0
    """Number of calls in that pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """The information that a process of the job registers about itself."""

    role: Literal["server", "replica", "worker"]
    index: int
    address: str = ""
    """HOST:PORT where others reach it; for worker 0, the address where workers meet."""
    node_id: str
    host: str
    pid: int
    start: int = 0
    """For a worker, how many processes its rank has already had."""
    is_serving: bool = False
    """For a server, whether it is listening for requests."""
    has_own_loop: bool = False
    """For a worker, whether a replacement would train on the same data again."""
    checkpoint: str = ""
    """For a worker, the path of the checkpoint that the job started from, or ""."""
    reports: Reported = Reported()
    """For a worker, the reports that its rank has made."""
    has_ended: bool = False
    """For a worker, whether its training function has returned."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    def continuing(self, before: Presence | None, others: Iterable[Presence] = ()) -> Presence:
        """Return this worker with the state that it takes over from an earlier process of its rank.

        others: the job's processes. All workers make a report together, so a report counts if any
            worker has made it, even if this rank was lost before recording it.
        """
        if before is None or before.has_own_loop:
            return self
        known = [before.reports, *(each.reports for each in others)]
        latest = max(known, key=lambda reports: reports.count)  # if equal, its own
        return replace(self, reports=latest, checkpoint=before.checkpoint)

    def is_same_process(self, other: Presence) -> bool:
        return (self.node_id, self.pid) == (other.node_id, other.pid)


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """The coordinator's reply to a process that asks for changes."""

    version: tuple[float, int]
    addresses: Mapping[str, str]
    """HOST:PORT of each server and replica, by name."""
    failure: str = ""
    """Why the job cannot continue; empty if it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """The information that a worker gets when it joins."""

    meeting_point: str
    workers_per_node: int
    who: Presence
    """The worker, with the state that it takes over from the process that it replaces."""
    before: Presence | None = None
    """The process of this rank that the worker replaces."""


@dataclass
class _State:
    present: dict[str, Presence] = field(default_factory=dict)
    has_served: set[str] = field(default_factory=set)
    starts: Counter[str] = field(default_factory=Counter)
    in_vain: Counter[str] = field(default_factory=Counter)
    failure: str = ""


class Coordinator:
    """Keeps the addresses of a job's processes and notifies every process of changes.

    An asynchronous actor. Each process registers again with every request, so a restarted
    coordinator soon has the full state again.
    """

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        self._state = _State()
        self._began = time.time()
        self._count = 0
        self._written = ""
        self._changed = asyncio.Condition()

    def __repr__(self) -> str:
        return f"coordinator of {self._plan.name}"

    async def present(self, who: Presence) -> Presence | None:
        """Register a process that has just started; return the one it replaces, if any."""
        state = self._state
        before = state.present.get(who.name)
        if before is not None and who.name in state.has_served:
            before = replace(before, is_serving=True)
        state.starts[who.name] += 1
        await self._note(who)
        return before

    async def news(self, seen: tuple[float, int], who: Presence | None = None) -> News:
        """Wait briefly for a state newer than version `seen`; return the current state."""
        if who is not None and self._is_news(who):
            await self._note(who)
        async with self._changed:
            if seen == self._version and not self._state.failure:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _POLL_S)
        return self._news()

    async def addresses(self, role: str, count: int) -> list[str]:
        """Wait until `count` processes with a role are known; return their addresses in order.

        Raises PeerLostError if the job fails first.
        """
        names = [f"{role}-{index}" for index in range(count)]
        await self._wait_for(lambda: all(name in self._state.present for name in names))
        return [self._state.present[name].address for name in names]

    async def join(self, who: Presence) -> Membership:
        """Register a worker; wait until all servers and workers are known.

        Raises PeerLostError if the job fails first, because an actor that could not be created
        never arrives.
        """
        before = self._state.present.get(who.name)
        if before is not None and before.is_same_process(who):
            before = None
        self._state.starts[who.name] += 1
        await self._note(who.continuing(before, self._state.present.values()))
        await self.addresses("server", self._plan.servers.num_servers)
        await self.addresses("worker", self._plan.num_workers)
        names = [f"worker-{rank}" for rank in range(self._plan.num_workers)]
        if not self._plan.servers.is_restartable:  # all workers always start together in this case
            await self._wait_for(
                lambda: all(self._state.present[name].start >= who.start for name in names)
            )
        workers = [self._state.present[name] for name in names]
        joined = who.continuing(before, workers)  # others may have reported in the meantime
        if self._is_news(joined):
            await self._note(joined)
        return Membership(
            who=joined,
            meeting_point=workers[0].address,
            workers_per_node=_workers_per_node([worker.node_id for worker in workers]),
            before=before,
        )

    async def crashed(self, name: str, text: str) -> None:
        """Record that a server could not start; the third time in a row stops the job."""
        self._state.in_vain[name] += 1
        if self._state.in_vain[name] >= _STARTS_IN_VAIN:
            await self.fail(f"{name} failed {_STARTS_IN_VAIN} times in a row: {text}")

    async def fail(self, reason: str) -> None:
        """Stop the job; the first reason counts."""
        self._state.failure = self._state.failure or reason
        await self._report()

    async def failure(self) -> str:
        """Return why the job cannot continue, or "" if it can."""
        return self._state.failure

    async def processes(self) -> dict[str, Presence]:
        """Return all processes of the job by name."""
        return dict(self._state.present)

    async def starts(self) -> dict[str, int]:
        """Return how many times each process was started, by name."""
        return dict(self._state.starts)

    def _is_news(self, who: Presence) -> bool:
        """Return whether to register `who`; False for a process that has been replaced."""
        known = self._state.present.get(who.name)
        return known is None or (known.is_same_process(who) and known != who)

    @property
    def _version(self) -> tuple[float, int]:
        return (self._began, self._count)

    async def _note(self, who: Presence) -> None:
        self._state.present[who.name] = who
        if who.is_serving:
            self._state.has_served.add(who.name)
            self._state.in_vain[who.name] = 0
        if who.is_serving or who.has_own_loop or who.checkpoint:
            self._write_state()
        await self._report()

    def _write_state(self) -> None:
        """Write the state that a restarted driver needs, once all servers are serving."""
        plan = self._plan
        names = [f"server-{index}" for index in range(plan.servers.num_servers)]
        if not plan.state_file or not self._state.has_served.issuperset(names):
            return
        state = {
            "job_id": plan.job_id,
            "attempt": plan.attempt,
            "shape": plan.shape,
            "server_nodes": {name: self._state.present[name].node_id for name in names},
            "checkpoint": next(
                (who.checkpoint for who in self._state.present.values() if who.checkpoint), ""
            ),
            "own_loops": [who.name for who in self._state.present.values() if who.has_own_loop],
        }
        text = json.dumps(state) + "\n"
        if text != self._written:
            write_atomically(plan.state_file, text)
            self._written = text

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._state.failure) or condition())
        if self._state.failure:
            raise PeerLostError(self._state.failure)

    async def _report(self) -> None:
        async with self._changed:
            self._count += 1
            self._changed.notify_all()

    def _news(self) -> News:
        found = {
            name: who.address
            for name, who in self._state.present.items()
            if who.role != "worker" and who.address
        }
        return News(version=self._version, addresses=found, failure=self._state.failure)


def continued(plan: FleetPlan) -> FleetPlan:
    """Return the plan with the state that a killed driver left in the state file, if any.

    Raises ConfigError if it was a different job, or if its workers would start over.
    """
    try:
        with open(plan.state_file, encoding="utf-8") as file:
            state = json.load(file)
        found = replace(
            plan,
            job_id=str(state["job_id"]),
            attempt=int(state["attempt"]) + 1,
            server_nodes=dict(state["server_nodes"]),
            checkpoint=None if state["own_loops"] else str(state.get("checkpoint", "")),
        )
        shape, own_loops = state["shape"], list(state["own_loops"])
    except FileNotFoundError:
        return plan
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{plan.state_file}, which the run {plan.name!r} continues from, is damaged: "
            f"{error!r}; remove it to start over"
        ) from error
    if shape != plan.shape:
        raise ConfigError(
            f"the run {plan.name!r} was interrupted with {shape}, but is now being started with "
            f"{plan.shape}; use the same numbers, or remove {plan.state_file} to start over"
        )
    if own_loops and plan.script is not None and plan.script.restart == "auto":
        raise ConfigError(
            f"the run {plan.name!r} cannot be continued: {own_loops[0]} trained in a custom loop "
            "(fleet.step, Executor.run, RemoteStore), which would repeat updates that the "
            f"servers have already applied; remove {plan.state_file} to start from scratch, or "
            "use --restart killed if the script continues its loop itself"
        )
    return found


def _workers_per_node(node_ids: list[str]) -> int:
    """Return how many consecutive workers each node has, or 1 if this differs between nodes.

    >>> _workers_per_node(["a", "a", "b", "b"]), _workers_per_node(["a", "a", "b"])
    (2, 1)
    """
    size = node_ids.count(node_ids[0])
    groups = [node_ids[first : first + size] for first in range(0, len(node_ids), size)]
    alike = all(len(group) == size and len(set(group)) == 1 for group in groups)
    return size if alike and len({group[0] for group in groups}) == len(groups) else 1
