"""Trains the data that lost workers have left, in a job that continues without them.

After each pass the workers that are left agree on who is lost, and divide what those have left: the
part of their data that no server, or not every server, has applied. A worker that takes over the
data of another continues its account: the batches have their own streams, in the session of the
worker that trains them. It also takes over the session of the lost one, so that a process that was
only taken for lost is refused when it comes back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparsefleet.engine.applied_batches import AppliedBatches
from sparsefleet.engine.batch_source import BatchFeed, BatchSource, DataPosition, PassStart
from sparsefleet.errors import NotFoundError, PeerLostError
from sparsefleet.fleet.incarnation import Incarnation, WorkerRecord
from sparsefleet.modes.mode_setting import ROUNDS, SOURCES
from sparsefleet.store import RemoteStore, RemoteStoreConfig
from sparsefleet.store.rows import DataMark, join_marks

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel
    from sparsefleet.engine.events import Attendance

__all__ = ["LeftBehind", "LostData", "raise_left_out"]

_log = logging.getLogger("sparsefleet.engine")
_FILES = 2**40  # streams of one worker's data: more than it has files


class LeftBehind:
    """What one lost worker has left of a pass, for the worker that takes it over.

    source: its data; None if only its own process could read it.
    """

    def __init__(self, rank: int, source: BatchSource | None, start: PassStart) -> None:
        self.rank = rank
        self._source = source
        self._start = start

    def begin(self) -> BatchFeed | None:
        """Return its batches; None if nobody can read them."""
        return None if self._source is None else self._source.begin_pass(self._start)


class LostData:
    """The data of lost workers, for one worker of those that are left. Not thread-safe."""

    def __init__(
        self, distributed: BoundModel, incarnation: Incarnation, attendance: Attendance
    ) -> None:
        self._distributed = distributed
        self._job = incarnation.job
        self._attendance = attendance
        self.left_out: dict[int, str] = {}
        """Lost workers whose data nobody else can read, and what was trained of it."""

    def divide(self, epoch: int) -> tuple[bool, int | None]:
        """Return whether anything is left of the data of lost workers in this pass, and the worker
        whose data this one takes over, if any. All workers call it, after the pass.
        """
        role, meeting = self._distributed.role, self._distributed.meeting

        def rule(given: list[bytes]) -> bytes:
            told = [json.loads(part) for part in given]
            present = sorted(each["rank"] for each in told)
            left_out = {rank: done for each in told for rank, done in each["left_out"].items()}
            lost = sorted(set(range(role.worker_num)) - set(present))
            left = [rank for rank in lost if self._note(epoch, rank, "done") is None]
            takes = dict(zip(left, present, strict=False))  # one each; the rest next time
            return json.dumps({"present": present, "takes": takes, "left_out": left_out}).encode()

        mine = {"rank": role.index, "left_out": self.left_out}
        answer = meeting.decide(json.dumps(mine).encode(), rule, patient=True)
        assert answer is not None, "this worker is left"
        decided = json.loads(answer)
        self._attendance.update(decided["present"])
        self.left_out |= {int(rank): done for rank, done in decided["left_out"].items()}
        takes: dict[str, int] = decided["takes"]
        own = [int(rank) for rank, taker in takes.items() if taker == role.index]
        return bool(takes), own[0] if own else None

    def take(self, rank: int, epoch: int, source: BatchSource) -> LeftBehind:
        """Take over the data of a lost worker. source: this worker's, of the same kind."""
        record = WorkerRecord(self._distributed.board, self._who(rank)).read() or {}
        takers = json.loads(self._note(epoch, rank, "takers") or b"[]")
        mine = self._distributed.role.index
        base = self._base(rank)
        lost = [self._marks_of(rank, epoch, base=0)]
        lost += [self._marks_of(taker, epoch, base=base) for taker in takers if taker != mine]
        # Servers know what they have applied for the sessions of lost workers, but not that a push
        # of this one brings the same: what some of them have must not be pushed again.
        some = join_marks(mark for marks in lost for server in marks for mark in server)
        own = self._marks_of(mine, epoch, base=base)
        servers = [join_marks([*some, *marks]) for marks in own]
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
        if source.is_shared:
            _log.warning("worker %d is lost: its files went to whoever was free", rank)
        elif theirs is None:
            done = f"{applied.count} of its batches were trained"
            self.left_out[rank] = done
            _log.error(
                "worker %d is lost, and only its own process could read its data: %s in this "
                "epoch, the rest is left out",
                rank,
                done,
            )
        else:
            _log.warning("worker %d is lost: this one trains what is left of its data", rank)
            partial = _size(some) - min(
                _size(join_marks(mark for marks in lost for mark in marks[server]))
                for server in range(len(own))
            )
            if partial:
                done = f"all but {partial} batches, or records, in its last push"
                self.left_out[rank] = f"{done}, which only some servers have applied, were trained"
        start = PassStart(positions=[position], applied=applied)
        return LeftBehind(rank, theirs, start)

    def finished(self, left: LeftBehind, epoch: int) -> None:
        """All of it is trained, and applied; or nobody can."""
        self._put(epoch, left.rank, "done", b"")

    def _marks_of(self, rank: int, epoch: int, *, base: int) -> list[list[DataMark]]:
        """Return by server what the session of a worker has applied of the streams at `base`."""
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


def _size(marks: Sequence[DataMark]) -> int:
    return sum(end - begin for stream, _, begin, end in marks if stream % SOURCES != ROUNDS)


def raise_left_out(left_out: dict[int, str]) -> None:
    """Raise PeerLostError for records that nobody has trained; once, when all else is done."""
    told = "; ".join(f"of worker {rank}, {done}" for rank, done in left_out.items())
    left_out.clear()
    raise PeerLostError(
        f"training has ended, but records were left out: {told} in the epoch of its loss. Other "
        "workers can take over files: use data.Reader, or a Dataset"
    )
