"""Groups of workers that wait for each other, one per pass."""

from __future__ import annotations

import contextlib

from sparsefleet.errors import ConfigError, NotFoundError, NotOwnerError
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.store import RoundMember


class WorkerGroup:
    """This worker's membership in the group of each pass, as recorded on the servers.

    A worker that runs out of data leaves the group of its pass and joins the next group. A second
    group, ``present``, lasts for the whole run. Workers synchronize in that group between passes,
    so that the loss of a worker is noticed there, too; servers know only workers that have joined.
    Not thread-safe.
    """

    def __init__(self, setting: ModeSetting) -> None:
        self._setting = setting
        self._store = setting.store
        at = setting.position
        self._pass = 0 if at is None else at.count("pass")
        self._takes_over = at is not None
        self._in_pass = False
        self._in_training = False
        self.member = self._own_member()
        """This worker as a member of the current pass's group."""

    def join(self) -> None:
        """Join the first pass; from now on, the loss of this worker is noticed.

        Raises NotOwnerError if a different live worker has this index; that worker's note is left
        alone. A process that replaces another joins the pass that the other was in, unless the
        other had left that pass.
        """
        self._in_training = self._in_pass = True
        try:
            self._store.advance_clock(self._present(), self._pass + 1)
            self._store.advance_clock(self.member, 0)
        except NotOwnerError:
            self._in_training = self._in_pass = False  # there is nothing to leave
            raise
        except ConfigError:
            if not self._takes_over:
                raise
            self._in_pass = False
        if not self._takes_over:
            self._put_note(0)

    def state(self) -> dict[str, int]:
        """Return the state from which a process that replaces this one continues."""
        return {"pass": self._pass}

    def leave(self) -> None:
        """Leave the current pass, so no worker waits for this worker. Idempotent."""
        if self._in_pass:
            self._in_pass = False
            self._store.leave_group(self.member)

    def next_pass(self, count: int) -> int:
        """Wait for all workers to start the next pass; return the largest ``count`` of all."""
        self.leave()
        self._pass += 1
        self.member = self._own_member()  # once, because every step needs it
        self._in_pass = True
        self._store.advance_clock(self.member, 0)
        self._put_note(count)
        self._store.advance_clock(
            self._present(), self._pass + 1, bound=0, timeout_s=self._setting.wait_s
        )
        return max(count, *(self._count_of(rank) for rank in range(self._setting.worker_num)))

    def close(self) -> None:
        """Leave the run. Idempotent."""
        self.leave()
        if self._in_training:
            self._in_training = False
            self._store.leave_group(self._present())

    def _count_of(self, rank: int) -> int:
        """Return a worker's count at the start of this pass.

        If the worker has not started the pass, exclude it from the group.
        """
        try:
            note = self._store.get_note(self._note_of(rank))
        except NotFoundError:  # the worker was lost before it joined
            note = b"-1 0"
        its_pass, count = map(int, note.split())
        if its_pass < self._pass:
            # A worker that was reported lost and comes back is notified, and then treated as lost.
            with contextlib.suppress(NotOwnerError):
                self._store.leave_group(self._member(f"pass-{self._pass}", rank))
            return 0
        return count

    def _put_note(self, count: int) -> None:
        note = f"{self._pass} {count}".encode()
        self._store.put_note(self._note_of(self._setting.worker_index), note)

    def _note_of(self, rank: int) -> str:
        return f"{self._setting.group}/worker-{rank}"

    def _own_member(self) -> RoundMember:
        return self._member(f"pass-{self._pass}", self._setting.worker_index)

    def _present(self) -> RoundMember:
        return self._member("present", self._setting.worker_index)

    def _member(self, name: str, rank: int) -> RoundMember:
        return RoundMember(
            group=f"{self._setting.group}/{name}",
            rank=rank,
            size=self._setting.worker_num,
            continue_without_lost=self._setting.continue_without_lost,
        )
