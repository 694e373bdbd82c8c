"""Run a job while injecting faults, and check its invariants afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparsefleet.launch._guard import group_exists
from sparsefleet.launch.chaos.injector import (
    ChaosConfig,
    Fault,
    FaultyProxies,
    Injector,
    WatchedProcess,
    make_schedule,
)
from sparsefleet.launch.job import PortReservation, run_job
from sparsefleet.launch.launch_config import LaunchConfig

__all__ = ["ChaosReport", "run_chaos"]

_END_S = 10.0


@dataclass(kw_only=True, slots=True)
class ChaosReport:
    """The faults and results of a chaos run."""

    seed: int
    exit_code: int
    """Exit code of the launcher."""
    seconds: float
    injected: list[Fault]
    skipped: list[Fault]
    """Faults that were skipped because their target process was not running at the time."""
    starts: Mapping[str, int]
    """Number of starts of each process."""
    peak_bytes: Mapping[str, int]
    """The largest resident memory of each process."""
    left: list[str]
    """Processes of the job that were still running at the end."""
    problems: list[str] = field(default_factory=list)
    """The violated invariants; empty if the run passed."""
    ledger: Mapping[str, Any] | None = None

    def lines(self) -> list[str]:
        """Return the report as readable lines."""
        kinds = Counter(fault.kind for fault in self.injected)
        done = ", ".join(f"{n} x {kind}" for kind, n in sorted(kinds.items())) or "none"
        restarts = sum(self.starts.values()) - len(self.starts)
        lines = [
            f"seed {self.seed}, {self.seconds:.1f} s, exit code {self.exit_code}",
            f"faults: {done}; {len(self.skipped)} skipped because their process was not running",
            f"processes restarted: {restarts}",
        ]
        for name, size in sorted(self.peak_bytes.items()):
            starts = f", {self.starts[name]} starts" if self.starts[name] > 1 else ""
            lines.append(f"  {name}: at most {size / 2**20:.0f} MiB{starts}")
        if self.ledger is not None:
            lines.append(
                f"ledger: {self.ledger['records']} records, {self.ledger['missing']} missing, "
                f"{self.ledger['repeated']} trained more than once; the dense counter shows "
                f"{', '.join(f'{count:.0f}' for count in self.ledger['counted'])}"
            )
        lines += [f"FAILED: {problem}" for problem in self.problems]
        return [*lines, "failed" if self.problems else "passed"]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "seed": self.seed,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "injected": [_fault_json(fault) for fault in self.injected],
            "skipped": [_fault_json(fault) for fault in self.skipped],
            "starts": dict(self.starts),
            "peak_bytes": dict(self.peak_bytes),
            "left": self.left,
            "ledger": None if self.ledger is None else dict(self.ledger),
            "problems": self.problems,
        }


Check = Callable[[ChaosReport], Sequence[str]]
"""A function that checks the outcome of a job and returns the violated invariants."""


def run_chaos(
    job: LaunchConfig,
    chaos: ChaosConfig,
    *,
    checks: Sequence[Check] = (),
    ledger_path: str = "",
    has_begun: Callable[[], bool] = lambda: True,
    note: Callable[[str], None] = print,
) -> ChaosReport:
    """Run the job on this machine while injecting the faults of `chaos`.

    Must be called in the main thread.

    ledger_path: the file that the job writes its own result to; see `cli/ledger.py`. has_begun:
    returns whether the job is far enough along for faults to begin.
    """
    faults = make_schedule(chaos, job.num_servers, job.num_workers)
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        proxies: FaultyProxies | None = None
        if chaos.needs_proxy:
            ports = stack.enter_context(PortReservation())
            endpoints = [f"127.0.0.1:{port}" for port in ports.take_free(job.num_servers)]
            proxies = stack.enter_context(FaultyProxies(endpoints))
            # Shared memory would bypass the proxy.
            transport = "tls" if job.transport == "auto" else job.transport
            job = replace(
                job,
                endpoints=tuple(endpoints),
                proxies=tuple(proxies.endpoints),
                transport=transport,
            )
        injector = Injector(faults, proxies, delay_s=chaos.delay_s, has_begun=has_begun, note=note)
        with injector:
            exit_code = run_job(job, observer=injector)
            left = _left_of(injector.processes)
    report = ChaosReport(
        seed=chaos.seed,
        exit_code=exit_code,
        seconds=time.monotonic() - begin,
        injected=injector.injected,
        skipped=injector.skipped,
        starts=Counter(process.name for process in injector.processes),
        peak_bytes=_peaks(injector.processes),
        left=left,
    )
    if ledger_path and os.path.exists(ledger_path):
        with open(ledger_path, encoding="utf-8") as file:
            report.ledger = json.load(file)
    if exit_code:
        report.problems.append(f"the job exited with code {exit_code}")
    if left:
        report.problems.append(f"still running: {', '.join(left)}")
    if ledger_path:
        report.problems += _check_ledger(report.ledger)
    for check in checks:
        report.problems += check(report)
    return report


def _left_of(processes: Sequence[WatchedProcess]) -> list[str]:
    """Return the names and pids of the processes whose process groups did not exit in time."""
    deadline = time.monotonic() + _END_S
    while True:
        left = [process for process in processes if group_exists(process.pid)]
        if not left or time.monotonic() > deadline:
            return [f"{process.name} (pid {process.pid})" for process in left]
        time.sleep(0.05)


def _peaks(processes: Sequence[WatchedProcess]) -> dict[str, int]:
    peaks: dict[str, int] = {}
    for process in processes:
        peaks[process.name] = max(peaks.get(process.name, 0), process.peak_bytes)
    return peaks


def _check_ledger(ledger: Mapping[str, Any] | None) -> list[str]:
    if ledger is None:
        return ["the job left no ledger: its last worker did not reach the end"]
    problems = []
    if ledger["missing"]:
        first = ledger["first_missing"]
        problems.append(f"{ledger['missing']} records were not trained, the first: {first}")
    if ledger["repeated"]:
        first = ledger["first_repeated"]
        problems.append(f"{ledger['repeated']} records were trained twice, the first: {first}")
    if any(count != ledger["records"] for count in ledger["counted"]):
        problems.append(
            f"the dense counter shows {ledger['counted']} records, expected {ledger['records']} "
            "in each element"
        )
    return problems


def _fault_json(fault: Fault) -> dict[str, Any]:
    return {
        "at_s": round(fault.at_s, 3),
        "kind": fault.kind,
        "target": fault.target,
        "lasts_s": round(fault.lasts_s, 3),
    }
