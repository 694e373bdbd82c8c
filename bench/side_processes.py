"""The processes of a benchmark side: started once, then asked to run a section at a time."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
READY_S = 120.0
SECTION_S = 180.0
END_S = 30.0
LOG_TAIL_BYTES = 600


@dataclass(frozen=True, slots=True)
class Section:
    """The cost of one section, from the first process's start to the last one's end."""

    examples_per_s: float
    cpu_us_per_example: float
    """CPU time of all processes of the side, including its servers."""
    server_cpu_us_per_example: float
    """CPU time of its servers alone."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, or a network namespace that stands for one."""

    prefix: tuple[str, ...]
    """The prefix of commands that run there."""
    address: str
    device: str


HERE = Node((), "127.0.0.1", "lo")


def portable(text: str) -> str:
    """Remove the path of this tree: reports are read on other machines."""
    return text.replace(f"{ROOT}/", "")


class SideProcess:
    """A process that answers on its stdout, line by line; its stderr is the caller's, or a log."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        folder: Path = ROOT,
        log: Path | None = None,
    ) -> None:
        named = itertools.takewhile(lambda word: not word.startswith("--"), command[1:])
        self._name = portable(" ".join(named))
        self._unread = b""
        self._log = log
        with contextlib.ExitStack() as stack:
            self._process = subprocess.Popen(
                [*command],
                cwd=folder,
                env={**os.environ, **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if log is None else stack.enter_context(log.open("wb")),
                bufsize=0,
            )

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # signals the end to the reader of its answers
            self._process.stdin.write(f"{line}\n".encode())

    def wait_for(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Return the first line from here on that matches the pattern, skipping others."""
        end = time.monotonic() + timeout_s
        while True:
            if found := re.search(pattern, self._read_line(end)):
                return found

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """Return user and system time so far; 0 if the system does not report it."""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return 0.0
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_memory_bytes(self) -> int:
        """Return the peak resident memory; 0 if the system does not report it, or after the end."""
        try:
            text = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
        return int(found[1]) << 10 if found else 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the process has ended."""
        self._process.send_signal(number)

    def end_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self, *, terminate: bool = False, kill: bool = False) -> None:
        """Wait for the end, after asking for it or forcing it."""
        self.end_input()
        if kill:
            self._process.kill()
        elif terminate:
            self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read_line(self, end: float) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._unread:
            if not select.select([stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer in time from: {self._name}")
            got = os.read(stdout.fileno(), 65536)
            if not got:
                code = self._process.wait(END_S)
                raise RuntimeError(f"exited with code {code}: {self._name}{self._log_tail()}")
            self._unread += got
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _log_tail(self) -> str:
        if self._log is None:
            return ""
        tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"\n{portable(tail)}"


class Side:
    """Run a side: `with Side(workers, servers) as side: side.run()`. Workers know what a section
    is.

    others: processes that belong to it, do no work and end last.
    is_restless: its processes are busy even when idle, and linger at the end. They are suspended
    between sections, so that they disturb nobody, and killed at the end.
    endpoints: those of its servers.
    """

    def __init__(
        self,
        workers: Sequence[SideProcess],
        servers: Sequence[SideProcess] = (),
        others: Sequence[SideProcess] = (),
        *,
        is_restless: bool = False,
        endpoints: Sequence[str] = (),
    ) -> None:
        self.endpoints = endpoints
        self._workers = workers
        self._servers = servers
        self._others = others
        self._is_restless = is_restless

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    def wait_ready(self) -> None:
        for worker in self._workers:
            worker.wait_for("^ready$", READY_S)
        self._signal(signal.SIGSTOP)

    def ask(self, line: str) -> list[dict[str, Any]]:
        """Send the line to all workers at the same time; return their answers."""
        self._signal(signal.SIGCONT)
        for worker in self._workers:
            worker.send(line)
        found = [worker.wait_for(r"^\{.*\}$", SECTION_S) for worker in self._workers]
        self._signal(signal.SIGSTOP)
        return [json.loads(match.group()) for match in found]

    def run(self, *words: object) -> Section:
        """Run one section on all workers at the same time; `words` say which."""
        server_cpu_s = -sum(server.cpu_s() for server in self._servers)
        answers = self.ask(" ".join(["run", *map(str, words)]))
        examples = sum(answer["examples"] for answer in answers)
        took_s = max(a["end"] for a in answers) - min(a["begin"] for a in answers)
        server_cpu_s += sum(server.cpu_s() for server in self._servers)
        cpu_s = server_cpu_s + sum(answer["cpu_s"] for answer in answers)
        return Section(examples / took_s, 1e6 * cpu_s / examples, 1e6 * server_cpu_s / examples)

    def score(self, file: str) -> float:
        """Return the AUC over the examples of a file; all workers take part, and the first reports
        it.
        """
        return float(self.ask(f"auc {file}")[0]["auc"])

    def peak_memory_bytes(self) -> tuple[int, int]:
        """Return the peak memory of the largest worker and of the largest server."""
        workers = max(worker.peak_memory_bytes() for worker in self._workers)
        return workers, max((server.peak_memory_bytes() for server in self._servers), default=0)

    def close(self) -> None:
        for worker in self._workers:  # ask all before waiting for the first: they end together
            worker.end_input()
        for worker in self._workers:
            worker.close(kill=self._is_restless)
        for process in (*self._servers, *self._others):
            process.close(terminate=True, kill=self._is_restless)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the processes, if they are restless."""
        if self._is_restless:
            for process in (*self._workers, *self._servers):
                process.signal(number)

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def start_servers(
    count: int,
    transport: str | None,
    job_key: str,
    flags: Sequence[Sequence[str]] = (),
    node: Node = HERE,
) -> tuple[list[SideProcess], list[str]]:
    """Start `sparsefleet server` processes on free ports; yield them and their endpoints.

    transport: None is their default. flags: further flags of each server.
    """
    servers: list[SideProcess] = []
    try:
        for index in range(count):
            command = [*node.prefix, sys.executable, "-m", "sparsefleet", "server"]
            command += ["--endpoint", f"{node.address}:0"]
            command += ["--index", str(index), "--num-servers", str(count)]
            command += ["--log-level", "warning"]
            command += [] if transport is None else ["--transport", transport]
            command += flags[index] if flags else []
            servers.append(SideProcess(command, {"SPARSEFLEET_JOB_KEY": job_key}))
        endpoints = [server.wait_for(r"listening on (\S+)", READY_S)[1] for server in servers]
    except Exception:
        for server in servers:
            server.close(terminate=True)
        raise
    return servers, endpoints


def start_replica(place: str, job_key: str) -> tuple[SideProcess, str]:
    """Return a `sparsefleet replica` on a free port, and its endpoint."""
    command = [sys.executable, "-m", "sparsefleet", "replica", "--endpoint", "127.0.0.1:0"]
    command += ["--log-dir", place, "--log-level", "warning"]
    replica = SideProcess(command, {"SPARSEFLEET_JOB_KEY": job_key})
    try:
        return replica, replica.wait_for(r"listening on (\S+)", READY_S)[1]
    except Exception:
        replica.close(terminate=True)
        raise
