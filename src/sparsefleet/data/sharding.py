"""Shares the files of an epoch between readers; each file goes to the next free reader."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sparsefleet.data.progress import FileMark, FileToRead, Progress, Spans
from sparsefleet.errors import ConfigError, PeerLostError

_log = logging.getLogger("sparsefleet.data")


class Shard(Protocol):
    """One worker's share of the files of an epoch. Thread-safe."""

    def take(self) -> FileToRead | None:
        """Return the next file for this worker, or None once there are no more."""

    def report(self, marks: Sequence[FileMark]) -> None:
        """Report that these records were handed to training."""

    def keep_account(self) -> None:
        """Record that servers track applied records.

        The unread files of this worker are then kept for its next process.
        """

    def finish(self) -> list[str]:
        """Report that all files taken have been read, and return them."""

    def release(self) -> None:
        """Give the unread remainder of this worker's files to the other workers."""


class Sharding(Protocol):
    """The source of a Reader's files: `LocalSharding`, or `fleet.sharding(name)`.

    A Sharding counts the epochs; every worker must start the same number of epochs.
    """

    @property
    def epoch(self) -> int:
        """Return the epoch that this worker started last.

        Return 0 if no other process can continue that epoch."""

    def resume(self, epoch: int) -> Shard:
        """Return this worker's shard of an epoch that its previous process started."""

    def given_to(self, rank: int | None, epoch: int) -> list[FileToRead]:
        """Return the files a worker has taken in an epoch, each with the records already read.

        rank: None means this worker.
        """

    def begin(self, files: Sequence[FileToRead]) -> Shard:
        """Return this worker's shard of the next epoch; all workers must pass the same files."""

    def beside(self, name: str) -> Sharding:
        """Return the sharding of another reader of the same files.

        Repeated calls return the same object.
        """


class LocalSharding:
    """Shares the files of each epoch between readers in one process. Thread-safe.

    Each reader needs its own `member()`, and all must make the same number of passes.

    >>> import pathlib, tempfile
    >>> from sparsefleet.data import LocalSharding, MultiSlot, Reader, Slot
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> sizes = [(folder / f"part-{i}").write_text(f"1 {i}\\n") for i in range(5)]
    >>> sharding = LocalSharding(2)
    >>> readers = [
    ...     Reader(folder / "*", MultiSlot(Slot("ad", "uint64", ())), 1, sharding=sharding.member())
    ...     for _ in range(2)
    ... ]
    >>> sorted(int(batch["ad"][0]) for reader in readers for batch in reader)
    [0, 1, 2, 3, 4]
    """

    def __init__(self, num_members: int) -> None:
        self._num_members = num_members
        self._lists = WorkLists()
        self._lock = threading.Lock()
        self._made = 0

    def member(self) -> Sharding:
        """Return the sharding to pass to the next reader."""
        with self._lock:
            self._made += 1
            worker = f"member {self._made - 1}"
            return _LocalMember(self._lists, "local", worker, self._num_members)


class _LocalMember:
    def __init__(self, lists: WorkLists, name: str, worker: str, num_workers: int) -> None:
        self._lists = lists
        self._name = name
        self._worker = worker
        self._num_workers = num_workers
        self._epoch = 0
        self._beside: dict[str, Sharding] = {}

    def begin(self, files: Sequence[FileToRead]) -> Shard:
        self._epoch += 1
        self._lists.begin(self._name, self._epoch, self._worker, self._num_workers, files)
        return _LocalShard(self._lists, self._name, self._epoch, self._worker)

    @property
    def epoch(self) -> int:
        return 0

    def resume(self, epoch: int) -> Shard:
        raise ConfigError(f"no other process has started epoch {epoch} of '{self._name}'")

    def given_to(self, rank: int | None, epoch: int) -> list[FileToRead]:
        raise ConfigError(
            f"no other process has started epoch {epoch} of '{self._name}' (rank {rank})"
        )

    def beside(self, name: str) -> Sharding:
        if name not in self._beside:
            self._beside[name] = _LocalMember(
                self._lists, f"{self._name}/{name}", self._worker, self._num_workers
            )
        return self._beside[name]


class _LocalShard:
    def __init__(self, lists: WorkLists, name: str, epoch: int, worker: str) -> None:
        self._lists = lists
        self._place = (name, epoch, worker)
        self._taken: list[str] = []

    def take(self) -> FileToRead | None:
        file = self._lists.take(*self._place)
        if file is not None:
            self._taken.append(file.path)
        return file

    def report(self, marks: Sequence[FileMark]) -> None:
        self._lists.report(*self._place, marks)

    def keep_account(self) -> None:
        """Do nothing, since readers in one process need no record for another process."""

    def finish(self) -> list[str]:
        self._lists.finish(*self._place)
        return self._taken

    def release(self) -> None:
        self._lists.release(*self._place)


class WorkList:
    """The files of one epoch, each handed to one worker. Not thread-safe: `WorkLists` locks.

    >>> work = WorkList([FileToRead("a"), FileToRead("b")])
    >>> work.take("worker-0").path, work.take("worker-1").path, work.take("worker-0")
    ('a', 'b', None)
    >>> work.report("worker-1", [FileMark("b", 0, 3)])
    >>> work.release("worker-1")
    >>> work.take("worker-0")
    FileToRead(path='b', done=((0, 3),))
    """

    def __init__(self, files: Sequence[FileToRead]) -> None:
        self.files = list(files)
        self._waiting = deque(file.path for file in files)
        self._owners: dict[str, str] = {}
        self._given: dict[str, dict[str, Spans]] = {}
        self._finished: set[str] = set()
        self.is_accounted = False
        """Whether workers know which records were applied, and read the rest of a lost worker's
        files.
        """
        self._progress = Progress()
        for file in files:
            self._progress.advance(FileMark(file.path, begin, end) for begin, end in file.done)

    def take(self, worker: str) -> FileToRead | None:
        """Assign the next unassigned file to this worker, or return None if there is none."""
        while self._waiting:
            path = self._waiting.popleft()
            left = self._progress.remaining([path])
            if left:  # other files were read to the end before they were handed back
                self._owners[path] = worker
                self._given.setdefault(worker, {}).setdefault(path, left[0].done)
                self._finished.discard(worker)
                return left[0]
        return None

    def report(self, worker: str, marks: Sequence[FileMark]) -> None:
        """Record which records were handed to the worker's training."""
        for mark in marks:
            if mark.begin == mark.end and mark.path not in self._owners:
                continue  # the end of a file whose records were all reported
            if self._owners.get(mark.path) != worker:
                raise ConfigError(
                    f"{worker} reported records from {mark.path}, which is being read by "
                    f"{self._owners.get(mark.path, 'nobody')}"
                )
            self._progress.advance([mark])
            if not self._progress.remaining([mark.path]):
                del self._owners[mark.path]

    def finish(self, worker: str) -> None:
        """Mark all files that the worker has taken as read."""
        self._finished.add(worker)
        for path in self.files_of(worker):
            del self._owners[path]

    def release(self, worker: str) -> None:
        """Put the unread remainder of the worker's files at the front of the queue."""
        for path in reversed(self.files_of(worker)):
            del self._owners[path]
            self._waiting.appendleft(path)

    def given_to(self, worker: str) -> list[FileToRead]:
        """Return the files that the worker has taken, each with the records read before then."""
        return [FileToRead(path, done) for path, done in self._given.get(worker, {}).items()]

    def is_finished(self, worker: str) -> bool:
        """Return whether the worker has read all files it has taken."""
        return worker in self._finished

    def start_again(self, worker: str) -> None:
        """Take back the worker's files, as if it had read nothing."""
        self.release(worker)
        for path, done in self._given.pop(worker, {}).items():
            self._progress.set_back(path, done)
            if path not in self._waiting and path not in self._owners:
                self._waiting.appendleft(path)

    def files_of(self, worker: str) -> list[str]:
        """Return the files that the worker is reading."""
        return [path for path, owner in self._owners.items() if owner == worker]

    @property
    def workers(self) -> set[str]:
        """The workers that are reading files."""
        return set(self._owners.values())

    @property
    def unread(self) -> list[FileToRead]:
        """The files that were not read to the end."""
        return self._progress.remaining([*self._waiting, *self._owners])

    def state(self) -> dict[str, Any]:
        """Return the state as plain lists, dicts, strings and numbers."""
        return {
            "files": [[file.path, file.done] for file in self.files],
            "waiting": list(self._waiting),
            "owners": self._owners,
            "progress": self._progress.state(),
            "given": self._given,
            "finished": sorted(self._finished),
            "is_accounted": self.is_accounted,
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> WorkList:
        """Rebuild the list from its state."""
        files = [
            FileToRead(path, tuple((int(begin), int(end)) for begin, end in done))
            for path, done in state["files"]
        ]
        work = WorkList(files)
        work._waiting = deque(state["waiting"])
        work._owners = dict(state["owners"])
        work._progress = Progress.from_state(state["progress"], None)
        work._given = {
            worker: {
                path: tuple((int(begin), int(end)) for begin, end in done)
                for path, done in files.items()
            }
            for worker, files in state["given"].items()
        }
        work._finished = set(state["finished"])
        work.is_accounted = bool(state["is_accounted"])
        return work


class WorkLists:
    """The work lists of a job, by name and epoch. Thread-safe.

    is_present: a function that takes the names of a list and a worker and returns whether the
        worker is still alive. If the list can continue without a lost worker, the other workers
        get the rest of its files, from its last report on; otherwise the next `take` raises
        PeerLostError.
    """

    def __init__(
        self, is_present: Callable[[str, str], bool] = lambda _list, _worker: True
    ) -> None:
        self._is_present = is_present
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, int], WorkList] = {}
        self._epochs: dict[str, dict[str, int]] = {}  # list -> worker -> current epoch

    def state(self) -> dict[str, Any]:
        """Return the state as plain lists, dicts, strings and numbers."""
        with self._lock:
            lists = [[name, epoch, work.state()] for (name, epoch), work in self._lists.items()]
            return {"lists": lists, "epochs": self._epochs}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the lists from the result of `state`."""
        with self._lock:
            self._lists = {
                (name, int(epoch)): WorkList.from_state(work)
                for name, epoch, work in state["lists"]
            }
            self._epochs = {name: dict(epochs) for name, epochs in state["epochs"].items()}

    def begin(
        self,
        name: str,
        epoch: int,
        worker: str,
        num_workers: int,
        files: Sequence[FileToRead],
        *,
        again: bool = False,
    ) -> None:
        """Start an epoch for the worker. Its earlier epochs end.

        again: whether a previous process of the worker may have started the epoch; the files that
            it took are then read again.
        """
        with self._lock:
            epochs = self._epochs.setdefault(name, {})
            if again and epochs.get(worker, 0) == epoch and (name, epoch) in self._lists:
                self._lists[name, epoch].start_again(worker)
                return
            if epochs.get(worker, 0) >= epoch:
                raise ConfigError(
                    f"{worker} starts epoch {epoch} of '{name}' after epoch {epochs[worker]}: two "
                    "readers share a name; give each a different one"
                )
            work = self._lists.get((name, epoch))
            if work is None:
                if epoch <= min(epochs.values(), default=0):
                    raise ConfigError(
                        f"{worker} cannot start epoch {epoch} of '{name}', which has already ended"
                    )
                work = self._lists[name, epoch] = WorkList(files)
            elif work.files != list(files):
                raise ConfigError(
                    f"{worker} starts epoch {epoch} of '{name}' with {len(files)} files to read, "
                    f"but other workers have {len(work.files)}, or different ones: all workers "
                    "must list the same files and load the same state (merge_states)"
                )
            if worker in epochs:
                self._leave(name, epochs[worker], worker)
            epochs[worker] = epoch
            self._forget(name, num_workers)

    def take(
        self, name: str, epoch: int, worker: str, keep_going: bool = False
    ) -> FileToRead | None:
        """Return the next file for the worker, or None if all files are read or being read."""
        with self._lock:
            work = self._find(name, epoch)
            for other in work.workers - {worker}:
                if work.is_accounted and keep_going:
                    break  # after the pass, others read the rest of a lost worker's files
                if not self._is_present(name, other):
                    self._lose(name, epoch, work, other, keep_going)
            return work.take(worker)

    def report(self, name: str, epoch: int, worker: str, marks: Sequence[FileMark]) -> None:
        """Record handed-out records; see `WorkList.report`."""
        with self._lock:
            self._find(name, epoch).report(worker, marks)

    def keep_account(self, name: str, epoch: int) -> None:
        """Record that servers track applied records; see `WorkList.is_accounted`."""
        with self._lock:
            self._find(name, epoch).is_accounted = True

    def given_to(self, name: str, epoch: int, worker: str) -> tuple[int, bool, list[FileToRead]]:
        """Return the files that the worker has taken in an epoch; epoch 0 means its last epoch.

        Also return the number of that epoch, and whether the worker has read all of these files.
        """
        with self._lock:
            epoch = epoch or self._epochs.get(name, {}).get(worker, 0)
            work = self._lists.get((name, epoch))
            if work is None:  # the epoch has ended, or never started
                return epoch, True, []
            return epoch, work.is_finished(worker), work.given_to(worker)

    def finish(self, name: str, epoch: int, worker: str) -> None:
        """Mark the worker's files as read; see `WorkList.finish`."""
        with self._lock:
            self._find(name, epoch).finish(worker)

    def release(self, name: str, epoch: int, worker: str) -> None:
        """Put the rest of the worker's files back into the list; see `WorkList.release`.

        If servers track applied records, the files are kept for the worker's next process instead.
        """
        with self._lock:
            work = self._lists.get((name, epoch))
            if work is None or not work.is_accounted:
                self._leave(name, epoch, worker)

    def _find(self, name: str, epoch: int) -> WorkList:
        found = self._lists.get((name, epoch))
        if found is None:
            raise ConfigError(
                f"epoch {epoch} of '{name}' does not exist: it has not started, or is over"
            )
        return found

    def _leave(self, name: str, epoch: int, worker: str) -> None:
        work = self._lists.get((name, epoch))
        if work is not None:
            work.release(worker)

    def _lose(self, name: str, epoch: int, work: WorkList, worker: str, keep_going: bool) -> None:
        files = work.files_of(worker)
        message = f"{worker} was lost while it read {', '.join(files)} in epoch {epoch} of '{name}'"
        if not keep_going:
            raise PeerLostError(
                f"{message}; `sparsefleet launch --keep-going` lets the others take over its files"
            )
        _log.warning("%s: other workers continue these files from its last report", message)
        work.release(worker)

    def _forget(self, name: str, num_workers: int) -> None:
        """Drop the epochs that every worker has finished or left, or in which it was lost."""
        epochs = self._epochs[name]
        if len(epochs) < num_workers:
            return
        oldest = min(epoch for worker, epoch in epochs.items() if self._is_present(name, worker))
        for key in [key for key in self._lists if key[0] == name and key[1] < oldest]:
            unread = self._lists.pop(key).unread
            if unread:
                _log.warning(
                    "epoch %d of '%s' is over, but these files were not read to the end: %s",
                    key[1],
                    name,
                    unread,
                )
