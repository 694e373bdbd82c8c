"""Learning rates of a schedule, sent to the tables when they change."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Protocol

from sparsefleet.modes.mode_setting import ModeSetting, Schedule


class TakesRates(Protocol):
    """A store, as far as learning rates go."""

    def set_learning_rate(self, table: str, lr: float, *, at: int | None = None) -> None: ...


_MANY_STEPS = 1000


def begin_rates(setting: ModeSetting) -> None:
    """Sets the rates that the schedule begins or goes on with: tables may know those of another.

    Another worker that is already further loses its rate for as long as this one takes to join.
    """
    if setting.schedule is None:
        return
    tables = setting.tables if setting.dense_step is not None else setting.optimizers()
    rates = setting.schedule.rates_at(setting.first_step)
    for table in sorted(tables.keys() & rates.keys()):
        setting.store.set_learning_rate(table, rates[table])


class RateKeeper:
    """Keeps the tables at the schedule's rates; says nothing while they stay. Thread-safe."""

    def __init__(
        self,
        schedule: Schedule,
        store: TakesRates,
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
        """Sets the rates for the update ``step`` steps after the first; never goes back."""
        step += self._first
        with self._lock:
            if step <= self._step:
                return
            changed = self._changed_until(step)
            self._step = step
            for table in sorted(changed):
                self._store.set_learning_rate(table, self._rates[table], at=step)

    @classmethod
    def of(cls, setting: ModeSetting, store: TakesRates | None = None) -> RateKeeper | None:
        """For all tables of the setting; None if it has no schedule."""
        if setting.schedule is None:
            return None
        tables = setting.tables if setting.dense_step is not None else setting.optimizers()
        return cls(setting.schedule, store or setting.store, tables, first_step=setting.first_step)

    def _changed_until(self, step: int) -> set[str]:
        """The tables whose rate differs at any step since the last.

        At the steps between, another worker may have set a rate that this one never knew of.
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
