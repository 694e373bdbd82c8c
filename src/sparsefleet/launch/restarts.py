"""Which processes of a job are restarted alone, and how the others learn about it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import SparseFleetError
from sparsefleet.job_key import find_job_key
from sparsefleet.launch.child_process import ChildProcess
from sparsefleet.launch.launch_config import LaunchConfig

if TYPE_CHECKING:
    from sparsefleet.store import RemoteStore

__all__ = ["LostWorkers", "RestartPolicy", "RestartWatch", "Verdict"]

START_ELSEWHERE = os.EX_TEMPFAIL
"""The exit code (75) of a process that handed over its work on request."""

WINDOW_S = 300.0
_AT_ONCE_S = 10.0
_MOST_IN_A_ROW = 3
_KILLED = (-9, -15)  # sent from outside, so the process itself may be fine


class Verdict(NamedTuple):
    """The decision on whether a failed process is restarted alone."""

    restarts: bool
    reason: str = ""
    """Why a process that would normally be restarted is not restarted."""


class RestartPolicy:
    """Decides whether failed processes are restarted, within the limit set in `config`.

    A server that has served is restarted however it failed, because its log contains everything
    that it acknowledged. Other processes are restarted if they were killed by a signal. After an
    error they are restarted only with `restart="failed"`, since the same script usually fails in
    the same way again, and a worker that was able to clean up has closed its session.
    """

    def __init__(
        self, config: LaunchConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._restarts: defaultdict[str, deque[float]] = defaultdict(deque)
        self._in_a_row: defaultdict[str, int] = defaultdict(int)

    def judge(
        self,
        child: ChildProcess,
        *,
        has_served: bool = False,
        has_own_loop: bool = False,
        is_replaceable: bool = False,
    ) -> Verdict:
        """Return whether to restart a failed process. If so, the restart is counted.

        has_served: whether it is a server that was listening. has_own_loop: whether it is a worker
        whose successor would train on the same data again. is_replaceable: whether it is a rank of
        a collective job whose replacement the others can wait for.
        """
        is_covered = is_replaceable and (child.exit_code or 0) < 0
        if not is_covered and not self._covers(child, has_served=has_served):
            return Verdict(False)
        if has_own_loop and self._config.restart == "auto":
            return Verdict(
                False,
                "it trains in a custom loop (fleet.step, Executor.run, RemoteStore), which a "
                "new process would start from the beginning; if that is acceptable, use "
                f"--restart {self._config.restart_rule}",
            )
        name = child.name
        is_own_fault = child.exit_code not in _KILLED and child.lived_s < _AT_ONCE_S
        self._in_a_row[name] = self._in_a_row[name] + 1 if is_own_fault else 0
        if self._in_a_row[name] >= _MOST_IN_A_ROW:
            return Verdict(
                False,
                f"it failed {_MOST_IN_A_ROW} times in a row within {_AT_ONCE_S:g} s of its start",
            )
        now = self._clock()
        restarts = self._restarts[name]
        while restarts and now - restarts[0] > WINDOW_S:
            restarts.popleft()
        if self._config.restart_limit == 0:
            return Verdict(False)
        if len(restarts) >= self._config.restart_limit:
            return Verdict(
                False,
                f"it was restarted {len(restarts)} times within {WINDOW_S:g} s, which is the "
                "limit set by --max-restarts",
            )
        restarts.append(now)
        return Verdict(True)

    def _covers(self, child: ChildProcess, *, has_served: bool) -> bool:
        rule = self._config.restart_rule
        if rule == "all" or child.exit_code is None:
            return False
        return has_served or child.exit_code < 0 or rule == "failed"


_log = logging.getLogger("sparsefleet.launch")
_ENDED, _RESTARTING = "client_ended", "client_restarting"
_CONNECT_S = 2.0
_RETRY_S = 0.5
_PATIENCE_S = 60.0


class LostWorkers:
    """Notifies all servers, on its own thread, of workers that have exited or are being restarted.

    A server then counts an exited worker as lost at once instead of after the peer timeout, and
    waits longer for a worker that is being restarted.
    """

    def __init__(
        self, endpoints: Sequence[str], transport: str, environ: Mapping[str, str]
    ) -> None:
        self._endpoints = list(endpoints)
        self._transport = transport
        self._environ = dict(environ)
        self._reports: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._back: set[str] = set()

    def report(self, index: int) -> None:
        """Report that this worker has exited for good; returns at once."""
        self._put(_ENDED, f"worker-{index}")

    def expect(self, index: int) -> None:
        """Report that this worker was restarted but is not back yet; returns at once."""
        self._back.discard(f"worker-{index}")
        self._put(_RESTARTING, f"worker-{index}")

    def is_back(self, index: int) -> bool:
        """Return whether no server was waiting any more when `expect` was last reported to them."""
        return f"worker-{index}" in self._back

    def close(self) -> None:
        """Drop reports that have not been sent yet."""
        self._closing.set()
        self._reports.put(None)
        if self._thread is not None:
            self._thread.join()

    def _put(self, command: str, name: str) -> None:
        if not self._endpoints:
            return
        self._reports.put((command, name))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lost-workers", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (report := self._reports.get()) is not None:
            command, name = report
            # A worker's restart is reported again soon.
            patience_s = _PATIENCE_S if command == _ENDED else 0.0
            deadline = time.monotonic() + patience_s
            unaware = set(range(len(self._endpoints)))
            awaited = 0
            while unaware and not self._closing.is_set():
                try:
                    with self._connect() as store:
                        for server in sorted(unaware):
                            answer = store.command(server, command, name.encode())
                            awaited += json.loads(bytes(answer)).get("awaited", 0)
                            unaware.discard(server)
                except (SparseFleetError, OSError) as error:  # a server may be restarting
                    _log.info(
                        "the report '%s' for %s has not reached all servers yet: %s",
                        command,
                        name,
                        error,
                    )
                    if time.monotonic() >= deadline:
                        break
                    self._closing.wait(_RETRY_S)
            if command == _RESTARTING and not unaware and not awaited:
                self._back.add(name)

    def _connect(self) -> RemoteStore:
        from sparsefleet.store import RemoteStore, RemoteStoreConfig

        # If a client reached only some of the servers, those would later report it as lost.
        for endpoint in map(parse_endpoint, self._endpoints):
            if not endpoint.is_file:
                address = (endpoint.host, endpoint.port)
                socket.create_connection(address, timeout=_CONNECT_S).close()
        return RemoteStore(
            self._endpoints,
            name="launcher",
            transport=self._transport,  # type: ignore[arg-type]
            job_key=find_job_key(self._endpoints, self._environ),
            config=RemoteStoreConfig(connect_timeout_s=_CONNECT_S, timeout_s=_CONNECT_S),
        )


# Watch processes that were restarted alone until they are back, and inform the others.
#
# Other processes wait for a lost process for `SPARSEFLEET_FAILOVER_WAIT_S`. A restart on a busy
# machine may take longer, so no process gives up while the launcher is still restarting the lost
# one. Workers on this machine learn about a server from a note, a file that is rewritten until the
# server listens; servers learn about a worker through a command.

_NOTE_S = 1.0
_REPORT_S = 5.0
_SETTLE_S = 20.0  # a server may mistake the old process's connections for the new one's
_MOST_S = 600.0


@dataclass(slots=True)
class _Watched:
    child: ChildProcess
    number: int
    began: float
    next_report: float
    listened_before: float


class RestartWatch:
    """Tracks the unfinished restarts on one node. Not thread-safe.

    state_dir: where notes are written. listens_since: returns when a server last began to listen.
        Only changes of that time matter, since the system's clock may be set meanwhile.
    """

    def __init__(
        self,
        state_dir: str,
        lost_workers: LostWorkers,
        listens_since: Callable[[ChildProcess], float],
    ) -> None:
        self._state_dir = state_dir
        self._lost_workers = lost_workers
        self._listens_since = listens_since
        self._watched: dict[str, _Watched] = {}

    def restarted(self, child: ChildProcess, number: int) -> None:
        """Record that a process was restarted for the `number`th time."""
        if self._state_dir and child.plan.role in ("server", "worker"):
            listened = self._listens_since(child)
            self._watched[child.name] = _Watched(child, number, time.monotonic(), 0.0, listened)
            self.look()

    def look(self) -> None:
        """Report the processes that are not back yet; must be called often."""
        now = time.monotonic()
        for name, watched in list(self._watched.items()):
            if now < watched.next_report:
                continue
            if self._is_over(watched, now):
                del self._watched[name]
                with contextlib.suppress(OSError):
                    os.remove(self._note(watched.child))
            elif watched.child.plan.role == "server":
                watched.next_report = now + _NOTE_S
                self._write_note(watched, now)
            else:
                watched.next_report = now + _REPORT_S
                self._lost_workers.expect(watched.child.plan.index)

    def _is_over(self, watched: _Watched, now: float) -> bool:
        child, since_s = watched.child, now - watched.began
        if not child.is_running or since_s > _MOST_S:
            return True
        if child.plan.role == "server":
            return self._listens_since(child) != watched.listened_before
        return since_s > _SETTLE_S and self._lost_workers.is_back(child.plan.index)

    def _note(self, child: ChildProcess) -> str:
        """Return the path of a server's note, which core/client/restart_note.cc reads."""
        return os.path.join(self._state_dir, f"server-{child.plan.index}.restarting")

    def _write_note(self, watched: _Watched, now: float) -> None:
        path = self._note(watched.child)
        with contextlib.suppress(OSError):  # other processes then wait as long as without it
            with open(f"{path}.tmp", "w", encoding="ascii") as file:
                file.write(
                    f"the launcher restarted it {now - watched.began:.0f} s ago (restart "
                    f"{watched.number}, pid {watched.child.pid}), and it is not listening yet"
                )
            os.replace(f"{path}.tmp", path)
