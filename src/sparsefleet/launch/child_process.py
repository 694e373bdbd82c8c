"""The launcher's processes: a server or worker, its log, its guard, a spare server, and its end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sparsefleet.launch import _child, _guard
from sparsefleet.launch.job_plan import ProcessPlan

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ChildProcess",
    "ChildState",
    "EndingSignals",
    "Guard",
    "LogFollower",
    "LogTail",
    "SpareServer",
    "clean_line",
    "describe_exit",
    "shell_code",
    "start_process",
]

_CHUNK_BYTES = 64 << 10
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean_line(raw: bytes) -> str:
    """Return a line as a terminal would finally show it, after any overwriting and without colors.

    >>> clean_line(b"50%\\r\\x1b[32m100%\\x1b[0m")
    '100%'
    """
    text = _ESCAPES.sub("", raw.decode("utf-8", "replace")).rstrip()
    last = text.rsplit("\r", 1)[-1].expandtabs(4)
    return "".join(letter for letter in last if letter.isprintable())


class LogTail:
    """The end of a growing log file. is_continued: ignore the existing contents of the file."""

    def __init__(self, path: str, *, is_continued: bool = False) -> None:
        self._path = path
        self._begin = log_size(path) if is_continued else 0
        self._seen = self._begin
        self._last = ""

    def last_line(self) -> str:
        """Return the last non-empty line, complete or not. Reads only new data."""
        size = log_size(self._path)
        if size != self._seen:
            lines = self._lines_before(size)
            self._last = next((line for line in reversed(lines) if line), self._last)
            self._seen = size
        return self._last

    def last_lines(self, count: int, most_bytes: int = _CHUNK_BYTES) -> list[str]:
        """Return up to `count` lines from the last `most_bytes` bytes, newest last."""
        return self._lines_before(log_size(self._path), most_bytes)[-count:]

    def _lines_before(self, end: int, most_bytes: int = _CHUNK_BYTES) -> list[str]:
        start = max(self._begin, end - most_bytes)
        try:
            with open(self._path, "rb") as file:
                file.seek(start)
                raw = file.read(most_bytes)
        except OSError:
            return []
        lines = raw.rstrip().split(b"\n")
        if start > self._begin and len(lines) > 1:
            del lines[0]  # it started before the chunk
        return [clean_line(line) for line in lines] if raw.strip() else []


def log_size(path: str) -> int:
    """Return the size of a log; 0 if there is none yet."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


_MOST_BYTES = 1 << 20


class LogFollower:
    """Returns every line of a log once, in order, starting `place` bytes into the file."""

    def __init__(self, path: str, place: int = 0) -> None:
        self._path = path
        self._place = place
        self._begun = b""

    def new_lines(self) -> list[str]:
        """Return the lines completed since the last call."""
        *lines, self._begun = (self._begun + self._read()).split(b"\n")
        return [clean_line(line) for line in lines]

    def last_lines(self) -> list[str]:
        """Return everything left, once the log is complete."""
        lines = []
        while raw := self._read():
            self._begun += raw
        if self._begun:
            lines = [clean_line(line) for line in self._begun.removesuffix(b"\n").split(b"\n")]
        self._begun = b""
        return lines

    def _read(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._place)
                raw = file.read(_MOST_BYTES)
        except OSError:
            return b""
        self._place += len(raw)
        return raw


_log = logging.getLogger("sparsefleet.launch")
_END_S = 30.0


class Guard:
    """Tracks every process group of the job and kills the groups when the launcher has exited.

    The guard reads from a pipe whose only writer is the launcher; the system closes the pipe even
    if the launcher is killed by SIGKILL.
    """

    def __init__(self, grace_s: float) -> None:
        path = str(Path(_guard.__file__).resolve())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", path, str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        self._report(f"+{group}")

    def remove(self, group: int) -> None:
        """Stop tracking a group. Must be called before the system can reuse the process id."""
        self._report(f"-{group}")

    def remove_file(self, path: str) -> None:
        """Have the guard remove the file when the launcher has exited."""
        self._report(f"file {path}")

    def remove_directory(self, path: str) -> None:
        """Have the guard remove the directory when the launcher and all groups have exited."""
        self._report(f"directory {path}")

    def _report(self, message: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{message}\n".encode("utf-8", "surrogateescape"))
            self._process.stdin.flush()
        except BrokenPipeError:
            _log.warning(
                "the guard process %d has died; processes may remain if this launcher is killed",
                self._process.pid,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_REAP_S = 10.0


class ChildState(Enum):
    """The state of a process as shown to the user."""

    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class ChildProcess:
    """A process that runs in its own process group, which is always stopped as a whole.

    The constructor starts the process, unless it is given a process that `start_process` started.
    """

    def __init__(
        self,
        plan: ProcessPlan,
        environ: Mapping[str, str],
        guard: Guard,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.plan = plan
        self.state = ChildState.RUNNING
        self.exit_code: int | None = None
        """The exit code, negative for a signal as in subprocess, or None while the process runs."""
        self.ended_at: float | None = None
        """When the launcher noticed the end of the process, in seconds since 1970."""
        self.log = LogTail(plan.log_path, is_continued=plan.appends_log)
        self._guard = guard
        self._began = time.monotonic()
        self._lived_s: float | None = None
        self._process = process or start_process(plan, environ, guard)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived_s(self) -> float:
        """Return the number of seconds from the start of the process to its end, or until now."""
        return time.monotonic() - self._began if self._lived_s is None else self._lived_s

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    def poll(self) -> bool:
        """Return True once, on the first call after the process has exited. Kills the rest of its
        group.
        """
        if self.exit_code is not None or self._process.poll() is None:
            return False
        self._close(self._process.returncode)
        return True

    def terminate(self) -> None:
        """Send SIGTERM. The process must then stop its own children."""
        if self.is_running:
            self.state = ChildState.STOPPING
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its group; return when all have exited."""
        if not self.is_running:
            return
        self.state = ChildState.STOPPING
        self._kill_group()
        try:
            self._close(self._process.wait(_REAP_S))
        except subprocess.TimeoutExpired:  # blocked on a device; ends when the device answers
            self._close(-signal.SIGKILL)

    def _close(self, code: int) -> None:
        self._kill_group()
        self._guard.remove(self.pid)
        self.exit_code = code
        self.ended_at = time.time()
        self._lived_s = time.monotonic() - self._began
        if self.state is ChildState.STOPPING:
            self.state = ChildState.STOPPED
        else:
            self.state = ChildState.DONE if code == 0 else ChildState.FAILED

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """Describe how a process exited.

    >>> describe_exit(3), describe_exit(-9)
    ('exited with code 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def shell_code(code: int) -> int:
    """Return the exit code that reports how a child exited, following the convention of shells.

    >>> shell_code(3), shell_code(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def start_process(
    plan: ProcessPlan, environ: Mapping[str, str], guard: Guard, *, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start the process so that it can never outlive the launcher.

    The child waits for a byte before it executes its command. The byte is sent once the guard has
    registered the child; if the launcher is killed before then, the pipe closes and the child
    exits.
    """
    child = str(Path(_child.__file__).resolve())
    go_read, go_write = os.pipe()
    try:
        with open(plan.log_path, "ab" if plan.appends_log else "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", child, str(go_read), str(os.getpid()), *plan.command],
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                pass_fds=(go_read,),
                start_new_session=True,
            )
        guard.add(process.pid)
        os.write(go_write, b"g")
    finally:
        os.close(go_read)
        os.close(go_write)
    return process


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """Counts SIGINT, SIGTERM and SIGHUP while open; these and SIGCHLD interrupt `wait`.

    Must be opened in the main thread, where Python runs signal handlers; any thread may call
    `wake`.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.count = 0
        """The number of ending signals received so far."""
        self._before: dict[signal.Signals, object] = {}
        self._wakeup_before = -1
        self._receiver, self._sender = socket.socketpair()

    def wait(self, timeout_s: float) -> None:
        """Return on a signal, on `wake`, or after the timeout."""
        self._receiver.settimeout(max(timeout_s, 0.001))
        with contextlib.suppress(TimeoutError):
            self._receiver.recv(4096)

    def wake(self) -> None:
        """Wake the current `wait`, or the next one."""
        with contextlib.suppress(OSError):  # already awake, or no thread is waiting
            self._sender.send(b"\0")

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a job must be launched from the main thread")
        self._sender.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in _ENDING:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # set by nohup
            self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _only_wake)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        self._receiver.close()
        self._sender.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.count += 1
        if self.first is None:
            self.first = signal.Signals(number)


def _only_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing. Python itself writes each handled signal to the wakeup descriptor."""
    del number, frame


_PAUSE_S = 1.0  # so that a new spare does not compete with a successor that is still starting
_SPARE_END_S = 5.0


class SpareServer:
    """Keeps one process ready to become the successor of a durable server on this node.

    Restarting a small server takes mostly import time, and the spare has already imported
    everything. It uses about 45 MB of memory.
    """

    def __init__(
        self, environment: Callable[[ProcessPlan], Mapping[str, str]], guard: Guard
    ) -> None:
        self._environment = environment
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None
        self._earliest = time.monotonic()

    def keep_ready(self) -> None:
        """Start a spare if there is none; return at once."""
        if self._process is not None or time.monotonic() < self._earliest:
            return
        plan = ProcessPlan(
            role="server",
            index=0,
            command=(sys.executable, "-u", "-m", "sparsefleet", "server", "--spare"),
            log_path=os.devnull,
        )
        self._process = start_process(
            plan, self._environment(plan), self._guard, stdin=subprocess.PIPE
        )

    def take(self, plan: ProcessPlan, log_dir: str) -> subprocess.Popen[bytes] | None:
        """Return a process that runs `plan` on the log directory, or None if there is no spare."""
        process, self._process = self._process, None
        self._earliest = time.monotonic() + _PAUSE_S
        if process is None:
            return None
        order = {"recover": log_dir, "log": os.path.abspath(plan.log_path)}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.close()
        except OSError:  # the spare has exited
            self._reap(process)
            return None
        return process

    def close(self) -> None:
        """Stop the spare."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._reap(self._process)
            self._process = None

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_SPARE_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._guard.remove(process.pid)
