"""Assigns files to whichever worker of the fleet is free, from a list kept by server 0."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from sparsefleet.data import LocalSharding
from sparsefleet.data.progress import FileMark, FileToRead
from sparsefleet.data.sharding import Shard, Sharding
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.fleet.incarnation import Incarnation
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.server.command_loop import pack_body, unpack_body
from sparsefleet.store import LocalStore, Store

__all__ = ["FleetSharding"]

_log = logging.getLogger("sparsefleet.fleet")
_LIST_SERVER = 0
_REPORT_INTERVAL_S = (
    2.0  # time between reports within a file; the end of a file is reported at once
)


class FleetSharding:
    """A sharding for `Reader`, created by `Fleet.sharding`; server 0 keeps the list of files.

    Readers that are created one after another with the same name, for example by
    `fit(lambda: Reader(...))`, read successive epochs of one list. Two readers with the same name
    at the same time are rejected.

    joined: returns the store and the other workers, once this worker has started.
    name: the name of the list, the same on all workers.
    """

    def __init__(self, joined: Callable[[], tuple[Store, Meeting]], name: str) -> None:
        self._joined = joined
        self._name = name
        self._alone: Sharding | None = None
        self._epoch = 0
        self._is_successor = Incarnation.from_environment().is_successor
        self._last: weakref.ref[FleetShard] | None = None
        self._beside: dict[str, FleetSharding] = {}

    def beside(self, name: str) -> FleetSharding:
        """Return the sharding of another reader of the same files, such as held-out records."""
        if name not in self._beside:
            self._beside[name] = FleetSharding(self._joined, f"{self._name}/{name}")
        return self._beside[name]

    def begin(self, files: Sequence[FileToRead]) -> Shard:
        """Start the next epoch; all workers must pass the same files. Returns immediately."""
        store, meeting = self._joined()
        if meeting.is_alone:
            self._alone = self._alone or LocalSharding(1).member()
            return self._alone.begin(files)
        self._require_servers(store, meeting)
        shard = self._shard(store, meeting, self._begun(store, meeting) + 1)
        shard.begin(files, meeting.num_workers, again=self._is_successor)
        self._epoch += 1
        self._last = weakref.ref(shard)
        return shard

    def resume(self, epoch: int) -> Shard:
        """Return this worker's shard of an epoch that its previous process started."""
        store, meeting = self._joined()
        self._epoch = epoch
        shard = self._shard(store, meeting, epoch)
        self._last = weakref.ref(shard)
        return shard

    @property
    def epoch(self) -> int:
        """Return the number of the epoch that this worker started last.

        Return 0 if there is no such epoch, or if this is the only worker.
        """
        return self._epoch

    def given_to(self, rank: int | None, epoch: int) -> list[FileToRead]:
        """Return the files a worker has taken in an epoch, each with the records already read.

        rank: None means this worker.
        """
        store, meeting = self._joined()
        if meeting.is_alone:
            return []
        return self._ask_given(store, meeting, rank, epoch)[2]

    def _begun(self, store: Store, meeting: Meeting) -> int:
        """Return how many epochs this worker has read, in this process or an earlier one."""
        if self._epoch == 0 and self._is_successor:
            epoch, is_finished, _ = self._ask_given(store, meeting, None, 0)
            self._epoch = epoch if is_finished else epoch - 1
        return self._epoch

    def _ask_given(
        self, store: Store, meeting: Meeting, rank: int | None, epoch: int
    ) -> tuple[int, bool, list[FileToRead]]:
        found = self._shard(store, meeting, epoch).given_to(meeting.rank if rank is None else rank)
        files = [
            FileToRead(path, tuple((begin, end) for begin, end in done))
            for path, done in found["files"]
        ]
        return int(found["epoch"]), bool(found["is_finished"]), files

    def _shard(self, store: Store, meeting: Meeting, epoch: int) -> FleetShard:
        return FleetShard(
            store, f"{meeting.name}/{self._name}", epoch, keep_going=meeting.continues_without_lost
        )

    def _require_servers(self, store: Store, meeting: Meeting) -> None:
        if isinstance(store, LocalStore):
            raise ConfigError(
                f"fleet.sharding({self._name!r}): server 0 hands out the files, but this job with "
                f"{meeting.num_workers} workers has no servers: start it with --servers 1, or give "
                "each worker its part (Reader's worker_index and worker_num, fleet.split_files)"
            )
        last = None if self._last is None else self._last()
        if last is not None and not last.is_over:
            raise ConfigError(
                f"fleet.sharding({self._name!r}): two readers use this name at once; give each "
                "its own name, or close the first"
            )


class FleetShard:
    """One worker's shard of an epoch. Thread-safe."""

    def __init__(self, store: Store, name: str, epoch: int, *, keep_going: bool) -> None:
        self._store = store
        self._head = {"list": name, "epoch": epoch}
        self._keep_going = keep_going
        self._lock = threading.Lock()
        self._taken: list[str] = []
        self._unreported: list[FileMark] = []
        self._last_report = monotonic()
        self.is_over = False
        """Whether this worker is done with the epoch."""

    def begin(self, files: Sequence[FileToRead], num_workers: int, *, again: bool) -> None:
        """Send the files of the epoch to the server.

        again: whether a previous process of this worker may have started the epoch.
        """
        listed = [[file.path, file.done] for file in files]
        self._ask("work.begin", files=listed, num_workers=num_workers, again=again)

    def keep_account(self) -> None:
        """Record that servers track applied records.

        The unread files of this worker are then kept for its next process.
        """
        self._ask("work.account")

    def given_to(self, rank: int) -> dict[str, Any]:
        """Return the files that worker `rank` has taken in the epoch."""
        return self._ask("work.given", worker=f"worker-{rank}")

    def take(self) -> FileToRead | None:
        """Return the next file. Raises PeerLostError for a file that a lost worker was reading."""
        found = self._ask("work.take", keep_going=self._keep_going)
        if found["path"] is None:
            return None
        self._taken.append(found["path"])
        return FileToRead(found["path"], tuple((begin, end) for begin, end in found["done"]))

    def report(self, marks: Sequence[FileMark]) -> None:
        """Report positions to the server periodically, and at the end of a file."""
        with self._lock:
            self._unreported += marks
            is_due = monotonic() - self._last_report >= _REPORT_INTERVAL_S
            if is_due or any(mark.total is not None for mark in marks):
                self._send_report()

    def finish(self) -> list[str]:
        """Report that all files taken have been read, and return them."""
        self._ask("work.finish")
        self.is_over = True
        return self._taken

    def release(self) -> None:
        """Give unread files back to the server for other workers. Failures are only logged."""
        self.is_over = True
        try:
            with self._lock:
                self._send_report()
            self._ask("work.release")
        except SparseFleetError as error:
            _log.warning("files of '%s' could not be returned: %s", self._head["list"], error)

    def _send_report(self) -> None:
        marks, self._unreported = self._unreported, []
        self._last_report = monotonic()
        if marks:
            self._ask("work.report", marks=[list(mark) for mark in marks])

    def _ask(self, name: str, **more: Any) -> dict[str, Any]:
        reply = self._store.command(_LIST_SERVER, name, pack_body({**self._head, **more}))
        return unpack_body(reply)[0]
