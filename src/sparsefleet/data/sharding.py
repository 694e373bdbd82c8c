"""Files that go to whichever worker is free, each to one; what a Reader asks for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from sparsefleet.data.progress import FileMark, FileToRead
from sparsefleet.data.work_list import WorkLists


class Shard(Protocol):
    """What one worker gets of the files in one epoch. Thread-safe."""

    def take(self) -> FileToRead | None:
        """The next file for this worker; None if there are no more, and then for good."""

    def report(self, marks: Sequence[FileMark]) -> None:
        """These records were handed to training."""

    def finish(self) -> list[str]:
        """All that was taken is read; returns what that was."""

    def release(self) -> None:
        """Nothing more is read: others may have what is left of the files."""


class Sharding(Protocol):
    """Where a Reader gets its files from: `LocalSharding`, or `fleet.sharding(name)`."""

    def begin(self, epoch: int, files: Sequence[FileToRead]) -> Shard:
        """This worker's shard of an epoch; all workers name the same files for it."""


class LocalSharding:
    """Readers of one process that share the files of each epoch. Thread-safe.

    Each reader gets an own `member()`; they must make as many passes.

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
        """For the next reader."""
        with self._lock:
            self._made += 1
            return _LocalMember(self._lists, f"member {self._made - 1}", self._num_members)


class _LocalMember:
    def __init__(self, lists: WorkLists, worker: str, num_workers: int) -> None:
        self._lists = lists
        self._worker = worker
        self._num_workers = num_workers

    def begin(self, epoch: int, files: Sequence[FileToRead]) -> Shard:
        self._lists.begin("local", epoch, self._worker, self._num_workers, files)
        return _LocalShard(self._lists, epoch, self._worker)


class _LocalShard:
    def __init__(self, lists: WorkLists, epoch: int, worker: str) -> None:
        self._lists = lists
        self._place = ("local", epoch, worker)
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
