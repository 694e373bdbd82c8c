"""Sync mode: all threads of all workers take each step together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsefleet.modes.half_async import BarrierMode
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.modes.rates import ScheduledRates
from sparsefleet.modes.worker_group import WorkerGroup
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.request_sections import Gradients


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncConfig:
    """Take every step together with all threads of all workers. There is nothing to configure."""


class SyncMode(BarrierMode):
    """Servers take one optimizer step with the mean over the workers that contributed.

    Each worker contributes the mean over its threads. A schedule counts rounds.
    """

    name: ClassVar[str] = "sync"
    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "workers"
    rounds_count_steps: ClassVar[bool] = True
    """Whether a round advances the step that eviction counts."""

    def __init__(self, setting: ModeSetting) -> None:
        super().__init__(setting)
        self._group = WorkerGroup(setting)
        self._rounds = 0
        self._rates = ScheduledRates.of(setting)

    def start(self) -> None:
        """Fetch the dense values and join the other workers."""
        super().start()
        self._group.join()

    @property
    def steps_of_schedule(self) -> int:
        return self._rounds

    def leave(self) -> None:
        self._raise_failure()
        if self._round.leave() == 0:
            self._group.leave()

    def rejoin(self) -> None:
        """Start the next pass once all workers are ready; adopt their round count and dense values.

        A worker that ran out of data early has missed the last rounds of the others.
        """
        super().rejoin()
        self._rounds = self._group.next_pass(self._rounds)
        self._fetch_dense()

    def _push(self, batches: Sequence[Gradients], rows: Mapping[str, tuple[Keys, Floats]]) -> None:
        # Every worker sets the rates, after the previous round was applied everywhere and before
        # this one can be: the order of workers, and whether one has left, does not matter.
        if self._rates is not None:
            self._rates.at(self._rounds)
        self._store.push_round_mean(
            self._group.member,
            self._rounds,
            batches,
            values=self._fetched(),
            rows=rows,
            timeout_s=self._setting.wait_s,
            counts_step=self.rounds_count_steps,
        )
        self._rounds += 1

    def _leave_groups(self) -> None:
        self._group.close()
