"""`ray.train.report` and `get_checkpoint` in workers that are replaced one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ray
import ray.train

from sparsefleet.launch.ray.coordinator import Presence
from sparsefleet.launch.ray.node import AddressBook
from sparsefleet.launch.ray.train_internals import SynchronizationBarrierResetError

__all__ = ["AlignedReports", "first_checkpoint", "use_checkpoint"]

_LOOK_S = 2.0


class AlignedReports:
    """Keeps the reports of all workers aligned when one worker is replaced.

    A report waits for those of all other workers. When a worker is lost, Ray Train drops the report
    that the other workers are waiting to complete. The new process then runs the function from the
    top and repeats reports that its predecessor already made. Without this class, the workers would
    no longer make the same number of reports, and the last ones would wait forever.

    has_trained: whether this process has trained on anything yet. Until it has, it repeats its
        predecessor's calls.
    """

    def __init__(
        self,
        context: Any,
        coordinator: Any,
        book: AddressBook,
        has_trained: Callable[[], bool],
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._book = book
        self._reported = book.who.reports  # by previous processes of this rank
        self._has_trained = has_trained
        self._calls = 0
        self._is_released = False
        self._report: Callable[..., None] = context.report
        self._synchronize: Callable[..., str] = context._sync_checkpoint_dir_name_across_ranks
        context.report = self.report
        context._sync_checkpoint_dir_name_across_ranks = self._agree

    def report(self, *arguments: Any, **settings: Any) -> None:
        """Report as Ray Train does, unless the previous process has made this report."""
        self._calls += 1
        if self._calls <= self._reported and not self._has_trained():
            return
        self._report(*arguments, **settings)
        self._tell(reports=self._book.who.reports + 1)

    def end(self) -> None:
        """Tell the others that this worker makes no more reports."""
        with contextlib.suppress(ray.exceptions.RayError):  # the job is ending
            self._tell(has_ended=True)

    def _tell(self, **changed: Any) -> None:
        self._book.who = dataclasses.replace(self._book.who, **changed)
        ray.get(self._coordinator.news.remote((0.0, 0), self._book.who))

    def _agree(self, *arguments: Any) -> str:
        """Agree with the others on a directory; again, if a lost worker interrupts it."""
        while True:
            try:
                with self._looking_for_the_end_of_others():
                    return self._synchronize(*arguments)
            except ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, SynchronizationBarrierResetError):
                    raise
                if self._is_released:
                    print(
                        "sparsefleet: a report is dropped, since another worker has ended and "
                        "will not make it",
                        file=sys.stderr,
                        flush=True,
                    )
                    raise  # Ray Train then leaves it out
                self._context.collective_seq -= 1

    @contextlib.contextmanager
    def _looking_for_the_end_of_others(self) -> Iterator[None]:
        """Release the block if a worker has ended, for which it would wait forever."""
        is_over = threading.Event()
        barrier = self._context.get_synchronization_actor()
        self._is_released = False

        def look() -> None:
            while not is_over.wait(_LOOK_S):
                with contextlib.suppress(ray.exceptions.RayError):
                    known: dict[str, Presence] = ray.get(self._coordinator.processes.remote())
                    if any(who.has_ended for who in known.values()) and not is_over.is_set():
                        self._is_released = True
                        ray.get(barrier.reset.remote())  # nothing, if no report waits

        looking = threading.Thread(target=look, name="reports", daemon=True)
        looking.start()
        try:
            yield
        finally:
            is_over.set()
            looking.join(_LOOK_S)


def first_checkpoint(context: Any) -> str:
    """Return the path of the checkpoint that a new job starts from, or ""."""
    return "" if context.checkpoint is None else str(context.checkpoint.path)


def use_checkpoint(context: Any, path: str) -> None:
    """Make `ray.train.get_checkpoint` return the checkpoint at a path in the storage of the run,
    until this process reports one. "": none.

    A process that replaces another repeats its calls: with a newer checkpoint, the function would
    load that over what the servers have.
    """
    filesystem = context.storage_context.storage_filesystem
    context.checkpoint = ray.train.Checkpoint(path, filesystem) if path else None
