"""Sync mode: all threads of all workers take each step together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsefleet.modes.half_async import BarrierMode
from sparsefleet.modes.mode_setting import ROUNDS, ModeSetting
from sparsefleet.modes.rates import ScheduledRates
from sparsefleet.modes.round_outbox import RoundOutbox
from sparsefleet.modes.worker_group import WorkerGroup
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.request_sections import Gradients
from sparsefleet.store.rows import DataMark


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncConfig:
    """Take every step together with all threads of all workers. This mode has no settings."""


class SyncMode(BarrierMode):
    """Makes servers take one optimizer step with the mean gradient of all contributing workers.

    Each worker contributes the mean gradient of its threads. A schedule counts rounds.
    """

    name: ClassVar[str] = "sync"
    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "workers"
    rounds_count_steps: ClassVar[bool] = True
    """Whether a round advances the step that eviction counts."""

    def __init__(self, setting: ModeSetting) -> None:
        super().__init__(setting)
        self._contributors = setting.worker_num
        self._group = WorkerGroup(setting)
        self._rounds = 0
        if (at := setting.position) is not None:
            self._rounds = at.count("rounds") if at.next_round is None else at.next_round
        self._rates = ScheduledRates.of(setting)
        self._outbox: RoundOutbox | None = None
        if setting.outbox is not None and setting.store.num_servers > 1:
            self._outbox = RoundOutbox(setting.outbox)

    def start(self) -> None:
        """Fetch the dense values and join the other workers."""
        super().start()
        self._group.join()
        at = self._setting.position
        if at is not None and at.has_partial_round and self._outbox is not None:
            kept = self._outbox.find(self._rounds)
            if kept is not None:
                self._push_round(*kept, {})
                self._fetch_dense()

    @property
    def steps_of_schedule(self) -> int:
        return self._rounds

    def leave(self) -> None:
        self._raise_failure()
        if self._round.leave() == 0:
            self._group.leave()

    def rejoin(self) -> None:
        """Start the next pass once all workers are ready; adopt their round count and values.

        A worker that ran out of data early has missed the last rounds of the others.
        """
        super().rejoin()
        self._rounds = self._group.next_pass(self._rounds)
        self._fetch_dense()

    def state(self) -> dict[str, int]:
        return {"rounds": self._rounds, **self._group.state()}

    def _push(
        self,
        batches: Sequence[Gradients],
        rows: Mapping[str, tuple[Keys, Floats]],
        data: list[DataMark],
    ) -> None:
        # Every worker sets the rates after the previous round was applied everywhere and before
        # this one can be, so the order of workers, and whether one has left, does not matter.
        if self._rates is not None:
            self._rates.at(self._rounds)
        if data:
            data.append((ROUNDS, data[0][1], self._rounds, self._rounds + 1))
            if self._outbox is not None:
                self._outbox.put(self._rounds, batches, data)
        self._push_round(batches, data, rows)

    def _push_round(
        self,
        batches: Sequence[Gradients],
        data: Sequence[DataMark],
        rows: Mapping[str, tuple[Keys, Floats]],
    ) -> None:
        self._store.push_round_mean(
            self._group.member,
            self._rounds,
            batches,
            values=self._fetched(),
            rows=rows,
            data=data,
            timeout_s=self._setting.wait_s,
            counts_step=self.rounds_count_steps,
        )
        self._rounds += 1

    def _leave_groups(self) -> None:
        self._group.close()
        if self._outbox is not None:
            self._outbox.close()
