"""The actors that run a job's servers and the servers' replicas, on separate threads."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Literal

import ray

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.launch.ray.coordinator import Presence
from sparsefleet.launch.ray.node import AddressBook, NodePlace, job_variables, reserve_port
from sparsefleet.launch.ray.ray_metrics import mirror_metrics
from sparsefleet.launch.ray.script import run_script
from sparsefleet.launch.ray.servers import FleetPlan
from sparsefleet.server.run_replica import ReplicaConfig, run_replica
from sparsefleet.server.run_server import (
    SUCCESSOR_FILE,
    ServerConfig,
    durable_settings,
    predecessor_config,
    run_server,
)

__all__ = ["ReplicaActor", "ServerActor"]

_LOOK_S = 0.05


class _Serving:
    """An actor that runs one native server on a thread and registers it with the coordinator."""

    role: Literal["server", "replica"]

    def __init__(self, plan: FleetPlan, index: int) -> None:
        self._plan = plan
        self._index = index
        self._coordinator: Any = ray.get_actor(plan.coordinator_name)
        self._ending = threading.Event()
        self._held = contextlib.ExitStack()  # for the life of the process
        self.place = NodePlace(plan)
        self.address = self._held.enter_context(reserve_port(self.place.host))
        who = Presence(
            role=self.role,
            index=index,
            address=self.address,
            node_id=self.place.node_id,
            host=self.place.host,
            pid=os.getpid(),
        )
        self.before: Presence | None = ray.get(self._coordinator.present.remote(who))
        self._book = AddressBook(self._coordinator, self.place, who)
        self._book.start()
        os.environ.update(job_variables(plan, self.place))
        self._thread = threading.Thread(target=self._run, name="serve", daemon=True)
        self._thread.start()
        threading.Thread(target=self._report_when_serving, name="probe", daemon=True).start()

    def __repr__(self) -> str:
        return f"sparsefleet {self.role} {self._index} at {self.address}"

    def wait(self) -> None:
        """Wait until `end` is called. If the server fails, the whole process exits."""
        self._ending.wait()

    def end(self) -> None:
        """Remove the job's files from this node, since the driver is about to kill this actor."""
        self._book.stop()
        self.place.remove()
        self._ending.set()

    def serve(self) -> None:
        """Serve on the calling thread until the job has ended."""
        raise NotImplementedError

    def _run(self) -> None:
        """Run the server; if it fails, exit the process so that Ray starts a new one."""
        try:
            self.serve()
            text = "it exited by itself"
        except SystemExit as error:
            text = f"it exited with {error.code!r}"
        except BaseException as error:  # thread boundary
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"
        sys.stdout.flush()
        ray.get(self._coordinator.crashed.remote(f"{self.role}-{self._index}", text))
        os._exit(1)

    def _report_when_serving(self) -> None:
        where = parse_endpoint(self.address)
        while self._thread.is_alive():
            try:
                socket.create_connection((where.host, where.port), timeout=1.0).close()
            except OSError:
                threading.Event().wait(_LOOK_S)
                continue
            self._book.tell(is_serving=True)
            return


class ReplicaActor(_Serving):
    """Keeps copies of other servers' logs on the disk of its own node."""

    role = "replica"

    def serve(self) -> None:
        run_replica(
            ReplicaConfig(
                endpoint=self.address,
                log_dir=os.path.join(self.place.directory, "replica"),
                transport=self._plan.servers.transport,
            )
        )


class ServerActor(_Serving):
    """Runs one server of the job. When Ray restarts it, it recovers all acknowledged changes."""

    role = "server"

    def serve(self) -> None:
        plan, index = self._plan, self._index
        count = plan.servers.num_servers
        everyone = ray.get(self._coordinator.addresses.remote("server", count))
        everyone[index] = self.address
        own = parse_endpoint(self.address)
        os.environ.update(
            {
                "SPARSEFLEET_ROLE": "server",
                "SPARSEFLEET_INDEX": str(index),
                "SPARSEFLEET_SERVERS": ",".join(everyone),
                "SPARSEFLEET_REPLICAS": self.place.address_file(f"replica-{index}"),
                "TRAINING_ROLE": "PSERVER",
                "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(everyone),
                "PADDLE_PSERVER_ID": str(index),
                "POD_IP": own.host,
                "PADDLE_PORT": str(own.port),
            }
        )
        mirror_metrics("server", index)
        self._choose_start()()

    def _choose_start(self) -> Callable[[], None]:
        """Return a function that runs a recovered server, the job's script, or a new server."""
        plan = self._plan
        settings = durable_settings(self._index)
        log_dir = settings["log_dir"]
        if os.path.exists(os.path.join(log_dir, SUCCESSOR_FILE)):
            before = predecessor_config(log_dir)
            config = dataclasses.replace(
                before, endpoint=self.address, replica=settings["replica"], take_over=True
            )
            return lambda: run_server(config)
        if self.before is not None and self.before.is_serving:
            self._require_replica(f"node {self.before.node_id[:16]} ({self.before.host})")
        elif plan.attempt:
            lost = plan.server_nodes.get(f"server-{self._index}", "")
            self._require_replica(f"node {lost[:16]}")
        script = plan.script
        if script is not None and not script.native_servers:
            return lambda: run_script(script)
        config = ServerConfig(
            endpoint=self.address,
            index=self._index,
            num_servers=plan.servers.num_servers,
            transport=plan.servers.transport,
            **settings,
        )
        return lambda: run_server(config)

    def _require_replica(self, where: str) -> None:
        """Stop the job if this server's log is lost."""
        durability = self._plan.servers.durability
        if durability == "replica":
            return
        reason = (
            f"server {self._index} was on {where}, which is lost with its log "
            f"(durability={durability!r}); start the job again from its last checkpoint. With "
            "durability='replica', a job survives the loss of a node"
        )
        ray.get(self._coordinator.fail.remote(reason))
        raise RuntimeError(reason)
