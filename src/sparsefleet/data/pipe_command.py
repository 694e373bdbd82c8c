"""Filters the bytes of a file through a child process."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import IO

from sparsefleet.errors import DataError, PipeCommandError

_POLL_S = 0.2  # maximum time until the end of a pass is noticed
_SHOWN_STDERR_BYTES = 2000
_END_S = 5.0  # time for a killed child to exit
_FAILURE_S = 2.0  # time for a child that printed malformed output to exit on its own


class PipeCommand:
    """Runs a command for one file. Raises an error if the command fails, hangs or cannot start.

    command: a list of words, run without a shell; or a string, run by the shell.
    path: the input file, for error messages.
    timeout_s: how long the child may neither read input nor write output.
    stopped: a function, called regularly, that returns True once the output is no longer needed.
    """

    def __init__(
        self, command: Sequence[str] | str, path: str, timeout_s: float, stopped: Callable[[], bool]
    ) -> None:
        self._command = command
        self._path = path
        self._timeout_s = timeout_s
        self._stopped = stopped
        self._stderr = b""
        self._child: subprocess.Popen[bytes] | None = None
        self._was_stopped = False
        self._deadline = math.inf

    def blocks(self, source: Iterator[bytes], block_bytes: int) -> Iterator[bytes]:
        """Feed the blocks of `source` to the command and yield its output in blocks."""
        self._child = child = self._start()
        is_well = False
        try:
            yield from self._exchange(child, source, block_bytes)
            is_well = self._check_end(child)
        finally:
            self._was_stopped = child.poll() is None
            _end(child, kill=not is_well)

    def await_failure(self, blocks: Iterator[bytes]) -> PipeCommandError | None:
        """Return the error from a command that printed malformed output and fails soon afterwards.

        blocks: the iterator returned by `blocks`, not yet exhausted.
        """
        self._deadline = monotonic() + _FAILURE_S
        try:
            for _ in blocks:
                pass
        except PipeCommandError as error:
            return error
        return None

    def account(self) -> str:
        """Describe the state and error output of the child process for an error message."""
        code = None if self._child is None else self._child.poll()
        if code is None:
            state = "still running"
        elif self._was_stopped:
            state = "stopped, since its output was no longer read"
        elif code < 0:
            state = f"killed by {signal.Signals(-code).name}"
        else:
            state = f"exit code {code}"
        text = self._stderr.decode("utf-8", "replace").strip()
        tail = f"stderr: {text}" if text else "nothing on stderr"
        return f"pipe command {self._command!r}: {state}, {tail}"

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._command,
                shell=isinstance(self._command, str),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # so the children of a shell can be killed with it
            )
        except (OSError, ValueError) as error:
            raise PipeCommandError(
                f"{self._path}: cannot start pipe command {self._command!r}: {error}"
            ) from error

    def _exchange(
        self, child: subprocess.Popen[bytes], source: Iterator[bytes], block_bytes: int
    ) -> Iterator[bytes]:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        os.set_blocking(child.stdin.fileno(), False)
        pending = memoryview(b"")
        idle_s = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            selector.register(child.stderr, selectors.EVENT_READ)
            selector.register(child.stdin, selectors.EVENT_WRITE)
            open_files = {child.stdout, child.stderr}
            while child.stdout in open_files or (open_files and child.poll() is None):
                begun = monotonic()
                ready = {key.fileobj for key, _ in selector.select(_POLL_S)}
                idle_s = 0.0 if ready else idle_s + monotonic() - begun
                if self._is_unwanted():
                    return
                if idle_s > self._timeout_s:
                    raise self._hung()
                if child.stdin in ready:
                    pending = self._write(child.stdin, pending, source, selector)
                if child.stderr in ready:
                    chunk = os.read(child.stderr.fileno(), block_bytes)
                    self._stderr = (self._stderr + chunk)[-_SHOWN_STDERR_BYTES:]
                    if not chunk:
                        selector.unregister(child.stderr)
                        open_files.remove(child.stderr)
                if child.stdout in ready:
                    block = os.read(child.stdout.fileno(), block_bytes)
                    if block:
                        yield block
                    else:
                        selector.unregister(child.stdout)
                        open_files.remove(child.stdout)

    def _write(
        self,
        stdin: IO[bytes],
        pending: memoryview,
        source: Iterator[bytes],
        selector: selectors.BaseSelector,
    ) -> memoryview:
        """Write as many bytes as the child accepts now; return the rest of the block."""
        if not pending:
            pending = memoryview(next(source, b""))
        try:
            if pending:
                return pending[os.write(stdin.fileno(), pending) :]
        except BlockingIOError:
            return pending
        except BrokenPipeError:  # fine for commands like `head`; the exit code decides
            pass
        selector.unregister(stdin)
        stdin.close()
        return memoryview(b"")

    def _check_end(self, child: subprocess.Popen[bytes]) -> bool:
        """Wait for the command to exit, and raise its error if it failed.

        Return False if the output is no longer needed.
        """
        deadline = monotonic() + self._timeout_s
        while not self._is_unwanted():
            try:
                if child.wait(_POLL_S) != 0:
                    raise PipeCommandError(f"{self._path}: {self.account()}")
                return True
            except subprocess.TimeoutExpired:
                if monotonic() > deadline:
                    raise self._hung() from None
        return False

    def _is_unwanted(self) -> bool:
        return self._stopped() or monotonic() > self._deadline

    def _hung(self) -> DataError:
        return PipeCommandError(
            f"{self._path}: the command read and wrote nothing for {self._timeout_s:g} s "
            f"(ReaderConfig.pipe_timeout_s); {self.account()}"
        )


def _end(child: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Close the child's pipes; if `kill`, also kill the child's process group, even if the child
    has exited."""
    if kill:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)
    for file in (child.stdin, child.stdout, child.stderr):
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
