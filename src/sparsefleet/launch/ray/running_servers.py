"""Start a job's servers as actors, watch them, and stop them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from sparsefleet.errors import ConfigError
from sparsefleet.launch.ray.coordinator import Coordinator, Presence
from sparsefleet.launch.ray.node import NodePlace
from sparsefleet.launch.ray.server_actor import ReplicaActor, ServerActor
from sparsefleet.launch.ray.servers import FleetPlan, waiting_text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RunningServers"]

_CLEAN_UP_S = 10.0
_END_S = 2.0
_FIRST_REPORT_S = 20.0
_NEXT_REPORT_S = 60.0
_CALLS_AT_ONCE = 4  # threads of a server's actor; one of them waits for the end
_CALLS_OF_A_JOB = 10_000
_NODE_LABEL = "ray.io/node-id"


class RunningServers:
    """The coordinator, servers and replicas of a job, from the start of the block to its end.

    Servers share a placement group with one bundle per server. A server's replica is in the next
    server's bundle, so the replica is on a different node if the servers are on different nodes.
    """

    def __init__(self, plan: FleetPlan, each_worker: Mapping[str, float]) -> None:
        """each_worker: the resources that each worker requests, used only in messages."""
        self._plan = plan
        self._each_worker = each_worker
        self._group: Any = None
        self._actors: list[Any] = []
        self._watchers: list[threading.Thread] = []
        self._closing = threading.Event()
        self.coordinator: Any = (
            ray.remote(Coordinator)
            .options(
                name=plan.coordinator_name,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=_CALLS_OF_A_JOB,
                scheduling_strategy=NodeAffinitySchedulingStrategy(
                    ray.get_runtime_context().get_node_id(), soft=False
                ),
            )
            .remote(plan)
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._report_missing, name="missing", daemon=True).start()
        try:
            if self._plan.servers.num_servers:
                self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def failure(self) -> str:
        """Return why the job cannot continue, or "" if it can."""
        return str(ray.get(self.coordinator.failure.remote()))

    def close(self) -> None:
        """Stop all actors and remove the files that they left on the nodes."""
        self._closing.set()
        processes: dict[str, Presence] = {}
        with contextlib.suppress(ray.exceptions.RayError):  # servers stop even without an answer
            processes = ray.get(self.coordinator.processes.remote(), timeout=_CLEAN_UP_S)
        have_cleaned = False
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get([actor.end.remote() for actor in self._actors], timeout=_END_S)
            have_cleaned = True
        for watcher in self._watchers:
            watcher.join(_END_S)
        for actor in self._actors:
            ray.kill(actor)
        with contextlib.suppress(ray.exceptions.RayError):
            self._clean_up(processes, have_cleaned=have_cleaned)
        self._forget()  # before the coordinator stops, since another driver may be waiting for that
        ray.kill(self.coordinator)
        self._forget()  # again, in case the coordinator has since written it
        if self._group is not None:
            remove_placement_group(self._group)

    def _forget(self) -> None:
        """Remove the state file, so that a restarted driver does not continue the job."""
        if self._plan.state_file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._plan.state_file)

    def _start(self) -> None:
        plan = self._plan
        servers = plan.servers
        has_replicas = servers.durability == "replica"
        count = servers.num_servers + (has_replicas and servers.num_servers == 1)
        self._group = placement_group(
            [servers.bundle] * count,
            strategy=servers.placement,
            name=plan.actor_prefix,
            bundle_label_selector=self._selectors(count),
        )
        if not self._group.wait(servers.start_timeout_s):
            raise ConfigError(
                f"Ray could not place {count} x {servers.bundle} ({servers.placement}) within "
                f"{servers.start_timeout_s:g} s; free: {ray.available_resources()}; request less "
                "in Servers(...), or add nodes"
            )
        for index in range(servers.num_servers):
            if has_replicas:
                self._add(ReplicaActor, "replica", index, (index + 1) % count)
            self._add(ServerActor, "server", index, index)
        if has_replicas and len(self._nodes()) == 1:
            print(
                "sparsefleet: all servers and replicas are on one node, so nothing survives its "
                "loss; use placement='STRICT_SPREAD', or add nodes",
                file=sys.stderr,
            )

    def _selectors(self, count: int) -> list[dict[str, str]] | None:
        """Return selectors for the nodes with the servers' logs, or None if there are no logs."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        nodes = [self._plan.server_nodes.get(f"server-{index}", "") for index in range(count)]
        if not alive.intersection(nodes):
            return None
        return [{_NODE_LABEL: node} if node in alive else {} for node in nodes]

    def _add(self, kind: type[ServerActor | ReplicaActor], role: str, index: int, at: int) -> None:
        plan = self._plan
        wanted = dict(plan.servers.bundle) if role == "server" else {}
        actor = (
            ray.remote(kind)
            .options(
                name=f"{plan.actor_prefix}/{role}-{index}",
                num_cpus=wanted.pop("CPU", 0),
                memory=int(wanted.pop("memory", 0)) or None,
                resources=wanted or None,
                max_restarts=plan.servers.max_restarts if plan.servers.is_restartable else 0,
                max_task_retries=-1 if plan.servers.is_restartable else 0,
                max_concurrency=_CALLS_AT_ONCE,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=at
                ),
            )
            .remote(plan, index)
        )
        self._actors.append(actor)
        watcher = threading.Thread(
            target=self._watch, args=(actor, f"{role} {index}"), name="watch", daemon=True
        )
        watcher.start()
        self._watchers.append(watcher)

    def _report_missing(self) -> None:
        """Print what the job is waiting for, until each of its processes has started once."""
        plan = self._plan
        began, pause_s = time.monotonic(), _FIRST_REPORT_S
        while not self._closing.wait(pause_s):
            try:
                known = ray.get(self.coordinator.processes.remote(), timeout=_CLEAN_UP_S)
            except ray.exceptions.RayError:
                known = {}
            missing = [name for name in plan.process_names if name not in known]
            if not missing or self._closing.is_set():
                return
            text = waiting_text(
                missing,
                time.monotonic() - began,
                {"server": plan.servers.bundle, "worker": self._each_worker},
                free=ray.available_resources(),
                total=ray.cluster_resources(),
            )
            print(f"sparsefleet: {text}", file=sys.stderr, flush=True)
            pause_s = _NEXT_REPORT_S

    def _watch(self, actor: Any, name: str) -> None:
        """Wait until an actor has exited and Ray will not restart it, then stop the job."""
        try:
            ray.get(actor.wait.remote())
            reason = f"{name} exited by itself"
        except ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()
            reason = f"{name} is lost and will not be restarted: {' '.join(first[:2])}"
        if not self._closing.is_set():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self.coordinator.fail.remote(reason))

    def _nodes(self) -> set[str]:
        found: dict[str, str] = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return set(found.values())

    def _clean_up(self, processes: dict[str, Presence], *, have_cleaned: bool) -> None:
        """Remove the job's directories from nodes that had only workers.

        If a server did not clean up after itself, for example because it was lost, remove them from
        all nodes.
        """
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        servers = {who.node_id for who in processes.values() if who.role != "worker"}
        used = {who.node_id for who in processes.values()} & alive
        used -= servers if have_cleaned else set()
        remove = ray.remote(_remove_directories)
        tasks = [
            remove.options(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            ).remote(self._plan)
            for node_id in used
        ]
        ray.wait(tasks, num_returns=len(tasks), timeout=_CLEAN_UP_S) if tasks else None


def _remove_directories(plan: FleetPlan) -> None:
    """Remove the directories of the job on this node."""
    NodePlace(plan).remove()
