"""Half-async: the threads of a worker step together, workers do not wait for each other."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsefleet.errors import WorkerError
from sparsefleet.modes.merge_gradients import merge_gradients
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.modes.rows_ahead import RowsAhead
from sparsefleet.modes.step_counter import StepCounter
from sparsefleet.modes.thread_round import ThreadRound
from sparsefleet.store.arrays import Floats, Keys


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfAsyncConfig:
    """Merge the threads of each worker. Nothing to choose: all threads, every step."""


class MeetingMode(Mode):
    """What half-async, sync and hybrid share: a worker's threads meet at the end of each step.

    The last thread to come (or to leave) merges, pushes and fetches for all.
    """

    brings_rows: ClassVar[bool] = True
    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "threads"

    def __init__(self, setting: ModeSetting) -> None:
        super().__init__(setting)
        self.takes_parts = True
        self._round = ThreadRound(setting.threads, self._apply, wait_s=setting.wait_s)

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
        wrapped = WorkerError({self._setting.worker_index: error})
        wrapped.__cause__ = error
        self._round.fail(wrapped)

    def _apply(self, copies: Sequence[StepGradients]) -> None:
        ahead = RowsAhead(copies, self._setting.tables)
        merged = merge_gradients(copies)
        began = time.perf_counter()
        self._push(merged, len(copies), ahead.rows)
        self._record.pushed(time.perf_counter() - began, len(copies))
        ahead.hand_out()
        self._fetch_dense(but=merged.all_dense())

    @abstractmethod
    def _push(
        self, merged: StepGradients, count: int, rows: Mapping[str, tuple[Keys, Floats]]
    ) -> None:
        """Brings the mean of ``count`` mini-batches to the store, and back the values of the dense
        tables among them, and what ``rows`` are wanted."""


class HalfAsyncMode(MeetingMode):
    """One push a step and worker, the mean over its threads; servers apply it as it arrives.

    A schedule counts mini-batches of all workers.
    """

    name: ClassVar[str] = "half_async"

    def __init__(self, setting: ModeSetting) -> None:
        super().__init__(setting)
        self._counter = StepCounter(setting)

    def start(self) -> None:
        """Fetches the dense values and sets the first rates of a schedule."""
        super().start()
        self._counter.start()

    @property
    def steps_of_schedule(self) -> int:
        return self._counter.total

    def _push(
        self, merged: StepGradients, count: int, rows: Mapping[str, tuple[Keys, Floats]]
    ) -> None:
        self._store.push_many(
            merged.sparse,
            merged.all_dense(),
            values=self._fetched(),
            rows=rows,
            unique=count == 1,
        )
        self._counter.add(count)

    def _say_goodbye(self) -> None:
        self._counter.close()
