"""The workers that wait for each other, pass by pass."""

from __future__ import annotations

from sparsefleet.errors import NotFoundError
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.store import RoundMember


class WorkerGroup:
    """This worker's place in the group of each pass, known to the servers. Not thread-safe.

    A worker that has no more data leaves the group of its pass and is back in that of the next.
    Another group, ``present``, lasts for the whole training. By it workers meet between
    passes, and one that was lost meanwhile is noticed: the servers know only who has joined.
    """

    def __init__(self, setting: ModeSetting) -> None:
        self._setting = setting
        self._store = setting.store
        self._pass = 0
        self._in_pass = False
        self._in_training = False

    @property
    def member(self) -> RoundMember:
        """This worker in the group of the present pass."""
        return self._member(f"pass-{self._pass}", self._setting.worker_index)

    def join(self) -> None:
        """Takes part in the first pass; from here on the loss of this worker is noticed."""
        self._in_training = self._in_pass = True
        self._put_note(0)
        self._store.advance_clock(self._present(), 1)
        self._store.advance_clock(self.member, 0)

    def leave(self) -> None:
        """Nobody waits for this worker any longer in this pass. Idempotent."""
        if self._in_pass:
            self._in_pass = False
            self._store.leave_group(self.member)

    def next_pass(self, count: int) -> int:
        """Waits for all workers to begin the next pass; returns the largest ``count`` of all."""
        self.leave()
        self._pass += 1
        self._in_pass = True
        self._store.advance_clock(self.member, 0)
        self._put_note(count)
        self._store.advance_clock(
            self._present(), self._pass + 1, bound=0, timeout_s=self._setting.wait_s
        )
        return max(count, *(self._count_of(rank) for rank in range(self._setting.worker_num)))

    def close(self) -> None:
        """Leaves for good. Idempotent."""
        self.leave()
        if self._in_training:
            self._in_training = False
            self._store.leave_group(self._present())

    def _count_of(self, rank: int) -> int:
        """What a worker counted when it began this pass; one that did not begin it is left out."""
        try:
            note = self._store.get_note(self._note_of(rank))
        except NotFoundError:  # it was lost before it joined
            note = b"-1 0"
        its_pass, count = map(int, note.split())
        if its_pass < self._pass:
            self._store.leave_group(self._member(f"pass-{self._pass}", rank))
            return 0
        return count

    def _put_note(self, count: int) -> None:
        note = f"{self._pass} {count}".encode()
        self._store.put_note(self._note_of(self._setting.worker_index), note)

    def _note_of(self, rank: int) -> str:
        return f"{self._setting.group}/worker-{rank}"

    def _present(self) -> RoundMember:
        return self._member("present", self._setting.worker_index)

    def _member(self, name: str, rank: int) -> RoundMember:
        return RoundMember(
            group=f"{self._setting.group}/{name}",
            rank=rank,
            size=self._setting.worker_num,
            go_on_without_lost=self._setting.go_on_without_lost,
        )
