"""Learning rates of a schedule, sent to the tables when they change."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Protocol

from sparsefleet.modes.mode_setting import Schedule


class TakesRates(Protocol):
    """A store, as far as learning rates go."""

    def set_learning_rate(self, table: str, lr: float, *, at: int | None = None) -> None: ...


class RateKeeper:
    """Keeps the tables at the schedule's rates; says nothing while they stay. Thread-safe."""

    def __init__(self, schedule: Schedule, store: TakesRates, tables: Collection[str]) -> None:
        self._schedule = schedule
        self._store = store
        self._tables = tables
        self._lock = threading.Lock()
        self._step = -1
        self._rates: dict[str, float] = {}

    def at(self, step: int) -> dict[str, float]:
        """Sets and returns the rates for the update after ``step`` steps; never goes back."""
        with self._lock:
            if step > self._step:
                self._step = step
                rates = self._schedule.rates_at(step)
                for table in self._tables:
                    if table in rates and rates[table] != self._rates.get(table):
                        self._store.set_learning_rate(table, rates[table], at=step)
                        self._rates[table] = rates[table]
            return dict(self._rates)
