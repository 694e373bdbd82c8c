"""`ray.train.report` and `get_checkpoint` in workers that are replaced one by one."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import ray
import ray.train

from sparsefleet.launch.ray.coordinator import Presence, Reported
from sparsefleet.launch.ray.node import AddressBook
from sparsefleet.launch.ray.report_rounds import ReportRound
from sparsefleet.launch.ray.train_internals import SynchronizationBarrierResetError

if TYPE_CHECKING:
    from sparsefleet.engine.events import Events
    from sparsefleet.engine.worker_metrics import WorkerMetrics

__all__ = ["AlignedReports", "FitPosition", "first_checkpoint", "use_checkpoint"]

_LOOK_S = 2.0


class FitPosition:
    """Tracks where this process is in its training function, from the events of `Trainer.fit`.

    metrics: the metrics of this process, which every training run attaches its events to.
    """

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._is_in_fit = False
        self._is_pass_over = False
        self._attach = metrics.attach
        metrics.attach = self._follow  # type: ignore[method-assign]

    @property
    def has_trained(self) -> bool:
        """Return whether this process has trained on any mini-batch."""
        return self._metrics.steps > 0

    @property
    def place(self) -> str:
        """Return an id of the current pass over the data, or "" outside `fit`.

        A process that resumes the pass returns the same id. The callbacks after a pass have a
        different id, since only they can run twice.
        """
        if not self._is_in_fit:
            return ""
        model = self._metrics._started_model()
        succession = None if model is None else model.succession
        number = 0 if succession is None else succession.pass_number
        part = "end" if self._is_pass_over else "pass"
        return f"{getattr(model, 'name', '')}/{number}/{part}"

    def _follow(self, events: Events) -> None:
        from sparsefleet.engine.events import Failed, FitBegan, FitEnded, PassBegan, PassEnded

        self._attach(events)
        events.subscribe(FitBegan, lambda _: self._set(in_fit=True, pass_over=False))
        events.subscribe(PassBegan, lambda _: self._set(in_fit=True, pass_over=False))
        events.subscribe(PassEnded, lambda _: self._set(in_fit=True, pass_over=True))
        events.subscribe(FitEnded, lambda _: self._set(in_fit=False, pass_over=False))
        events.subscribe(Failed, lambda _: self._set(in_fit=False, pass_over=False))

    def _set(self, *, in_fit: bool, pass_over: bool) -> None:
        self._is_in_fit, self._is_pass_over = in_fit, pass_over


class AlignedReports:
    """Keeps the reports of all workers aligned when one worker is replaced.

    A report waits until all other workers make theirs. When a worker is lost, Ray Train drops the
    report that the other workers are waiting to complete. The new process then runs the function
    from the top and repeats reports that its predecessor already made. Without this class, the
    workers would no longer make the same number of reports, and the last ones would wait forever.

    A process repeats calls of its predecessor until it has trained: all calls outside of `fit`, in
    the same order, and inside `fit` the calls after the pass that it resumes, if that pass had no
    data left. It does not repeat calls of earlier passes, so counting calls is not enough to
    recognize repeated ones.

    Each report carries its round, so that Ray Train's controller does not combine it with a report
    of a different round (`PairedReports`).
    """

    def __init__(
        self,
        context: Any,
        coordinator: Any,
        book: AddressBook,
        position: FitPosition,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._book = book
        self._position = position
        self._before = book.who.reports  # made by previous processes of this rank
        self._outside = 0
        self._place, self._within = self._before.place, 0
        self._is_released = False
        self._attempts = 0
        self._rounds: dict[int, ReportRound] = {}  # of reports that are being uploaded
        self._report: Callable[..., None] = context.report
        self._synchronize: Callable[..., str] = context._sync_checkpoint_dir_name_across_ranks
        self._deliver: Callable[..., None] = context._wait_then_report
        context.report = self.report
        context._sync_checkpoint_dir_name_across_ranks = self._agree
        context._wait_then_report = self._deliver_with_round

    def report(self, *arguments: Any, **settings: Any) -> None:
        """Report as Ray Train does, unless the previous process has already made this report."""
        if self._is_repeated(self._position.place) and not self._position.has_trained:
            return
        self._report(*arguments, **settings)

    def end(self) -> None:
        """Notify the other workers that this worker will make no more reports."""
        with contextlib.suppress(ray.exceptions.RayError):  # the job is ending
            self._book.tell(has_ended=True)

    def _is_repeated(self, place: str) -> bool:
        """Count a call; return whether a previous process has already made it."""
        if not place:
            self._outside += 1
            return self._outside <= self._before.outside
        if place != self._place:
            self._place, self._within = place, 0
        self._within += 1
        return place == self._before.place and self._within <= self._before.within

    def _count(self) -> None:
        """Count a report, which all workers are making now."""
        reports = Reported(
            count=self._book.who.reports.count + 1,
            outside=max(self._outside, self._before.outside),
            place=self._place,
            within=self._within or self._before.within,
        )
        # If the coordinator is being restarted, the address book's next request has the count.
        with contextlib.suppress(ray.exceptions.RayActorError):
            self._book.tell(reports=reports)

    def _deliver_with_round(self, report: Any, report_call_index: int) -> None:
        report.round = self._rounds.pop(report_call_index)
        self._deliver(report, report_call_index)

    def _agree(self, name: str | None = None) -> str:
        """Agree with the others on a directory and a round; try again if a worker is lost.

        From then on the report counts as made: the others do not wait for it again, even if this
            process dies while uploading its checkpoint.
        """
        name = name or self._context.storage_context.make_default_checkpoint_dir_name()
        while True:
            self._attempts += 1
            try:
                with self._looking_for_the_end_of_others():
                    agreed = self._synchronize(f"{self._book.who.start}/{self._attempts}/{name}")
                start, attempt, directory = agreed.split("/", 2)  # as worker 0 has sent it
                self._rounds[self._context.report_call_index] = (int(start), int(attempt))
                self._count()
                return directory
            except ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, SynchronizationBarrierResetError):
                    raise
                if self._is_released:
                    print(
                        "sparsefleet: dropping a report, because another worker has exited and "
                        "will not make it",
                        file=sys.stderr,
                        flush=True,
                    )
                    raise  # Ray Train then skips the report
                self._context.collective_seq -= 1

    @contextlib.contextmanager
    def _looking_for_the_end_of_others(self) -> Iterator[None]:
        """Interrupt the block if a worker has exited, since the block would wait forever for it."""
        is_over = threading.Event()
        barrier = self._context.get_synchronization_actor()
        self._is_released = False

        def look() -> None:
            while not is_over.wait(_LOOK_S):
                with contextlib.suppress(ray.exceptions.RayError):
                    known: dict[str, Presence] = ray.get(self._coordinator.processes.remote())
                    if any(who.has_ended for who in known.values()) and not is_over.is_set():
                        self._is_released = True
                        ray.get(barrier.reset.remote())  # has no effect if no report is waiting

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
    """Make `ray.train.get_checkpoint` return the checkpoint at a path in the run's storage, or None
    if the path is "", until this process reports a checkpoint.

    A process that replaces another one repeats its calls. Given a newer checkpoint, the training
    function would load it over the servers' current state.
    """
    filesystem = context.storage_context.storage_filesystem
    context.checkpoint = ray.train.Checkpoint(path, filesystem) if path else None
