"""Inject the faults of a schedule into a running job."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsefleet.launch.chaos.faulty_proxy import FaultyProxies
from sparsefleet.launch.chaos.schedule import Fault
from sparsefleet.launch.node_job import JobObserver

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from sparsefleet.launch.job_plan import ProcessPlan

__all__ = ["Injector", "WatchedProcess"]

_SAMPLE_S = 0.25


@dataclass(slots=True)
class WatchedProcess:
    """One process of the job; a restarted process is a new object."""

    name: str
    pid: int
    descriptor: int
    """A pidfd, which identifies this process even after its pid is reused."""
    peak_bytes: int = 0
    exit_code: int | None = None


@dataclass(slots=True)
class _Ongoing:
    ends_at: float
    undo: Callable[[], None]


class Injector(JobObserver):
    """Observes a job and injects faults once `has_begun` returns True.

    Fault times are measured from that moment. A fault whose target is not running at the time is
    skipped and reported as skipped.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        proxies: FaultyProxies | None = None,
        *,
        delay_s: float = 0.1,
        has_begun: Callable[[], bool] = lambda: True,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        if sys.platform != "linux":
            raise OSError("chaos needs Linux, because it uses pidfd, prlimit and /proc")
        self._faults = list(faults)
        self._proxies = proxies
        self._delay_s = delay_s
        self._has_begun = has_begun
        self._note = note
        self._lock = threading.Lock()
        self._living: dict[str, WatchedProcess] = {}
        self._ongoing: list[_Ongoing] = []
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)
        self.processes: list[WatchedProcess] = []
        """Every process that was started, in order."""
        self.injected: list[Fault] = []
        self.skipped: list[Fault] = []

    # -- as the launcher's observer --------------------------------------------------------------

    def started(self, plan: ProcessPlan, pid: int) -> None:
        """Start watching a process that was started."""
        process = WatchedProcess(plan.name, pid, os.pidfd_open(pid))
        with self._lock:
            self.processes.append(process)
            self._living[plan.name] = process
        self._begun.set()

    def ended(self, plan: ProcessPlan, pid: int, exit_code: int) -> None:
        """Stop watching a process that has exited."""
        with self._lock:
            process = self._living.get(plan.name)
            if process is not None and process.pid == pid:
                process.exit_code = exit_code
                del self._living[plan.name]

    # -- faults ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._begun.set()
        self._thread.join()
        for process in self.processes:
            os.close(process.descriptor)

    def _run(self) -> None:
        self._begun.wait()
        while not (self._has_begun() or self._ended.wait(_SAMPLE_S)):
            self._sample_memory()
        begin = time.monotonic()
        waiting = list(self._faults)
        while not self._ended.is_set():
            now = time.monotonic()
            while waiting and begin + waiting[0].at_s <= now:
                self._inject(waiting.pop(0), now)
            for over in [one for one in self._ongoing if one.ends_at <= now]:
                self._ongoing.remove(over)
                over.undo()
            self._sample_memory()
            moments = [one.ends_at for one in self._ongoing]
            moments += [begin + waiting[0].at_s] if waiting else []
            self._ended.wait(max(0.0, min([now + _SAMPLE_S, *moments]) - time.monotonic()))
        for one in self._ongoing:
            one.undo()

    def _inject(self, fault: Fault, now: float) -> None:
        with self._lock:
            process = self._living.get(fault.target)
        undo: Callable[[], None] | None = None
        try:
            if process is None:
                raise ProcessLookupError
            undo = self._do(fault, process)
        except ProcessLookupError:
            self.skipped.append(fault)
            return
        self.injected.append(fault)
        self._note(str(fault))
        if undo is not None:
            self._ongoing.append(_Ongoing(now + fault.lasts_s, undo))

    def _do(self, fault: Fault, process: WatchedProcess) -> Callable[[], None] | None:
        """Inject a fault; return a function that undoes it, or None if there is nothing to undo."""
        index = int(fault.target.split()[1])
        if fault.kind == "kill":
            signal.pidfd_send_signal(process.descriptor, signal.SIGKILL)
            return None
        if fault.kind == "pause":
            signal.pidfd_send_signal(process.descriptor, signal.SIGSTOP)
            return lambda: _signal(process, signal.SIGCONT)
        if fault.kind == "disk-full":
            return _fill_disk(process)
        assert self._proxies is not None
        proxies = self._proxies
        if fault.kind == "delay":
            proxies.delay(index, self._delay_s)
            return lambda: proxies.delay(index, 0.0)
        proxies.partition(index, True)
        return lambda: proxies.partition(index, False)

    def _sample_memory(self) -> None:
        with self._lock:
            living = list(self._living.values())
        for process in living:
            process.peak_bytes = max(process.peak_bytes, _peak_bytes(process.pid))


def _signal(process: WatchedProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process.descriptor, number)


def _fill_disk(process: WatchedProcess) -> Callable[[], None]:
    """Make every file write fail, as on a full disk, by lowering the process's file size limit."""
    # The process inherited this one's limit. Its own limit may still be changed by an ongoing
    # fault.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))

    def undo() -> None:
        if process.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    return undo


def _peak_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
