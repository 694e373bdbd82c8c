"""Synchronizes the workers of a job, and exchanges data between them."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from time import monotonic
from typing import Any

from sparsefleet.errors import (
    ConfigError,
    DeadlineError,
    NotFoundError,
    PeerLostError,
    SparseFleetError,
    code_name_of,
    error_named,
)
from sparsefleet.fleet.board import Board
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.server.command_loop import pack_body, unpack_body
from sparsefleet.store import RoundMember, Store

__all__ = ["MailExchange", "Meeting"]


_log = logging.getLogger("sparsefleet.fleet")
_NOTICE_S = 30.0  # a wait for other workers is reported after this time
_CHUNK_BYTES = 60_000  # a note holds 64 KiB
_CHUNKS_AT_ONCE = 1000  # notes in one request
_SENT_BYTES = 8 << 20  # size limit for a request with more than one letter
_HOLD_S = 30.0  # how long a server holds a command before it answers "not yet"
_CALL_S = 60.0  # extra time for a command to be answered at all
_TELL_S = 5.0  # time to report a failure to a server


class Meeting:
    """Synchronizes the workers of one job through their servers, or through their own board.

    All workers must make the same calls in the same order; calls are numbered, so a worker that is
    one call ahead is not confused with a worker that is behind. `name` separates the meetings of
    different training runs on the same board.

    If a worker is lost, waiting workers raise PeerLostError; with servers and
    `continue_without_lost`, they stop waiting for it instead.

    keeps: whether to keep the values of finished calls. A process that replaces a worker repeats
        the worker's calls; those that had finished then return at once with the same result. See
        `drop_calls`.

    >>> from sparsefleet.store import LocalStore
    >>> Meeting(LocalStore(), RoleInfo(kind="local")).all_gather(b"mine")
    [b'mine']
    """

    def __init__(
        self,
        board: Board,
        role: RoleInfo,
        *,
        name: str = "job",
        wait_s: float = 600.0,
        continue_without_lost: bool = False,
        keeps: bool = False,
    ) -> None:
        self._board = board
        self._keeps = keeps
        self._kept: list[tuple[int, list[str]]] = []  # the call and its notes
        self._droppable = range(0)  # calls that nobody will repeat once all workers have met again
        self._is_over = False  # a previous process has left, so all calls are repeated
        self._name = f"fleet/{name}"
        self._role = role
        self._wait_s = wait_s
        self._count = 0
        self._member = RoundMember(
            group=self._name,
            rank=role.index,
            size=role.worker_num,
            continue_without_lost=continue_without_lost,
        )

    @property
    def name(self) -> str:
        """Return the name that separates this meeting from others on the same board."""
        return self._name

    @property
    def rank(self) -> int:
        """Return the index of this worker."""
        return self._role.index

    @property
    def num_workers(self) -> int:
        """Return the number of all workers, including lost ones."""
        return self._role.worker_num

    @property
    def count(self) -> int:
        """Return the number of synchronizations that this worker has taken part in."""
        return self._count

    def continue_from(self, count: int, *, is_over: bool = False) -> None:
        """Continue counting from `count`, the position of a predecessor.

        is_over: whether the predecessor has left the other workers. All calls are then repetitions
            and wait for nobody.
        """
        self._count = count
        self._is_over = self._is_over or is_over

    def drop_calls(self, begin: int, end: int) -> None:
        """Drop the values of the calls numbered `begin` + 1 to `end`, at the next synchronization.

        Must be called by all workers at the same point, so that no worker needs to repeat those
        calls.
        """
        self._droppable = range(begin + 1, end + 1)

    def sent_before(self) -> bytes | None:
        """Return the value that a previous process has passed to the upcoming `decide`, or None."""
        return self._find(f"{self._name}/decide/{self._count + 1}/{self._role.index}")

    @property
    def continues_without_lost(self) -> bool:
        return self._member.continue_without_lost

    @property
    def is_alone(self) -> bool:
        return self._role.worker_num == 1

    def barrier(self, *, patient: bool = False) -> None:
        """Block until every worker has called this method.

        After `wait_s`, raises an error that names the missing workers.

        patient: whether to keep waiting as long as the other workers are connected, since they may
            be busy for hours.
        """
        self._count += 1
        if self.is_alone:
            return
        self._wait_for_all(patient)
        droppable, self._droppable = self._droppable, range(0)
        if droppable:
            for _, names in [each for each in self._kept if each[0] in droppable]:
                self._delete(names)
            self._kept = [each for each in self._kept if each[0] not in droppable]

    def _wait_for_all(self, patient: bool) -> None:
        timeout_s = self._wait_s if patient else min(_NOTICE_S, self._wait_s)
        later_s = self._wait_s - timeout_s
        while not self._is_over:
            try:
                self._board.advance_clock(self._member, self._count, bound=0, timeout_s=timeout_s)
                return
            except DeadlineError as error:
                if later_s > 0:
                    _log.warning("still waiting, for up to %.0f s more: %s", later_s, error)
                    timeout_s, later_s = later_s, 0.0
                    continue
                if not patient:
                    raise DeadlineError(
                        "start, evaluate, save, load, settle and barriers must be called by all "
                        f"workers, in the same order: {error}"
                    ) from error
                _log.info("still waiting: %s", error)

    def all_gather(self, data: bytes, *, patient: bool = False) -> list[bytes]:
        """Return, on every worker, the values of all workers that are not lost, in rank order.

        For `patient`, see `barrier`.
        """
        if not isinstance(data, bytes):
            raise ConfigError(f"all_gather needs bytes, got {type(data).__name__}")
        if self.is_alone:
            return [data]
        call = self._count + 1
        prefix = f"{self._name}/gather/{call}"
        names = self._put(f"{prefix}/{self._role.index}", data)
        self.barrier(patient=patient)
        found = self._get_all(prefix)
        self.barrier()  # delete notes only when everybody has read them
        self._forget(call, names)
        return found

    def decide(
        self, data: bytes, rule: Callable[[list[bytes]], bytes], *, patient: bool = False
    ) -> bytes | None:
        """Let one worker decide from the values of all workers; return its answer on every worker.

        All workers must call it. `rule` takes the values of all workers that are not lost, in rank
        order, and returns the answer. It runs in the first remaining worker, when all workers have
        arrived and before any of them continues; its exceptions are raised on all workers.
        Returns None only if no worker is left to answer. For `patient`, see `barrier`.

        >>> from sparsefleet.store import LocalStore
        >>> meeting = Meeting(LocalStore(), RoleInfo(kind="local"))
        >>> meeting.decide(b"3", lambda given: max(given) + b" wins")
        b'3 wins'
        """
        if self.is_alone:
            return rule([data])
        call = self._count + 1
        prefix = f"{self._name}/decide/{call}"
        names = self._put(f"{prefix}/{self._role.index}", data)
        self.barrier(patient=patient)
        failure: Exception | None = None
        answer: bytes | None = None
        for decider in self._deciders(prefix):
            if decider == self._role.index and not self._is_decided(prefix):
                found = self._get_all(prefix)
                try:
                    answer = b"+" + rule(found)
                except Exception as error:  # raised again below, once the others have been notified
                    failure = error
                    answer = f"-{code_name_of(error) or 'INTERNAL'} {error}".encode()
                names += self._put(f"{prefix}/answer", answer)
            self.barrier(patient=patient)
            answer = self._get(f"{prefix}/answer", decider)
            if answer is not None:
                break  # otherwise the decider was lost before it answered
        self.barrier()  # delete notes only when everybody has read them
        self._forget(call, names)
        if failure is not None:
            raise failure
        if answer is not None and answer.startswith(b"-"):
            code, _, message = answer[1:].decode().partition(" ")
            raise error_named(code, f"in worker {decider}: {message}")
        return None if answer is None else answer[1:]

    def _deciders(self, prefix: str) -> Iterator[int]:
        """Yield the workers that have arrived, in rank order; the same on all workers."""
        if not self._member.continue_without_lost:
            yield 0
            return
        names = [f"{prefix}/{rank}" for rank in range(self._role.worker_num)]
        for rank, note in enumerate(self._board.get_notes(names)):
            if note is not None:
                yield rank

    def _is_decided(self, prefix: str) -> bool:
        """Return whether a previous process has already posted the decision."""
        return self._keeps and self._find(f"{prefix}/answer") is not None

    def open_exchange(self) -> MailExchange:
        """Open an exchange of bytes between all workers. All workers must call it.

        Raises PeerLostError in a process that replaces a worker whose exchange was already over.
        """
        if not isinstance(self._board, Store):
            raise ConfigError(
                "an exchange between workers, such as a global shuffle, goes through servers, "
                "but this job has none: start it with servers, or shuffle the files of each "
                "worker"
            )
        room = f"{self._name}/mail/{self._count + 1}"
        begun = f"{room}/begun/{self._role.index}"
        if self._keeps and self._find(begun) is not None:
            raise PeerLostError(
                f"worker {self._role.index} was restarted after its previous process had exchanged "
                "records with all workers (global_shuffle): the received records are lost, and a "
                "new exchange needs all workers. Restart all processes (launch --restart all "
                "--max-restarts N), or read files with data.Reader or a QueueDataset, which a "
                "restarted worker can continue"
            )
        exchange = MailExchange(self._board, self._role, room=room, wait_s=self._wait_s)
        exchange.join()
        found = self.all_gather(b"here")
        if len(found) < self.num_workers:
            raise PeerLostError(
                f"an exchange between workers needs all {self.num_workers} of them, but only "
                f"{len(found)} are left"
            )
        if self._keeps:
            self._put(begun, b"yes")
        exchange.begin()
        return exchange

    def leave(self) -> None:
        """Leave the other workers for good, without being considered lost."""
        if not self.is_alone and self._count:
            self._board.leave_group(self._member)

    def _forget(self, call: int, names: list[str]) -> None:
        if self._keeps:
            self._kept.append((call, names))
        else:
            self._delete(names)

    def _delete(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(NotFoundError):  # a predecessor reached this point
                self._board.delete_note(name)

    def _put(self, name: str, data: bytes) -> list[str]:
        if not self._count:  # otherwise another worker with this index could overwrite its notes
            try:
                self._board.advance_clock(self._member, 0)
            except ConfigError:
                if not self._keeps:
                    raise
                self._is_over = True
        first, *more = [
            data[i : i + _CHUNK_BYTES] for i in range(0, max(len(data), 1), _CHUNK_BYTES)
        ]
        names = _chunk_names(name, len(more))
        for chunk_name, chunk in zip(names, more, strict=True):
            self._board.put_note(chunk_name, chunk)
        self._board.put_note(name, b"%d:" % len(more) + first)  # last, when the data is complete
        return [*names, name]

    def _get_all(self, prefix: str) -> list[bytes]:
        """Return the data of all workers that are not lost, in rank order."""
        names = [f"{prefix}/{rank}" for rank in range(self._role.worker_num)]
        found = self._find_all(names)
        for rank, data in enumerate(found):
            self._check_found(data, names[rank], rank)
        return [data for data in found if data is not None]

    def _get(self, name: str, rank: int) -> bytes | None:
        found = self._find(name)
        self._check_found(found, name, rank)
        return found

    def _check_found(self, data: bytes | None, name: str, rank: int) -> None:
        if data is None and not self._member.continue_without_lost:
            raise PeerLostError(
                f"worker {rank} has stopped: it sent nothing for '{name}', in which all workers "
                "must take part"
            )

    def _find(self, name: str) -> bytes | None:
        return self._find_all([name])[0]

    def _find_all(self, names: list[str]) -> list[bytes | None]:
        """Return the data stored under each name; uses several requests if the data is long."""
        found: list[bytes | None] = []
        for name, note in zip(names, self._board.get_notes(names), strict=True):
            if note is None:
                found.append(None)
                continue
            count, _, data = note.partition(b":")
            chunk_names = _chunk_names(name, int(count))
            for begin in range(0, len(chunk_names), _CHUNKS_AT_ONCE):
                chunks = self._board.get_notes(chunk_names[begin : begin + _CHUNKS_AT_ONCE])
                data += b"".join(chunk or b"" for chunk in chunks)
            found.append(data)
        return found


def _chunk_names(name: str, count: int) -> list[str]:
    return [f"{name}/{index}" for index in range(count)]


class MailExchange:
    """One exchange between all workers, an `Exchange` for `sparsefleet.data`; created by `Meeting`.

    Server d % S keeps the mail of worker d, up to a limit, beyond which senders wait. Commands are
    executed exactly once, so nothing is lost or duplicated when a connection breaks. Every worker
    watches the others: when a worker is lost or fails, the exchange fails for all workers.

    room: identifies the exchange on the servers; each exchange needs its own room.
    wait_s: seconds that the exchange may stall.
    """

    def __init__(self, store: Store, role: RoleInfo, *, room: str, wait_s: float) -> None:
        self._store = store
        self._room = room
        self._wait_s = wait_s
        self._hold_s = min(_HOLD_S, wait_s)
        self._num_servers = store.num_servers
        self._failure: BaseException | None = None
        self._has_told = False
        self._close_deadline = math.inf
        self._lock = threading.Lock()
        self._is_over = threading.Event()  # all have received everything, or the exchange failed
        self.rank = role.index
        self.size = role.worker_num
        # Each worker is in the group twice: as a worker, whose clock is 1 when it has everything,
        # and as a watcher, which waits for all workers and learns who is lost.
        self._worker, self._watcher = (
            RoundMember(group=room, rank=rank, size=2 * self.size)
            for rank in (self.rank, self.size + self.rank)
        )
        self._watches = [
            threading.Thread(target=work, name="sparsefleet-watch", daemon=True)
            for work in (self._wait_for_all, self._wait_for_failure)
        ]

    def join(self) -> None:
        """Join the group; from now on, the servers notice if this worker is lost."""
        self._store.advance_clock(self._worker, 0)
        self._store.advance_clock(self._watcher, 0)

    def begin(self) -> None:
        """Start watching once all workers have joined."""
        for watch in self._watches:
            watch.start()

    def send(self, to: int, data: bytes) -> None:
        """Send data, and return when the worker's server has it."""
        self.send_all([(to, data)])

    def send_all(self, letters: Sequence[tuple[int, bytes]]) -> None:
        """Send data for several workers, and return when the servers have it.

        Sends one request per server, or more for large data.
        """
        for server in range(self._num_servers):
            there = [letter for letter in letters if self._server_of(letter[0]) == server]
            while there:
                num_bytes = list(accumulate(len(data) for _, data in there))
                count = max(1, bisect_right(num_bytes, _SENT_BYTES))
                some, there = there[:count], there[count:]
                self._put(server, some)

    def _put(self, server: int, letters: Sequence[tuple[int, bytes]]) -> None:
        deadline = monotonic() + self._wait_s
        sizes = [[to, len(data)] for to, data in letters]
        data = b"".join(data for _, data in letters)
        while not self._ask(server, "mail.put", data, letters=sizes)[0]["stored"]:
            names = ", ".join(str(to) for to, _ in letters[:8])
            self._check(deadline, f"one of the workers {names} has not read its messages")

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived, at least one."""
        deadline = monotonic() + self._wait_s
        while True:
            head, data = self._ask(self._own_server, "mail.take", to=self.rank)
            if head["sizes"]:
                return _split(data, head["sizes"])
            self._check(deadline, "no message has arrived from the other workers")

    def fail(self, error: BaseException) -> None:
        """Make the other workers raise PeerLostError with this error's text; never raises."""
        with self._lock:
            self._failure = self._failure or error
            self._is_over.set()
            if self._has_told:
                return
            self._has_told = True
        reason = f"worker {self.rank} abandoned '{self._room}': {type(error).__name__}: {error}"
        body = pack_body({"room": self._room, "reason": reason})
        for server in range(self._num_servers):
            with contextlib.suppress(SparseFleetError):  # others notice a lost server themselves
                self._store.command(server, "mail.fail", body, timeout_s=_TELL_S)

    def close(self) -> None:
        """Block until all workers have received everything.

        Raises an error if a worker is lost before then.
        """
        self._close_deadline = monotonic() + self._wait_s
        self._store.advance_clock(self._worker, 1)
        self._is_over.wait()  # both watches have deadlines
        if self._failure is not None:
            raise self._failure
        body = pack_body({"room": self._room, "to": self.rank})
        self._store.command(self._own_server, "mail.close", body, timeout_s=_CALL_S)
        for member in (self._worker, self._watcher):
            self._store.leave_group(member)

    def _ask(
        self, server: int, name: str, data: bytes = b"", **head: Any
    ) -> tuple[dict[str, Any], bytes]:
        if self._failure is not None:
            raise self._failure
        body = pack_body({"room": self._room, "wait_s": self._hold_s, **head}, data)
        timeout_s = self._hold_s + _CALL_S
        try:
            reply = self._store.command(server, name, body, timeout_s=timeout_s)
        except PeerLostError as error:
            self._failure = self._failure or error  # the first error is more informative
            raise self._failure from None
        return unpack_body(reply)

    def _check(self, deadline: float, what: str) -> None:
        """Raise an error if the exchange failed or the deadline has passed."""
        if self._failure is not None:
            raise self._failure
        if monotonic() > deadline:
            raise DeadlineError(f"{what} for {self._wait_s:g} s in '{self._room}'")

    def _wait_for_all(self) -> None:
        """Wait until every worker has received everything, or one is lost."""
        while self._failure is None:
            try:
                if self._have_all_closed():
                    self._is_over.set()
                    return
                self._check(
                    self._close_deadline, "not all workers have received all of their messages"
                )
            except BaseException as error:  # thread boundary: raised by the next call
                self.fail(error)

    def _have_all_closed(self) -> bool:
        try:
            self._store.advance_clock(self._watcher, 1, bound=0, timeout_s=self._hold_s)
        except DeadlineError:
            return False
        return True

    def _wait_for_failure(self) -> None:
        """Wait until this worker's mailbox is closed or a different worker reports a failure."""
        while not self._is_over.is_set():
            try:
                self._ask(self._own_server, "mail.check", to=self.rank)
            except BaseException as error:  # thread boundary: raised by the next call
                self.fail(error)

    @property
    def _own_server(self) -> int:
        return self._server_of(self.rank)

    def _server_of(self, worker: int) -> int:
        return worker % self._num_servers


def _split(data: bytes, sizes: list[int]) -> list[bytes]:
    letters = []
    begin = 0
    for size in sizes:
        letters.append(data[begin : begin + size])
        begin += size
    return letters
