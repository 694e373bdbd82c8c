"""Mail between workers, stored on a server until the recipient takes it.

A room is one exchange between all workers; a box holds the letters that a worker has not taken.
The first client to take from a box owns it: while its session is alive, no other client may take
from the box or close it. Commands, with bodies as in `command_loop`:

    mail.put    room, to, wait_s + letter  ->  stored: false if the box stayed full until wait_s
    mail.put    room, letters, wait_s      ->  the same for letters to several workers, all or none:
                + letters                      `letters` lists (to, bytes) of each
    mail.take   room, to, wait_s           ->  sizes + letters; none if no letter arrived in time
    mail.check  room, to, wait_s           ->  nothing, when the worker has closed its box or after
                                               wait_s; fails, like the others, if the room failed
    mail.fail   room, reason               ->  all pending and later calls in the room fail
    mail.close  room, to                   ->  the worker has received everything; commands that
                                               still wait at its box fail
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from sparsefleet.errors import PeerLostError, ProtocolError, SparseFleetError
from sparsefleet.server.command_loop import (
    Answered,
    Handler,
    HasSession,
    Holders,
    pack_body,
    unpack_body,
)

__all__ = ["Mailboxes"]

_log = logging.getLogger("sparsefleet.server")
_MAX_FAILED_ROOMS = 1024
_MAX_TAKEN_BYTES = 8 << 20  # size limit for a reply with more than one letter


class Asked(Protocol):
    """A command waiting for its reply: `_core.Command`."""

    @property
    def body(self) -> bytes: ...

    @property
    def session(self) -> int: ...

    def reply(self, body: bytes) -> None: ...

    def fail(self, code: str, message: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    """A command to be answered later."""

    asked: Asked
    deadline: float
    letters: list[tuple[_Box, list[bytes]]] = field(default_factory=list)
    """For a put, the letters for each box. The command is in the queues of all these boxes."""

    def answer(self, data: bytes = b"", **head: object) -> bool:
        """Send the reply; return False if the client is gone."""
        try:
            self.asked.reply(pack_body(head, data))
        except SparseFleetError as error:
            _log.warning("a reply to a worker's mail command could not be delivered: %s", error)
            return False
        return True


@dataclass(slots=True, eq=False)
class _Box:
    letters: deque[bytes] = field(default_factory=deque)
    num_bytes: int = 0
    putting: deque[_Waiting] = field(default_factory=deque)
    taking: deque[_Waiting] = field(default_factory=deque)

    def waiting(self) -> Iterator[_Waiting]:
        yield from self.putting
        yield from self.taking


class Mailboxes:
    """All rooms of one server. Thread-safe; waiting commands occupy no thread.

    capacity_bytes: limit on the letters in a box; senders wait while it is full.
    has_session: returns whether the session of a client is alive.
    """

    def __init__(
        self, capacity_bytes: int = 16 << 20, *, has_session: HasSession = lambda _: True
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._holders = Holders(has_session)
        self._rooms: dict[str, dict[int, _Box]] = {}
        self._failed: dict[str, str] = {}
        self._checking: dict[tuple[str, int], list[_Waiting]] = {}  # by room and worker
        self._changed = threading.Condition()
        self._expiring: threading.Thread | None = None

    def put(self, asked: Asked) -> None:
        """Store letters; reply when they are stored, or after `wait_s`.

        Letters to several workers are stored together, which keeps the log in the order of effects.
        Earlier commands come first in every box, so there is no circular wait.
        """
        head, data = unpack_body(asked.body)
        with self._changed:
            waiting = _Waiting(asked, self._deadline(head), self._letters(head, data))
            boxes = [box for box, _ in waiting.letters]
            for box in boxes:
                box.putting.append(waiting)
            self._settle(boxes)

    def take(self, asked: Asked) -> None:
        """Reply with letters as soon as there is a letter, or after `wait_s`."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            box = self._box(head)
            self._claim(asked, str(head["room"]), int(head["to"]))
            box.taking.append(_Waiting(asked, self._deadline(head)))
            self._settle([box])

    def check(self, asked: Asked) -> None:
        """Raise as soon as the room fails; reply when the box is closed, or after `wait_s`."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            place = self._place(head)
            self._checking.setdefault(place, []).append(_Waiting(asked, self._deadline(head)))
            self._watch()

    def fail(self, asked: Asked) -> None:
        """Record that the room has failed, and drop its letters."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            self._fail(str(head["room"]), str(head["reason"]))
            # Done here to keep the answers in the log in the order of their effects.
            asked.reply(pack_body({}))

    def close(self, asked: Asked) -> None:
        """Delete the box of a worker that has received everything."""
        head, _ = unpack_body(asked.body)
        with self._changed:
            room, to = str(head["room"]), int(head["to"])
            self._claim(asked, room, to)
            self._close(room, to)
            asked.reply(pack_body({}))

    def _fail(self, room: str, reason: str) -> None:
        self._failed.setdefault(room, reason)
        while len(self._failed) > _MAX_FAILED_ROOMS:
            del self._failed[next(iter(self._failed))]
        failing: dict[int, _Waiting] = {}  # a put may be in several boxes
        for to, box in self._rooms.pop(room, {}).items():
            self._holders.release((room, to))
            failing |= {id(waiting): waiting for waiting in box.waiting()}
        for place in [place for place in self._checking if place[0] == room]:
            failing |= {id(waiting): waiting for waiting in self._checking.pop(place)}
        for waiting in failing.values():
            waiting.asked.fail("PEER_LOST", self._failed[room])

    def _close(self, room: str, to: int) -> None:
        self._holders.release((room, to))
        boxes = self._rooms.get(room, {})
        closed = boxes.pop(to, None)
        for checking in self._checking.pop((room, to), []):
            checking.answer()
        if not boxes:
            self._rooms.pop(room, None)
        if closed is not None:
            self._fail_waiting(closed, f"'{room}': worker {to} has closed its mailbox")

    def _fail_waiting(self, closed: _Box, reason: str) -> None:
        """Fail the commands that wait on a closed mailbox and would otherwise never be answered."""
        for waiting in list(closed.waiting()):
            others = [other for other, _ in waiting.letters if other is not closed]
            for other in others:
                other.putting.remove(waiting)
            waiting.asked.fail("NOT_FOUND", reason)
            self._settle(others)  # it may have been blocking others there

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by command name."""
        calls = (self.put, self.take, self.check, self.fail, self.close)
        return {f"mail.{call.__name__}": call for call in calls}

    # -- state that survives the server; see `command_loop`
    # ----------------------------------------

    def hold(self) -> threading.Condition:
        """Return a context manager; while it is open, no letter is stored or taken."""
        return self._changed

    def dump(self) -> bytes:
        """Return the rooms with their letters, the owners of the boxes, and the failed rooms."""
        boxes = [(room, to, box) for room, by in self._rooms.items() for to, box in by.items()]
        head = {
            "boxes": [[room, to, [len(one) for one in box.letters]] for room, to, box in boxes],
            "held": [[*thing, session] for thing, session in self._holders.dump()],
            "failed": self._failed,
        }
        return pack_body(head, b"".join(one for _, _, box in boxes for one in box.letters))

    def load(self, state: bytes) -> None:
        """Restore the state that `dump` returned."""
        head, letters = unpack_body(state)
        self._rooms, self._failed = {}, dict(head["failed"])
        self._holders.load(((room, to), session) for room, to, session in head["held"])
        at = 0
        for room, to, sizes in head["boxes"]:
            box = self._rooms.setdefault(room, {}).setdefault(to, _Box())
            for size in sizes:
                self._keep(box, letters[at : at + size])
                at += size

    def replay(self, answered: Answered) -> None:
        """Repeat the effect of a command that was answered before a restart."""
        head, data = unpack_body(answered.body)
        reply, _ = unpack_body(answered.reply)
        room, to = str(head["room"]), int(head.get("to", -1))
        if answered.name == "mail.put" and reply["stored"]:
            for box, letters in self._letters(head, data):
                for letter in letters:
                    self._keep(box, letter)
        elif answered.name == "mail.take":
            self._holders.load([*self._holders.dump(), ((room, to), answered.session)])
            box = self._box(head)
            for _ in reply["sizes"]:
                box.num_bytes -= len(box.letters.popleft())
        elif answered.name == "mail.fail":
            self._fail(room, str(head["reason"]))
        elif answered.name == "mail.close":
            self._close(room, to)

    @staticmethod
    def _keep(box: _Box, letter: bytes) -> None:
        box.letters.append(letter)
        box.num_bytes += len(letter)

    @property
    def num_rooms(self) -> int:
        """Return the number of rooms in use."""
        with self._changed:
            return len(self._rooms)

    def _place(self, head: dict[str, object]) -> tuple[str, int]:
        room, to = head.get("room"), head.get("to")
        if not isinstance(room, str) or not isinstance(to, int):
            raise ProtocolError(f"mail needs a room and a worker, got {head}")
        if room in self._failed:
            raise PeerLostError(self._failed[room])
        return room, to

    def _box(self, head: dict[str, object]) -> _Box:
        room, to = self._place(head)
        return self._rooms.setdefault(room, {}).setdefault(to, _Box())

    def _letters(self, head: dict[str, Any], data: bytes) -> list[tuple[_Box, list[bytes]]]:
        """Return the letters of a put, by box."""
        sizes = head.get("letters", [[head.get("to"), len(data)]])
        if not isinstance(sizes, list) or not sizes or sum(size for _, size in sizes) != len(data):
            raise ProtocolError(
                f"mail has {len(data)} bytes, which does not match the letter sizes {sizes}"
            )
        found: dict[int, tuple[_Box, list[bytes]]] = {}
        at = 0
        for to, size in sizes:
            box = self._box({"room": head.get("room"), "to": to})
            found.setdefault(to, (box, []))[1].append(data[at : at + size])
            at += size
        return list(found.values())

    def _claim(self, asked: Asked, room: str, to: int) -> None:
        self._holders.claim((room, to), asked.session, f"'{room}': the mail of worker {to}")

    def _deadline(self, head: dict[str, object]) -> float:
        wait_s = head.get("wait_s")
        if not isinstance(wait_s, (int, float)) or not 0 <= wait_s <= 3600:
            raise ProtocolError(f"wait_s must be in 0..3600, got {wait_s!r}")
        return monotonic() + wait_s

    def _settle(self, changed: Iterable[_Box]) -> None:
        """Answer the commands that can be answered now, and start the timer for the rest."""
        boxes = deque(changed)
        are_some_left = False
        while boxes:
            box = boxes.popleft()
            while box.putting and self._can_store(box.putting[0]):
                stored = box.putting[0]
                for other, letters in stored.letters:
                    other.putting.popleft()
                    for letter in letters:
                        self._keep(other, letter)
                    if other is not box:
                        boxes.append(other)
                stored.answer(stored=True)
            if box.letters and box.taking:
                self._deliver(box, box.taking.popleft())
                boxes.append(box)
            are_some_left = are_some_left or bool(box.putting or box.taking)
        if are_some_left:
            self._watch()

    def _can_store(self, putting: _Waiting) -> bool:
        """Return whether the command is first in line at all its boxes, and all have room."""
        return all(
            box.putting[0] is putting
            and (not box.letters or box.num_bytes + sum(map(len, letters)) <= self._capacity_bytes)
            for box, letters in putting.letters
        )

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

    def _watch(self) -> None:
        if self._expiring is None:
            self._expiring = threading.Thread(
                target=self._expire, name="sparsefleet-mail", daemon=True
            )
            self._expiring.start()
        self._changed.notify()

    def _expire(self) -> None:
        """Answer commands whose time is up; return when no command is waiting."""
        with self._changed:
            while True:
                now = monotonic()
                deadlines = []
                for boxes in self._rooms.values():
                    for box in boxes.values():
                        self._expire_box(box, now)
                        deadlines += [waiting.deadline for waiting in box.waiting()]
                for place, checking in list(self._checking.items()):
                    for waiting in [one for one in checking if one.deadline <= now]:
                        checking.remove(waiting)
                        waiting.answer()
                    deadlines += [waiting.deadline for waiting in checking]
                    if not checking:
                        del self._checking[place]
                if not deadlines:
                    self._expiring = None
                    return
                self._changed.wait(max(0.0, min(deadlines) - now))

    def _expire_box(self, box: _Box, now: float) -> None:
        for waiting in [one for one in box.putting if one.deadline <= now]:
            if waiting not in box.putting:
                continue  # stored when an earlier one was removed
            others = [other for other, _ in waiting.letters]
            for other in others:
                other.putting.remove(waiting)
            waiting.answer(stored=False)
            self._settle(others)  # it may have been blocking others there
        for waiting in [one for one in box.taking if one.deadline <= now]:
            box.taking.remove(waiting)
            waiting.answer(sizes=[])
