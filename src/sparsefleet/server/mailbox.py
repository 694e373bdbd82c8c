"""Mail between workers: kept on a server until the one it is for takes it.

A room is one exchange of all workers, a box is what one of them has not taken yet. Commands, with
heads as in `command_body`:

    mail.put    room, to, wait_s + letter  ->  stored: true, or false if there was no room in time
    mail.take   room, to, wait_s           ->  sizes of the letters + letters; none if none came
    mail.check  room, to                   ->  nothing; as the others, it fails if the room has
    mail.fail   room, reason               ->  whoever waits in the room, or comes to it, fails
    mail.close  room, to                   ->  the worker has everything
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from sparsefleet.errors import PeerLostError, ProtocolError, SparseFleetError
from sparsefleet.server.command_body import pack_body, unpack_body
from sparsefleet.server.command_loop import Handler

__all__ = ["Mailboxes"]

_log = logging.getLogger("sparsefleet.server")
_MAX_FAILED_ROOMS = 1024
_MAX_TAKEN_BYTES = 8 << 20  # a reply holds at least one letter and stops growing here


class Asked(Protocol):
    """A command that waits for its answer: `_core.Command`."""

    @property
    def body(self) -> bytes: ...

    def reply(self, body: bytes) -> None: ...

    def fail(self, code: str, message: str) -> None: ...


@dataclass(slots=True)
class _Waiting:
    """A command that is answered later."""

    asked: Asked
    deadline: float
    letter: bytes = b""

    def answer(self, data: bytes = b"", **head: object) -> bool:
        """False if nobody waits for it any more."""
        try:
            self.asked.reply(pack_body(head, data))
        except SparseFleetError as error:
            _log.warning("an answer to a worker's mail command went nowhere: %s", error)
            return False
        return True


@dataclass(slots=True)
class _Box:
    letters: deque[bytes] = field(default_factory=deque)
    num_bytes: int = 0
    putting: deque[_Waiting] = field(default_factory=deque)
    taking: deque[_Waiting] = field(default_factory=deque)

    def waiting(self) -> Iterator[_Waiting]:
        yield from self.putting
        yield from self.taking


class Mailboxes:
    """All rooms of one server. Thread-safe; waits hold no thread.

    capacity_bytes: of letters in a box; one more letter waits at its sender.
    """

    def __init__(self, capacity_bytes: int = 16 << 20) -> None:
        self._capacity_bytes = capacity_bytes
        self._rooms: dict[str, dict[int, _Box]] = {}
        self._failed: dict[str, str] = {}
        self._changed = threading.Condition()
        self._expiring: threading.Thread | None = None

    def put(self, asked: Asked) -> None:
        """Keeps a letter; answers when there is room for it, or after `wait_s`."""
        head, letter = unpack_body(asked.body)
        with self._changed:
            box = self._box(head)
            waiting = _Waiting(asked, self._deadline(head), letter)
            box.putting.append(waiting)
            self._settle(box)

    def take(self, asked: Asked) -> None:
        """Gives out letters; answers when there is one, or after `wait_s`."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            box = self._box(head)
            box.taking.append(_Waiting(asked, self._deadline(head)))
            self._settle(box)

    def check(self, asked: Asked) -> None:
        """Tells whether the room has failed."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            self._box(head)
        asked.reply(pack_body({}))

    def fail(self, asked: Asked) -> None:
        """Ends the room; its letters are gone."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            room, reason = str(head["room"]), str(head["reason"])
            self._failed.setdefault(room, reason)
            while len(self._failed) > _MAX_FAILED_ROOMS:
                del self._failed[next(iter(self._failed))]
            for box in self._rooms.pop(room, {}).values():
                for waiting in box.waiting():
                    waiting.asked.fail("PEER_LOST", self._failed[room])
        asked.reply(pack_body({}))

    def close(self, asked: Asked) -> None:
        """The box is no longer needed."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            boxes = self._rooms.get(str(head["room"]), {})
            boxes.pop(int(head["to"]), None)
            if not boxes:
                self._rooms.pop(str(head["room"]), None)
        asked.reply(pack_body({}))

    def handlers(self) -> dict[str, Handler]:
        """By the name of their command."""
        calls = (self.put, self.take, self.check, self.fail, self.close)
        return {f"mail.{call.__name__}": call for call in calls}

    @property
    def num_rooms(self) -> int:
        """Rooms that somebody is in."""
        with self._changed:
            return len(self._rooms)

    def _box(self, head: dict[str, object]) -> _Box:
        room, to = head.get("room"), head.get("to")
        if not isinstance(room, str) or not isinstance(to, int):
            raise ProtocolError(f"mail needs a room and a worker, got {head}")
        if room in self._failed:
            raise PeerLostError(self._failed[room])
        return self._rooms.setdefault(room, {}).setdefault(to, _Box())

    def _deadline(self, head: dict[str, object]) -> float:
        wait_s = head.get("wait_s")
        if not isinstance(wait_s, (int, float)) or not 0 <= wait_s <= 3600:
            raise ProtocolError(f"wait_s must be in 0..3600, got {wait_s!r}")
        return monotonic() + wait_s

    def _settle(self, box: _Box) -> None:
        """Answers what can be answered now; has the rest watched."""
        moved = True
        while moved:
            moved = False
            while box.putting and self._has_room(box, box.putting[0].letter):
                waiting = box.putting.popleft()
                box.letters.append(waiting.letter)
                box.num_bytes += len(waiting.letter)
                waiting.answer(stored=True)
                moved = True
            if box.letters and box.taking:
                self._deliver(box, box.taking.popleft())
                moved = True
        if box.putting or box.taking:
            self._watch()

    def _has_room(self, box: _Box, letter: bytes) -> bool:
        return not box.letters or box.num_bytes + len(letter) <= self._capacity_bytes

    def _deliver(self, box: _Box, taking: _Waiting) -> None:
        letters: list[bytes] = []
        total = 0
        for letter in box.letters:
            if letters and total + len(letter) > _MAX_TAKEN_BYTES:
                break
            letters.append(letter)
            total += len(letter)
        sizes = [len(letter) for letter in letters]
        if taking.answer(b"".join(letters), sizes=sizes):
            box.num_bytes -= total
            for _ in letters:
                box.letters.popleft()

    # -- time ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._expiring is None:
            self._expiring = threading.Thread(
                target=self._expire, name="sparsefleet-mail", daemon=True
            )
            self._expiring.start()
        self._changed.notify()

    def _expire(self) -> None:
        """Answers those who have waited long enough; ends when nobody waits."""
        with self._changed:
            while True:
                now = monotonic()
                deadlines = []
                for boxes in self._rooms.values():
                    for box in boxes.values():
                        self._expire_box(box, now)
                        deadlines += [waiting.deadline for waiting in box.waiting()]
                if not deadlines:
                    self._expiring = None
                    return
                self._changed.wait(max(0.0, min(deadlines) - now))

    def _expire_box(self, box: _Box, now: float) -> None:
        for waiting in [one for one in box.putting if one.deadline <= now]:
            box.putting.remove(waiting)
            waiting.answer(stored=False)
        for waiting in [one for one in box.taking if one.deadline <= now]:
            box.taking.remove(waiting)
            waiting.answer(sizes=[])
