"""How the workers of a job meet: by a clock that all can see, and notes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparsefleet.errors import (
    ConfigError,
    DeadlineError,
    NotFoundError,
    PeerLostError,
    code_name_of,
    error_named,
)
from sparsefleet.fleet.board import Board
from sparsefleet.fleet.mail_exchange import MailExchange
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.store import RoundMember, Store

__all__ = ["Meeting"]

_log = logging.getLogger("sparsefleet.fleet")
_CHUNK_BYTES = 60_000  # a note holds 64 KiB


class Meeting:
    """The workers of one job, met through their servers or, without any, by a board of their own.

    All workers must make the same calls in the same order; each call is numbered, so that a
    worker that is one ahead is not mixed up with one that is behind. `name` keeps the meetings of
    one training apart from those of another on the same board.

    One that is lost once all have met ends the wait of the others with PeerLostError or, with
    servers and `go_on_without_lost`, is waited for no longer.

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
        go_on_without_lost: bool = False,
    ) -> None:
        self._board = board
        self._name = f"fleet/{name}"
        self._role = role
        self._wait_s = wait_s
        self._count = 0
        self._member = RoundMember(
            group=self._name,
            rank=role.index,
            size=role.worker_num,
            go_on_without_lost=go_on_without_lost,
        )

    @property
    def name(self) -> str:
        """What keeps it apart from others on the same board."""
        return self._name

    @property
    def num_workers(self) -> int:
        """All workers, also those that are lost."""
        return self._role.worker_num

    @property
    def goes_on_without_lost(self) -> bool:
        return self._member.go_on_without_lost

    @property
    def is_alone(self) -> bool:
        return self._role.worker_num == 1

    def barrier(self, *, patient: bool = False) -> None:
        """Returns when every worker has called it; raises after `wait_s`, saying who is missing.

        patient: the others may be busy for hours; it goes on waiting as long as they are there.
        """
        self._count += 1
        if self.is_alone:
            return
        while True:
            try:
                self._board.advance_clock(
                    self._member, self._count, bound=0, timeout_s=self._wait_s
                )
                return
            except DeadlineError as error:
                if not patient:
                    raise DeadlineError(
                        "start, evaluate, save, load, settle and barriers are meetings that all "
                        f"workers must come to, in the same order: {error}"
                    ) from error
                _log.info("still waiting: %s", error)

    def all_gather(self, data: bytes) -> list[bytes]:
        """What every worker gave, by rank, on every worker; without those that are lost."""
        if not isinstance(data, bytes):
            raise ConfigError(f"all_gather takes bytes, got {type(data).__name__}")
        if self.is_alone:
            return [data]
        prefix = f"{self._name}/gather/{self._count + 1}"
        names = self._put(f"{prefix}/{self._role.index}", data)
        self.barrier()
        found = [self._get(f"{prefix}/{rank}", rank) for rank in range(self._role.worker_num)]
        self.barrier()  # notes may go only when everybody has read them
        for name in names:
            self._board.delete_note(name)
        return [part for part in found if part is not None]

    def decide(
        self, data: bytes, rule: Callable[[list[bytes]], bytes], *, patient: bool = False
    ) -> bytes | None:
        """The first worker's answer to what all workers gave, on every worker. All must call it.

        `rule` gets what each gave, by rank, without those that are lost. It runs in the first
        worker, when all are there and before any goes on; what it raises is raised on all workers.
        None if the first worker is lost and the others go on without it. For `patient` see
        `barrier`.

        >>> from sparsefleet.store import LocalStore
        >>> meeting = Meeting(LocalStore(), RoleInfo(kind="local"))
        >>> meeting.decide(b"3", lambda given: max(given) + b" wins")
        b'3 wins'
        """
        if self.is_alone:
            return rule([data])
        prefix = f"{self._name}/decide/{self._count + 1}"
        names = self._put(f"{prefix}/{self._role.index}", data)
        self.barrier(patient=patient)
        failure: Exception | None = None
        if self._role.is_first_worker:
            found = [self._get(f"{prefix}/{rank}", rank) for rank in range(self._role.worker_num)]
            try:
                answer = b"+" + rule([part for part in found if part is not None])
            except Exception as error:  # raised again below, when the others know of it
                failure = error
                answer = f"-{code_name_of(error) or 'INTERNAL'} {error}".encode()
            names += self._put(f"{prefix}/answer", answer)
        self.barrier(patient=patient)
        told = self._get(f"{prefix}/answer", 0)
        self.barrier()  # notes may go only when everybody has read them
        for name in names:
            self._board.delete_note(name)
        if failure is not None:
            raise failure
        if told is not None and told.startswith(b"-"):
            code, _, message = told[1:].decode().partition(" ")
            raise error_named(code, f"in worker 0: {message}")
        return None if told is None else told[1:]

    def open_exchange(self) -> MailExchange:
        """An exchange of bytes between all workers, each with each. All must call it."""
        if not isinstance(self._board, Store):
            raise ConfigError(
                "an exchange between workers, as a global shuffle makes, goes through servers, and "
                "this job has none: start it with servers, or shuffle the files of each worker"
            )
        exchange = MailExchange(
            self._board,
            self._role,
            room=f"{self._name}/mail/{self._count + 1}",
            wait_s=self._wait_s,
        )
        exchange.join()
        found = self.all_gather(b"here")
        if len(found) < self.num_workers:
            raise PeerLostError(
                f"an exchange between workers needs all {self.num_workers} of them, but only "
                f"{len(found)} are left"
            )
        exchange.begin()
        return exchange

    def leave(self) -> None:
        """Meets nobody any more, and is not taken for lost."""
        if not self.is_alone and self._count:
            self._board.leave_group(self._member)

    def _put(self, name: str, data: bytes) -> list[str]:
        chunks = [data[i : i + _CHUNK_BYTES] for i in range(0, len(data), _CHUNK_BYTES)]
        names = [f"{name}/{index}" for index in range(len(chunks))]
        for chunk_name, chunk in zip(names, chunks, strict=True):
            self._board.put_note(chunk_name, chunk)
        self._board.put_note(name, str(len(chunks)).encode())
        return [*names, name]

    def _get(self, name: str, rank: int) -> bytes | None:
        try:
            count = int(self._board.get_note(name))
        except NotFoundError as error:
            if self._member.go_on_without_lost:
                return None
            raise PeerLostError(
                f"worker {rank} has stopped: it gave nothing to '{name}', which all workers meet in"
            ) from error
        return b"".join(self._board.get_note(f"{name}/{index}") for index in range(count))
