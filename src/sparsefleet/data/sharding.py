"""Sharing the files of an epoch between readers: each file goes to the next reader that is free."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sparsefleet.data.progress import FileMark, FileToRead, Progress
from sparsefleet.errors import ConfigError, PeerLostError

_log = logging.getLogger("sparsefleet.data")


class Shard(Protocol):
    """One worker's share of the files of an epoch. Thread-safe."""

    def take(self) -> FileToRead | None:
        """Return the next file for this worker; None once there are no more."""

    def report(self, marks: Sequence[FileMark]) -> None:
        """Report that these records were handed to training."""

    def finish(self) -> list[str]:
        """Report that all files taken were read; return them."""

    def release(self) -> None:
        """Give the unread rest of the files taken back to others."""


class Sharding(Protocol):
    """Where a Reader gets its files from: `LocalSharding`, or `fleet.sharding(name)`.

    It counts the epochs: every worker begins the same number of them.
    """

    def begin(self, files: Sequence[FileToRead]) -> Shard:
        """Return this worker's shard of the next epoch; all workers name the same files for it."""

    def beside(self, name: str) -> Sharding:
        """Return the sharding of another reader of the same files; the same one for each call."""


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
        """Return the sharding for the next reader."""
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
        self._progress = Progress()
        for file in files:
            self._progress.advance(FileMark(file.path, begin, end) for begin, end in file.done)

    def take(self, worker: str) -> FileToRead | None:
        """Assign the next file that nobody reads to this worker; None if there is none."""
        while self._waiting:
            path = self._waiting.popleft()
            left = self._progress.remaining([path])
            if left:  # otherwise it was read to the end before it was handed back
                self._owners[path] = worker
                return left[0]
        return None

    def report(self, worker: str, marks: Sequence[FileMark]) -> None:
        """Record which records were handed to the worker's training."""
        for mark in marks:
            if mark.begin == mark.end and mark.path not in self._owners:
                continue  # the end of a file of which all records were reported
            if self._owners.get(mark.path) != worker:
                raise ConfigError(
                    f"{worker} reported records of {mark.path}, which is being read by "
                    f"{self._owners.get(mark.path, 'nobody')}"
                )
            self._progress.advance([mark])
            if not self._progress.remaining([mark.path]):
                del self._owners[mark.path]

    def finish(self, worker: str) -> None:
        """Mark all files of the worker as read."""
        for path in self.files_of(worker):
            del self._owners[path]

    def release(self, worker: str) -> None:
        """Put the unread rest of the worker's files at the front of the queue."""
        for path in reversed(self.files_of(worker)):
            del self._owners[path]
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
        return work


class WorkLists:
    """The work lists of a job, by name and epoch. Thread-safe.

    is_present: returns whether a worker, given the names of list and worker, is still alive. The
        rest of a lost worker's files, from its last report on, goes to others if the list keeps
        going; otherwise the next `take` raises PeerLostError.
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
        """Restore what `state` returned."""
        with self._lock:
            self._lists = {
                (name, int(epoch)): WorkList.from_state(work)
                for name, epoch, work in state["lists"]
            }
            self._epochs = {name: dict(epochs) for name, epochs in state["epochs"].items()}

    def begin(
        self, name: str, epoch: int, worker: str, num_workers: int, files: Sequence[FileToRead]
    ) -> None:
        """Start an epoch for the worker, which ends its earlier ones."""
        with self._lock:
            epochs = self._epochs.setdefault(name, {})
            if epochs.get(worker, 0) >= epoch:
                raise ConfigError(
                    f"{worker} starts epoch {epoch} of '{name}' after epoch {epochs[worker]}: two "
                    "readers share a name; give each its own"
                )
            work = self._lists.get((name, epoch))
            if work is None:
                if epoch <= min(epochs.values(), default=0):
                    raise ConfigError(f"epoch {epoch} of '{name}' is over")
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
        """Return the next file for the worker; None if all are read or being read."""
        with self._lock:
            work = self._find(name, epoch)
            for other in work.workers - {worker}:
                if not self._is_present(name, other):
                    self._lose(name, epoch, work, other, keep_going)
            return work.take(worker)

    def report(self, name: str, epoch: int, worker: str, marks: Sequence[FileMark]) -> None:
        """See `WorkList.report`."""
        with self._lock:
            self._find(name, epoch).report(worker, marks)

    def finish(self, name: str, epoch: int, worker: str) -> None:
        """See `WorkList.finish`."""
        with self._lock:
            self._find(name, epoch).finish(worker)

    def release(self, name: str, epoch: int, worker: str) -> None:
        """See `WorkList.release`."""
        with self._lock:
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
        told = f"{worker} was lost while it read {', '.join(files)} in epoch {epoch} of '{name}'"
        if not keep_going:
            raise PeerLostError(
                f"{told}; `sparsefleet launch --keep-going` lets the others take over its files"
            )
        _log.warning("%s: others continue these files from its last report", told)
        work.release(worker)

    def _forget(self, name: str, num_workers: int) -> None:
        """Drop epochs that all workers have left or were lost in."""
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
