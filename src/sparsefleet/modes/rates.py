"""Learning rates from a schedule, sent to the tables when they change."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Protocol

from sparsefleet.errors import ConfigError
from sparsefleet.modes.mode_setting import ModeSetting, Schedule
from sparsefleet.store import RoundMember


class RateTarget(Protocol):
    """Anything whose learning rates can be set, such as a store."""

    def set_learning_rate(self, table: str, lr: float, *, at: int | None = None) -> None: ...


_MANY_STEPS = 1000


def set_first_rates(setting: ModeSetting) -> None:
    """Set the rates for the schedule's first step; tables may still have another run's rates.

    If another worker is already further along in the schedule, its rates are overwritten until this
    worker has joined.
    """
    if setting.schedule is None:
        return
    tables = setting.tables if setting.dense_step is not None else setting.optimizers()
    rates = setting.schedule.rates_at(setting.first_step)
    for table in sorted(tables.keys() & rates.keys()):
        setting.store.set_learning_rate(table, rates[table])


class ScheduledRates:
    """Sets the tables to the schedule's rates, sending only rates that change. Thread-safe."""

    def __init__(
        self,
        schedule: Schedule,
        store: RateTarget,
        tables: Collection[str],
        *,
        first_step: int = 0,
    ) -> None:
        self._schedule = schedule
        self._first = first_step
        self._store = store
        self._tables = frozenset(tables)
        self._lock = threading.Lock()
        self._step = -1
        self._rates: dict[str, float] = {}

    def at(self, step: int) -> None:
        """Set the rates for the update after ``step`` steps; earlier steps are ignored."""
        step += self._first
        with self._lock:
            if step <= self._step:
                return
            changed = self._changed_until(step)
            self._step = step
            for table in sorted(changed):
                self._store.set_learning_rate(table, self._rates[table], at=step)

    @classmethod
    def of(cls, setting: ModeSetting, store: RateTarget | None = None) -> ScheduledRates | None:
        """Return the scheduled rates of all tables in the setting; None if it has no schedule."""
        if setting.schedule is None:
            return None
        tables = setting.tables if setting.dense_step is not None else setting.optimizers()
        return cls(setting.schedule, store or setting.store, tables, first_step=setting.first_step)

    def _changed_until(self, step: int) -> set[str]:
        """Return the tables whose rate has changed at any step since the last call.

        At a step in between, a different worker may have set a rate that this worker never sent.
        """
        changed: set[str] = set()
        first = self._step + 1
        if step - first > _MANY_STEPS:
            self._rates.clear()
            first = step
        for between in range(first, step + 1):
            rates = self._schedule.rates_at(between)
            for table in self._tables & rates.keys():
                if rates[table] != self._rates.get(table):
                    self._rates[table] = rates[table]
                    changed.add(table)
        return changed


class StepCounter:
    """Sets learning rates based on the mini-batches of all workers, which the servers count.

    Without a schedule, nothing is counted or sent. Not thread-safe: pushes must come one at a time.
    """

    def __init__(self, setting: ModeSetting) -> None:
        self._store = setting.store
        at = setting.position
        self._takes_over = at is not None
        self._own = 0 if at is None else at.count("counted") + at.batches
        self.total = 0
        """Number of mini-batches of all workers, as known to this worker; 0 without a schedule."""
        self._rates = ScheduledRates.of(setting)
        self._member = RoundMember(
            group=f"{setting.group}/steps",
            rank=setting.worker_index,
            size=setting.worker_num,
            continue_without_lost=setting.continue_without_lost,
        )

    def start(self) -> None:
        """Set the first rates, unless other workers are already further along."""
        if self._rates is not None:
            try:
                self._store.advance_clock(self._member, 0)  # joins
            except ConfigError:
                if not self._takes_over:
                    raise
                self._rates = None  # the previous process left the group when it exited
                return
            self.total = self._store.advance_clock(self._member, self._own)
            self._rates.at(self.total)

    @property
    def own(self) -> int:
        """Return the number of mini-batches that this worker has counted."""
        return self._own

    def add(self, count: int) -> None:
        """Count the mini-batches of a push and set the rates for the next push of any worker."""
        if self._rates is not None:
            self._own += count
            self.total = self._store.advance_clock(self._member, self._own)
            self._rates.at(self.total)

    def close(self) -> None:
        """Stop counting; this worker's count stays in the sum."""
        if self._rates is not None:
            self._store.leave_group(self._member)
            self._rates = None
