"""A Ray cluster of several raylets on this machine, and jobs that run on it.

Ray is imported where it is used: that takes seconds, even if its tests do not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.launch_process import DEADLINE_S, is_alive, wait_until

# Ray then listens on loopback only, as it does on macOS. It reads this when it is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

_OBJECT_STORE_BYTES = 80 << 20
_CONFIG = {
    "worker_niceness": 0,  # at Ray's 15, processes starve next to other tests
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 5,
}


class RayCluster:
    """A head and other nodes; to Ray, CPUs are only numbers."""

    def __init__(self, nodes: int, cpus: int) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        self._cluster = Cluster()
        self._add(_system_config=_CONFIG, include_dashboard=False)
        self.nodes = [self._add() for _ in range(nodes - 1)]
        """All nodes but the head."""
        ray.init(address=self._cluster.address, namespace="tests", log_to_driver=False)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def _add(self, **settings: Any) -> Any:
        return self._cluster.add_node(
            num_cpus=self._cpus,
            object_store_memory=_OBJECT_STORE_BYTES,
            **settings,
        )

    def kill_raylet(self, node_id: str) -> None:
        """`kill -9` the raylet of a node other than the head; its processes end with it."""
        node = next(node for node in self.nodes if node.node_id == node_id)
        self.nodes.remove(node)
        raylet = node.all_processes["raylet"][0].process.pid
        os.kill(raylet, signal.SIGKILL)
        wait_until(lambda: node_id not in alive_nodes(), "Ray notices the loss of a node")
        self._cluster.remove_node(node)

    def replace_node(self) -> None:
        """Add a node in place of one that was lost."""
        self.nodes.append(self._add())

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def alive_nodes() -> set[str]:
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


@contextlib.contextmanager
def ray_cluster(nodes: int, cpus: int) -> Iterator[RayCluster]:
    """Start a cluster; end it at the end of the block."""
    cluster = RayCluster(nodes, cpus)
    try:
        yield cluster
    finally:
        cluster.close()


class RayJob:
    """Runs `sparsefleet launch --on ray` in a separate process, started by the constructor."""

    def __init__(self, cluster: RayCluster, directory: Path, *words: str, name: str = "") -> None:
        self.directory = directory
        self.name = name or f"job-{directory.name}"
        self._out = open(directory / f"driver-{len(os.listdir(directory))}.out", "w+b")  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "sparsefleet",
                "launch",
                "--on",
                "ray",
                "--address",
                cluster.address,
                "--job",
                self.name,
                *words,
            ],
            cwd=directory,
            env={**os.environ, "TMPDIR": str(directory), "RAY_DEDUP_LOGS": "0"},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )
        self._seen: dict[tuple[str, int], int] = {}
        self._job_ids: set[str] = set()

    def output(self) -> str:
        self._out.seek(0)
        return self._out.read().decode(errors="replace")

    def processes(self) -> dict[str, Any]:
        """Return all servers, replicas and workers that the job knows now, by name."""
        import ray

        coordinator = self._coordinator()
        if coordinator is None:
            return {}
        try:
            found: dict[str, Any] = ray.get(coordinator.processes.remote())
        except ray.exceptions.RayError:  # it is ending
            return {}
        for who in found.values():
            self._seen[who.name, who.pid] = who.pid
        return found

    def starts(self) -> dict[str, int]:
        import ray

        found: dict[str, int] = ray.get(self._coordinator().starts.remote())
        return found

    def wait_for(self, *names: str) -> dict[str, Any]:
        """Wait until the job has processes with these names."""

        def are_there() -> bool:
            assert self.process.poll() is None, self.output()
            return self.processes().keys() >= set(names)

        wait_until(are_there, f"known: {names}")
        return self.processes()

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job still runs: {self.output()}") from None

    def wait_for_no_process(self) -> None:
        """Wait until all processes seen so far have ended."""
        for (name, _), pid in self._seen.items():
            wait_until(lambda pid=pid: not is_alive(pid), f"ended: {name}, pid {pid}")

    def leftovers(self) -> list[Path]:
        """Return the directories that this job has left on nodes."""
        base = Path(tempfile.gettempdir(), f"sparsefleet-ray-{os.getuid()}")
        return [path for job_id in self._job_ids for path in base.glob(f"{job_id}*/*")]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._out.close()

    def _coordinator(self) -> Any:
        import ray

        for actor in ray.util.list_named_actors(all_namespaces=True):
            if actor["name"].startswith(f"{self.name}-") and "/coordinator" in actor["name"]:
                self._job_ids.add(actor["name"].split("/")[0].split("-")[-2])
                with contextlib.suppress(ValueError):  # it has ended meanwhile
                    return ray.get_actor(actor["name"], actor["namespace"])
        return None


def ledger_words(directory: Path, mode: str, *, batches: int = 150, pace_ms: int = 20) -> list[str]:
    """Return the arguments with which a job trains the ledger."""
    out = directory / "out"
    out.mkdir(exist_ok=True)
    return [
        "-m",
        "sparsefleet.cli.ledger",
        "--mode",
        mode,
        "--batches",
        str(batches),
        "--pace-ms",
        str(pace_ms),
        "--out",
        str(out),
    ]


def read_ledger(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "out" / "ledger.json").read_text())
    return found
