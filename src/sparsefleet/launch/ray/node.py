"""Resources of a job's process on its node: a directory, a port, and other processes' addresses."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray

from sparsefleet.endpoint import Endpoint
from sparsefleet.launch.ray.coordinator import News, Presence
from sparsefleet.launch.ray.servers import FleetPlan, log_base
from sparsefleet.monitor.endpoint_file import write_atomically

__all__ = ["AddressBook", "NodePlace", "job_variables", "reserve_port"]

_RETRY_S = 0.5
# Ray may need a minute to notice that a node is lost and to place its actors elsewhere. A server
# that does not come back at all stops the job at once.
_FAILOVER_WAIT_S = "300"


class NodePlace:
    """A job's directory on this node. Ray nodes on the same machine have separate directories."""

    def __init__(self, plan: FleetPlan) -> None:
        self._job_id = plan.job_id
        self.node_id = str(ray.get_runtime_context().get_node_id())
        self.host = str(ray.util.get_node_ip_address())
        self.directory = os.path.join(log_base(plan.servers), plan.job_id, self.node_id[:16])
        """Holds the servers' logs in server-K and replica, and addresses in addresses/."""
        os.makedirs(os.path.join(self.directory, "addresses"), mode=0o700, exist_ok=True)

    @property
    def memory_directory(self) -> str:
        """Return the directory where workers keep the data they send, for their replacements."""
        shared = "/dev/shm"
        in_memory = "TMPDIR" not in os.environ and os.path.isdir(shared)
        name = f"sparsefleet-ray-{self._job_id[:16]}-{self.node_id[:8]}"
        return os.path.join(shared if in_memory else tempfile.gettempdir(), name)

    def remove(self) -> None:
        """Remove the directories of the job on this node."""
        shutil.rmtree(self.memory_directory, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(
            OSError
        ):  # other nodes on this machine have their own directories in it
            os.rmdir(os.path.dirname(self.directory))

    def address_file(self, name: str) -> str:
        """Return the file where clients on this node find the address of a server or replica."""
        return os.path.join(self.directory, "addresses", name)


@contextlib.contextmanager
def reserve_port(host: str) -> Iterator[str]:
    """Reserve a free port of this node until the block ends; yield HOST:PORT.

    On Linux, a server may listen on the reserved port (`launch.job.PortReservation`).
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.bind((host, 0))
        address = str(Endpoint(host, int(held.getsockname()[1])))
        if sys.platform == "linux":
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            held.close()
        yield address


def job_variables(plan: FleetPlan, place: NodePlace) -> dict[str, str]:
    """Return the environment variables common to all servers and workers of a job.

    They are set inside the processes rather than in Ray's runtime environment, because Ray's
    dashboard shows the latter.
    """
    servers = plan.servers
    variables = {
        "SPARSEFLEET_JOB_KEY": plan.job_key,
        "SPARSEFLEET_JOB_ID": plan.job_id,
        "SPARSEFLEET_WORKERS": str(plan.num_workers),
        "SPARSEFLEET_TRANSPORT": servers.transport,
        "SPARSEFLEET_DURABILITY": servers.durability,
        "SPARSEFLEET_LOG_DIR": place.directory,
        "PADDLE_TRAINERS_NUM": str(plan.num_workers),
        **plan.variables,
    }
    if servers.is_restartable:
        variables.setdefault("SPARSEFLEET_FAILOVER_WAIT_S", _FAILOVER_WAIT_S)
    return variables


class AddressBook:
    """Keeps the address files of this node up to date, on its own thread.

    `on_failure` is called with the reason when the job cannot continue.
    """

    def __init__(
        self,
        coordinator: Any,
        place: NodePlace,
        who: Presence,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._place = place
        self.who = who
        """The state that this process reports; see `change`."""
        self._lock = threading.Lock()
        self.before_each_request: Callable[[], None] = lambda: None
        """Called before each request to the coordinator; may call `change`."""
        self._on_failure = on_failure
        self._seen = (0.0, 0)
        self._written: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="address-book", daemon=True)

    def start(self) -> None:
        """Write all currently known addresses, then keep watching the coordinator for changes."""
        self._take(ray.get(self._request(self._seen)))
        self._thread.start()

    def change(self, **fields: Any) -> None:
        """Change the state that this process reports; returns at once. Thread-safe.

        The next request to the coordinator, at most one polling interval later, includes it.
        """
        with self._lock:
            self.who = dataclasses.replace(self.who, **fields)

    def tell(self, **fields: Any) -> None:
        """Change the state that this process reports, and wait until the coordinator has it."""
        self.change(**fields)
        ray.get(self._request((0.0, 0)))

    def _request(self, seen: tuple[float, int]) -> Any:
        with self._lock:  # an older state must not be sent after a newer one
            return self._coordinator.news.remote(seen, self.who)

    def stop(self) -> None:
        """Stop watching the coordinator; returns at once."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.before_each_request()
                self._take(ray.get(self._request(self._seen)))
            except (ray.exceptions.RayActorError, OSError):
                # The coordinator is being restarted, the job has ended, or the disk is full.
                # Anything not written now is in the next report as well.
                self._stopping.wait(_RETRY_S)
            except Exception as error:  # thread boundary: Ray itself is shutting down
                print(
                    f"sparsefleet: lost contact with the job's coordinator: {error}",
                    file=sys.stderr,
                )
                return

    def _take(self, news: News) -> None:
        self._seen = news.version
        for name, address in news.addresses.items():
            if self._written.get(name) != address:
                write_atomically(self._place.address_file(name), address + "\n")
                self._written[name] = address
        if news.failure and not self._stopping.is_set():
            self._stopping.set()
            if self._on_failure is not None:
                self._on_failure(news.failure)


def own_loop_file(place: NodePlace, rank: int) -> Path:
    """Return the file that a worker uses to report that no other process can continue its loop."""
    from sparsefleet.store.own_loop import own_loop_path

    return Path(own_loop_path(place.directory, rank))
