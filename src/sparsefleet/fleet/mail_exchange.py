"""Bytes from every worker to every worker, by way of the servers."""

from __future__ import annotations

import contextlib
import math
import threading
from time import monotonic
from typing import Any

from sparsefleet.errors import DeadlineError, PeerLostError, SparseFleetError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.server.command_body import pack_body, unpack_body
from sparsefleet.store import RoundMember, Store

__all__ = ["MailExchange"]

# How long a server keeps a command before it says "not yet": well below the time of one try, so
# that waiting is never taken for a lost request.
_PATIENCE_S = 2.0
_CALL_S = 60.0  # for a command to be answered at all
_TELL_S = 5.0  # to tell a server of a failure


class MailExchange:
    """One exchange of all workers: an `Exchange` of `sparsefleet.data`; made by `Meeting`.

    The mail of worker d is kept by server d % S, up to a limit, then its senders wait. Commands
    are carried out exactly once, so nothing is lost or doubled where a connection breaks. Every
    worker watches the others: when one is lost, or fails, the exchange fails for all.

    room: what the servers call it; each exchange has another.
    wait_s: how long nothing may move.
    """

    def __init__(self, store: Store, role: RoleInfo, *, room: str, wait_s: float) -> None:
        self._store = store
        self._room = room
        self._wait_s = wait_s
        self._num_servers = store.num_servers
        self._failure: BaseException | None = None
        self._has_told = False
        self._close_deadline = math.inf
        self._lock = threading.Lock()
        self.rank = role.index
        self.size = role.worker_num
        # Each worker is in the group twice: as one that works, which counts to 1 when it has
        # everything, and as one that waits for all of the former and learns who is lost.
        self._worker, self._watcher = (
            RoundMember(group=room, rank=rank, size=2 * self.size)
            for rank in (self.rank, self.size + self.rank)
        )
        self._watch = threading.Thread(
            target=self._wait_for_all, name="sparsefleet-watch", daemon=True
        )

    def join(self) -> None:
        """The servers notice from now on if this worker is lost."""
        self._store.advance_clock(self._worker, 0)
        self._store.advance_clock(self._watcher, 0)

    def begin(self) -> None:
        """All workers have joined."""
        self._watch.start()

    def send(self, to: int, data: bytes) -> None:
        """Returns when the worker's server has the data."""
        deadline = monotonic() + self._wait_s
        while not self._ask("mail.put", to, data)[0]["stored"]:
            self._check(deadline, f"worker {to} has not taken its mail")

    def receive(self) -> list[bytes]:
        """What has come, at least one."""
        deadline = monotonic() + self._wait_s
        while True:
            head, data = self._ask("mail.take", self.rank)
            if head["sizes"]:
                return _split(data, head["sizes"])
            self._check(deadline, "no mail has come from the other workers")

    def fail(self, error: BaseException) -> None:
        """The others raise PeerLostError with what happened here; does not raise."""
        with self._lock:
            self._failure = self._failure or error
            if self._has_told:
                return
            self._has_told = True
        reason = f"worker {self.rank} ended '{self._room}': {type(error).__name__}: {error}"
        body = pack_body({"room": self._room, "reason": reason})
        for server in range(self._num_servers):
            with contextlib.suppress(SparseFleetError):  # whom a server is lost to learns it itself
                self._store.command(server, "mail.fail", body, timeout_s=_TELL_S)

    def close(self) -> None:
        """Returns when all workers have everything; raises if one was lost before."""
        self._close_deadline = monotonic() + self._wait_s
        self._store.advance_clock(self._worker, 1)
        self._watch.join()  # which has a deadline
        if self._failure is not None:
            raise self._failure
        body = pack_body({"room": self._room, "to": self.rank})
        self._store.command(self._server_of(self.rank), "mail.close", body, timeout_s=_CALL_S)
        for member in (self._worker, self._watcher):
            self._store.leave_group(member)

    def _ask(self, name: str, to: int, data: bytes = b"") -> tuple[dict[str, Any], bytes]:
        if self._failure is not None:
            raise self._failure
        head = {"room": self._room, "to": to, "wait_s": _PATIENCE_S}
        body = pack_body(head, data)
        try:
            reply = self._store.command(self._server_of(to), name, body, timeout_s=_CALL_S)
        except PeerLostError as error:
            self._failure = self._failure or error  # what was first says more
            raise self._failure from None
        return unpack_body(reply)

    def _check(self, deadline: float, what: str) -> None:
        """Before waiting on."""
        if self._failure is not None:
            raise self._failure
        if monotonic() > deadline:
            raise DeadlineError(f"{what} for {self._wait_s:g} s in '{self._room}'")

    def _wait_for_all(self) -> None:
        """Until every worker has everything, or one is lost."""
        while self._failure is None:
            try:
                if self._is_over():
                    return
                self._ask("mail.check", self.rank)
                self._check(self._close_deadline, "not all workers have all of their mail")
            except BaseException as error:  # the thread's edge: raised by the calls of the others
                self.fail(error)

    def _is_over(self) -> bool:
        try:
            self._store.advance_clock(self._watcher, 1, bound=0, timeout_s=_PATIENCE_S)
        except DeadlineError:
            return False
        return True

    def _server_of(self, worker: int) -> int:
        return worker % self._num_servers


def _split(data: bytes, sizes: list[int]) -> list[bytes]:
    letters = []
    begin = 0
    for size in sizes:
        letters.append(data[begin : begin + size])
        begin += size
    return letters
