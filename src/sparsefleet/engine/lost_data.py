"""Trains on data left by lost workers, in a job that continues without them.

After each pass, the remaining workers agree on who is lost and divide the unfinished data, which is
the data that not all servers have applied. A worker that takes over such data continues to track
it: the batches have their own streams, in the session of the worker that trains on them. The worker
also takes over the lost worker's session, so the servers reject a process that was only presumed
lost when it comes back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsefleet.engine.applied_batches import AppliedBatches
from sparsefleet.engine.batch_source import BatchFeed, BatchSource, DataPosition, PassStart
from sparsefleet.errors import NotFoundError, PeerLostError
from sparsefleet.fleet.incarnation import Incarnation, WorkerRecord
from sparsefleet.modes.mode_setting import ROUNDS, SOURCES
from sparsefleet.store import RemoteStore, RemoteStoreConfig
from sparsefleet.store.own_loop import report_left_out
from sparsefleet.store.rows import DataMark, join_marks, marks_without

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel
    from sparsefleet.engine.events import Attendance

__all__ = ["LeftBehind", "LeftOut", "LostData", "add_left_out", "raise_left_out"]

_log = logging.getLogger("sparsefleet.engine")
_FILES = 2**40  # number of streams for one worker's data, which exceeds its number of files


class LeftOut(NamedTuple):
    """Data of a lost worker that was not trained on.

    >>> str(LeftOut(3, "batches", "they are gone").and_then(LeftOut(4, "batches", "still gone")))
    '7 batches: still gone'
    """

    number: int | None
    """How much was left out; None if the length of the data is unknown."""
    unit: str
    why: str

    def and_then(self, later: LeftOut) -> LeftOut:
        """Return the total of this data and the data skipped in a later pass."""
        is_known = self.number is not None and later.number is not None and self.unit == later.unit
        number = (self.number or 0) + (later.number or 0) if is_known else None
        return later._replace(number=number)

    def __str__(self) -> str:
        how_many = "an unknown number of" if self.number is None else f"{self.number:,}"
        return f"{how_many} {self.unit}: {self.why}"


class LeftBehind:
    """The part of a pass that a lost worker left unfinished, for the worker that takes it over.

    source: the lost worker's data; None if only its own process could read it.
    """

    def __init__(self, rank: int, source: BatchSource | None, start: PassStart) -> None:
        self.rank = rank
        self._source = source
        self._start = start

    def begin(self) -> BatchFeed | None:
        """Return the batches that are left, or None if no worker can read them."""
        return None if self._source is None else self._source.begin_pass(self._start)


class LostData:
    """The data of lost workers, as seen by one of the remaining workers. Not thread-safe."""

    def __init__(
        self, distributed: BoundModel, incarnation: Incarnation, attendance: Attendance
    ) -> None:
        self._distributed = distributed
        self._job = incarnation.job
        self._attendance = attendance
        self.left_out: dict[int, LeftOut] = {}
        """The lost workers whose data is skipped in this pass."""

    def divide(self, epoch: int) -> tuple[bool, int | None]:
        """Return whether lost workers left any data in this pass.

        Also return the worker whose data this worker takes over, if any. Must be called by all
        workers, after the pass.
        """
        role, meeting = self._distributed.role, self._distributed.meeting

        def rule(given: list[bytes]) -> bytes:
            reported = [json.loads(part) for part in given]
            present = sorted(each["rank"] for each in reported)
            left_out = {rank: done for each in reported for rank, done in each["left_out"].items()}
            lost = sorted(set(range(role.worker_num)) - set(present))
            left = [rank for rank in lost if self._note(epoch, rank, "done") is None]
            takes = dict(
                zip(left, present, strict=False)
            )  # one lost worker for each remaining worker; the rest come later
            return json.dumps({"present": present, "takes": takes, "left_out": left_out}).encode()

        mine = {"rank": role.index, "left_out": self.left_out}
        answer = meeting.decide(json.dumps(mine).encode(), rule, patient=True)
        assert answer is not None, "this worker is left"
        decided = json.loads(answer)
        self._attendance.update(decided["present"])
        self.left_out |= {int(rank): LeftOut(*each) for rank, each in decided["left_out"].items()}
        takes: dict[str, int] = decided["takes"]
        own = [int(rank) for rank, taker in takes.items() if taker == role.index]
        return bool(takes), own[0] if own else None

    def take(self, rank: int, epoch: int, source: BatchSource) -> LeftBehind:
        """Take over a lost worker's data.

        source: this worker's own data; the lost worker's data is read in the same way.
        """
        record = WorkerRecord(self._distributed.board, self._who(rank)).read() or {}
        takers = json.loads(self._note(epoch, rank, "takers") or b"[]")
        mine = self._distributed.role.index
        base = self._base(rank)
        lost = [self._marks_of(rank, epoch, base=0)]
        lost += [self._marks_of(taker, epoch, base=base) for taker in takers if taker != mine]
        # A push that only some servers have applied is completed: this worker pushes the same data
        # again, and each server records its part in this worker's session.
        own = self._marks_of(mine, epoch, base=base)
        found = [[mark for marks in each for mark in marks] for each in zip(*lost, strict=True)]
        both = list(zip(found, own, strict=True))
        self._adopt([marks_without(marks, known) for marks, known in both], base)
        servers = [join_marks([*marks, *known]) for marks, known in both]
        if mine not in takers:
            self._put(epoch, rank, "takers", json.dumps([*takers, mine]).encode())
        is_in_pass = record.get("pass") == epoch and record.get("position") is not None
        position = DataPosition.from_json(record["position"]) if is_in_pass else DataPosition()
        applied = AppliedBatches(
            servers,
            epoch=epoch,
            kinds=self._distributed.mode.data_streams,
            base=self._base(rank),
        )
        theirs = source.of_worker(rank, record.get("files"))
        if theirs is None:
            total = record.get("num_batches")
            missing = None if total is None else max(0, total - applied.count)
            trained = f"it had trained on {applied.count} of them in the last pass"
            why = f"only its own process could read them; {trained}"
            self.left_out[rank] = LeftOut(missing, "batches", why)
            _log.error("worker %d is lost; its data is skipped: %s", rank, self.left_out[rank])
        else:
            _log.warning("worker %d is lost; this worker trains on the rest of its data", rank)
        start = PassStart(positions=[position], applied=applied)
        return LeftBehind(rank, theirs, start)

    def finished(self, left: LeftBehind, epoch: int) -> None:
        """Record that the data was trained on and applied, or that no worker can read it."""
        self._put(epoch, left.rank, "done", b"")

    def _adopt(self, by_server: Sequence[Sequence[DataMark]], base: int) -> None:
        store = self._distributed.store
        assert isinstance(store, RemoteStore)
        store.adopt_data(
            [
                [
                    (base + stream, epoch, begin, end)
                    for stream, epoch, begin, end in marks
                    if stream % SOURCES != ROUNDS
                ]
                for marks in by_server
            ]
        )

    def _marks_of(self, rank: int, epoch: int, *, base: int) -> list[list[DataMark]]:
        """Return, for each server, which data of worker `rank` it has applied.

        Only streams from `base` on are considered.
        """
        if rank == self._distributed.role.index:
            store = self._distributed.store
            assert isinstance(store, RemoteStore)
            found: Sequence[Sequence[DataMark]] = store.applied_data()
        else:
            found = self._marks_of_lost(rank, epoch)
        end = base + SOURCES * _FILES
        return [
            [
                (stream - base, mark_epoch, begin, last)
                for stream, mark_epoch, begin, last in marks
                if base <= stream < end and mark_epoch == epoch
            ]
            for marks in found
        ]

    def _marks_of_lost(self, rank: int, epoch: int) -> list[list[DataMark]]:
        kept = self._note(epoch, rank, "applied")
        if kept is None:
            role = self._distributed.role
            session = f"{self._job}/worker-{rank}/{self._distributed.name}"
            with RemoteStore(
                role.server_endpoints,
                name=f"worker-{role.index} for {rank}",
                config=RemoteStoreConfig(session=session),
            ) as theirs:
                kept = json.dumps(theirs.applied_data()).encode()
                self._put(epoch, rank, "applied", kept)
        found: list[list[DataMark]] = [[tuple(m) for m in marks] for marks in json.loads(kept)]
        return found

    def _base(self, rank: int) -> int:
        return SOURCES * _FILES * (1 + rank)

    def _who(self, rank: int) -> str:
        return f"{self._job}/{self._distributed.name}/worker-{rank}"

    def _note(self, epoch: int, rank: int, what: str) -> bytes | None:
        try:
            return self._distributed.board.get_note(self._name(epoch, rank, what))
        except NotFoundError:
            return None

    def _put(self, epoch: int, rank: int, what: str, value: Any) -> None:
        self._distributed.board.put_note(self._name(epoch, rank, what), value)

    def _name(self, epoch: int, rank: int, what: str) -> str:
        return f"lost/{self._who(rank)}/{epoch}/{what}"


def add_left_out(so_far: dict[int, LeftOut], more: Mapping[int, LeftOut]) -> None:
    """Add the data skipped in one more pass, and report it to the launcher."""
    for rank, new in more.items():
        before = so_far.get(rank)
        so_far[rank] = new if before is None else before.and_then(new)
        report_left_out(rank, f"worker {rank}, {so_far[rank]}")


def raise_left_out(left_out: dict[int, LeftOut]) -> None:
    """Raise PeerLostError if data was not trained on. Call it once, at the end of training."""
    which = "; ".join(f"worker {rank}, {each}" for rank, each in left_out.items())
    left_out.clear()
    raise PeerLostError(
        f"training has ended, but some data of lost workers was not used ({which}). Use "
        "data.Reader or a Dataset, whose files other workers can take over"
    )
