"""Run several readers at once, each in its own process.

Processes are forks, so a reader may be any function. Items return through pipes between this
process and its own children, pickled by Python's multiprocessing. Nothing sent by another program
or machine is ever unpickled.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from sparsefleet.errors import ConfigError, DataError
from sparsefleet.fluid.paddle.reader.background import WAIT_S, Background, check_count
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction, ResumableReader, resumable

__all__ = ["multiprocess_reader"]

_END_S = 5.0  # time for a child to exit after it was terminated
_AT_END = "end"


def multiprocess_reader(
    readers: Sequence[ReaderFunction],
    use_pipe: bool = True,
    queue_size: int = 1000,
    *,
    wait_s: float = WAIT_S,
) -> ResumableReader:
    """Run all readers in child processes; items are returned in order of arrival.

    use_pipe: take items from the children's pipes on demand; otherwise, a thread empties the pipes
    into a queue of `queue_size` items.
    wait_s: seconds to wait for an item before raising DataError.

    An error in a reader is raised in this process. All children have exited when the pass ends.

    >>> numbers = multiprocess_reader([lambda: iter([1, 2]), lambda: iter([3])])
    >>> sorted(numbers())
    [1, 2, 3]
    """
    return _InProcesses(readers, use_pipe=use_pipe, queue_size=queue_size, wait_s=wait_s)


class _Message(NamedTuple):
    """A message from a child: an item and its position, the end, or an error."""

    item: Any = None
    position: Any = None
    is_end: bool = False
    error: BaseException | None = None
    trace: str = ""


class _Child(NamedTuple):
    number: int
    process: BaseProcess


class _InProcesses(ResumableReader):
    """Runs readers in processes.

    A position has one entry per reader, which is "end" once it has finished.
    """

    kind = "multiprocess_reader"

    def __init__(
        self,
        readers: Sequence[ReaderFunction],
        *,
        use_pipe: bool,
        queue_size: int,
        wait_s: float,
    ) -> None:
        super().__init__()
        if callable(readers) or not len(readers):
            raise ConfigError(f"multiprocess_reader: expected a list of readers, got {readers!r}")
        self._queue_size = None if use_pipe else check_count("queue_size", queue_size)
        self._wait_s = wait_s
        self.sources = tuple(map(resumable, readers))

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        if self._queue_size is None:
            yield from self._receive(pass_number, position)
            return
        ahead = Background(
            lambda: self._receive(pass_number, position),
            self._queue_size,
            what="a reader of multiprocess_reader()",
            wait_s=self._wait_s,
        )
        try:
            yield from ahead
        finally:
            ahead.close()

    def _receive(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        positions = list(position or [None] * len(self.sources))
        children: dict[Connection, _Child] = {}
        try:
            for number, source in enumerate(self.sources):
                if positions[number] != _AT_END:
                    walk = source.walk(pass_number, positions[number])
                    _start(number, walk, children)
            while children:
                for connection in self._wait_for_some(children):
                    child = children[connection]
                    message = _read_message(connection, child)
                    if message.is_end:
                        positions[child.number] = _AT_END
                        child.process.join(_END_S)  # it may still print something
                        _end({connection: children.pop(connection)})
                    else:
                        positions[child.number] = message.position
                        yield message.item, list(positions)
        finally:
            _end(children)

    def _wait_for_some(self, children: dict[Connection, _Child]) -> list[Connection]:
        ready = wait(list(children), self._wait_s)
        if not ready:
            waiting = [child.number for child in children.values()]
            raise DataError(
                f"multiprocess_reader: no item from reader(s) {waiting} within "
                f"{self._wait_s:g} s (wait_s)"
            )
        return [connection for connection in ready if isinstance(connection, Connection)]


def _start(
    number: int, walk: Iterator[tuple[Any, Any]], children: dict[Connection, _Child]
) -> None:
    """Start a child process.

    Only the child holds its end of the pipe, so that its death is detected.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(
        target=_run_child,
        args=(walk, sending, [*children, receiving]),
        name=f"sparsefleet-reader-{number}",
        daemon=True,
    )
    with warnings.catch_warnings():
        # Newer Python versions warn about forking with threads; a child that hangs hits the
        # timeout.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        process.start()
    sending.close()
    children[receiving] = _Child(number, process)


def _run_child(
    walk: Iterator[tuple[Any, Any]], sending: Connection, of_parent: list[Connection]
) -> None:
    """Run a reader in the child process.

    Closes the parent's pipe ends, so that writing fails once the parent is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The parent also gets the signal and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for connection in of_parent:
        connection.close()
    with contextlib.suppress(BrokenPipeError):
        try:
            for item, position in walk:
                sending.send(_Message(item, position))
            sending.send(_Message(is_end=True))
        except BrokenPipeError:
            raise
        except BaseException as error:  # process boundary: raised in the parent
            trace = "".join(traceback.format_exception(error))
            sending.send(_Message(error=_that_can_be_sent(error), trace=trace))


def _that_can_be_sent(error: BaseException) -> BaseException | None:
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # the error's own code may raise anything
        return None
    return error


def _read_message(connection: Connection, child: _Child) -> _Message:
    try:
        message = connection.recv()
    except (EOFError, OSError):
        child.process.join(_END_S)
        raise DataError(
            f"multiprocess_reader: process {child.process.pid} of reader {child.number} died with "
            f"exit code {child.process.exitcode}"
        ) from None
    assert isinstance(message, _Message)
    if not message.trace:
        return message
    where = DataError(
        f"reader {child.number} of multiprocess_reader, in process {child.process.pid}:\n"
        f"{message.trace}"
    )
    if message.error is None:
        raise where
    raise message.error from where


def _end(children: dict[Connection, _Child]) -> None:
    """Terminate these child processes."""
    for connection, child in children.items():
        connection.close()
        child.process.terminate()
    for child in children.values():
        child.process.join(_END_S)
        if child.process.exitcode is None:
            child.process.kill()
            child.process.join(_END_S)
        child.process.close()
