"""Half-async mode: the threads of a worker step together; workers do not wait for each other.

In shapes, N is the number of keys and D the row width.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import GRADIENTS, ModeSetting, StepGradients
from sparsefleet.modes.rates import StepCounter
from sparsefleet.modes.thread_round import ThreadRound
from sparsefleet.store import TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.request_sections import Gradients
from sparsefleet.store.rows import DataMark


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfAsyncConfig:
    """Merge the gradients of a worker's threads in every step. This mode has no settings."""


class BarrierMode(Mode):
    """The base class of half-async, sync and hybrid: threads synchronize after each step.

    The last thread of a worker to arrive (or to leave) merges, pushes and fetches for all threads.
    """

    brings_rows: ClassVar[bool] = True
    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "threads"

    def __init__(self, setting: ModeSetting) -> None:
        super().__init__(setting)
        self.takes_parts = True
        self._round = ThreadRound(setting.threads, self._apply, wait_s=setting.wait_s)
        self._contributors = 1  # the number of workers that a step averages over

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        self._record.stepped(self._round.meet(gradients))

    def leave(self) -> None:
        self._raise_failure()
        self._round.leave()

    def rejoin(self) -> None:
        self._raise_failure()
        self._round.rejoin()

    def set_threads(self, threads: int) -> None:
        self._round.set_threads(threads)

    def flush(self) -> None:
        self._raise_failure()
        self._fetch_dense()

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._round.fail(self._worker_error(error))

    def _apply(self, steps: Sequence[StepGradients]) -> None:
        # Servers apply a push entirely or not at all, so data that some servers already have is
        # pushed separately.
        partial = [each for each in steps if each.origin and GRADIENTS in each.origin.partial]
        lost = [each for each in partial if each.origin and each.origin.base]
        for step in lost:
            self._complete(step, len(steps) * self._contributors)
        steps = _without(steps, lost)
        partial = _without(partial, lost)
        if 0 < len(partial) < len(steps):
            self._apply_together(partial)
            steps = _without(steps, partial)
        if steps:
            self._apply_together(steps)

    def _complete(self, step: StepGradients, share: int) -> None:
        """Push a mini-batch of a lost worker to the servers that lack it.

        Its gradients have the weight of one out of `share` mini-batches in a step. No worker waits
        for it.
        """
        assert step.origin is not None
        ahead = NextRows([step], self._setting.tables)
        batch: Gradients = (step.sparse, step.all_dense())
        began = time.perf_counter()
        self._store.push_mean(
            [batch, *([({}, {})] * (share - 1))],
            values=self._fetched(),
            rows=ahead.rows,
            data=step.origin.marks(),
        )
        self._record.pushed(time.perf_counter() - began, 1)
        ahead.hand_out()
        self._fetch_dense(but=set(batch[1]))

    def _apply_together(self, steps: Sequence[StepGradients]) -> None:
        ahead = NextRows(steps, self._setting.tables)
        batches = [(step.sparse, step.all_dense()) for step in steps]
        began = time.perf_counter()
        self._push(batches, ahead.rows, self._marks(step.origin for step in steps))
        self._record.pushed(time.perf_counter() - began, len(steps))
        ahead.hand_out()
        self._fetch_dense(but={table for _, dense in batches for table in dense})

    @abstractmethod
    def _push(
        self,
        batches: Sequence[Gradients],
        rows: Mapping[str, tuple[Keys, Floats]],
        data: list[DataMark],
    ) -> None:
        """Push the mean of the mini-batches.

        The reply contains the values of their dense tables and the requested ``rows``.
        """


def _without(
    steps: Sequence[StepGradients], others: Sequence[StepGradients]
) -> list[StepGradients]:
    return [each for each in steps if not any(each is other for other in others)]


class HalfAsyncMode(BarrierMode):
    """Each worker pushes its threads' mean gradient in each step; servers apply it on arrival.

    A schedule counts the mini-batches of all workers.
    """

    name: ClassVar[str] = "half_async"

    def __init__(self, setting: ModeSetting) -> None:
        super().__init__(setting)
        self._counter = StepCounter(setting)

    def start(self) -> None:
        """Fetch the dense values and set the schedule's first rates."""
        super().start()
        self._counter.start()

    @property
    def steps_of_schedule(self) -> int:
        return self._counter.total

    def state(self) -> dict[str, int]:
        return {"counted": self._counter.own}

    def _push(
        self,
        batches: Sequence[Gradients],
        rows: Mapping[str, tuple[Keys, Floats]],
        data: list[DataMark],
    ) -> None:
        self._store.push_mean(batches, values=self._fetched(), rows=rows, data=data)
        self._counter.add(len(batches))

    def _leave_groups(self) -> None:
        self._counter.close()


class NextRows:
    """Requests the rows of all threads' next mini-batches together.

    A key that several threads need is requested once per thread, so the pull counters are the same
    as with separate pulls.
    """

    def __init__(self, copies: Sequence[StepGradients], tables: Mapping[str, TableSpec]) -> None:
        self._copies = copies
        self.rows: dict[str, tuple[Keys, Floats]] = {}
        """Maps each table to keys uint64[N] and the buffer float32[N, D] for their rows."""
        for table in dict.fromkeys(table for copy in copies for table in copy.wanted):
            parts = [copy.wanted[table] for copy in copies if table in copy.wanted]
            keys = parts[0] if len(parts) == 1 else np.concatenate(parts)
            self.rows[table] = keys, np.empty((len(keys), tables[table].dim), np.float32)

    def hand_out(self) -> None:
        """Give each thread its rows; must be called after the push."""
        for table, (_, rows) in self.rows.items():
            end = 0
            for copy in self._copies:
                if table in copy.wanted:
                    begin, end = end, end + len(copy.wanted[table])
                    copy.brought[table] = rows[begin:end]
