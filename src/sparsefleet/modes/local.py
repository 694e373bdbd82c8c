"""Local mode: one process, in which every thread applies its gradients immediately."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.errors import ConfigError
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.modes.rates import ScheduledRates


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalConfig:
    """Train in this process alone. This mode has no settings."""


class LocalMode(Mode):
    """Each thread pushes its own gradients and fetches the dense values; no thread waits.

    If ``setting.dense_step`` is set, it applies the dense gradients instead, one thread at a time.
    A schedule counts the mini-batches of all threads.
    """

    name: ClassVar[str] = "local"

    def __init__(self, setting: ModeSetting) -> None:
        if setting.worker_num > 1:
            raise ConfigError(
                f"mode 'local' trains in one process, got {setting.worker_num} workers; "
                "use 'sync', 'half_async', 'async', 'hybrid' or 'geo'"
            )
        super().__init__(setting)
        self._rates = ScheduledRates.of(setting)
        self.takes_parts = setting.dense_is_live and setting.dense_step is None
        self._count = 0
        self._count_lock = threading.Lock()
        self._dense_lock = threading.Lock()

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        if self._rates is not None:
            with self._count_lock:
                step, self._count = self._count, self._count + 1
            self._rates.at(step)
        began = time.perf_counter()
        apart = self._setting.dense_step
        dense = gradients.dense if apart is None else {}
        pushed = gradients.dense_parts or dense
        if gradients.sparse or pushed:
            self._store.push_many(gradients.sparse, pushed, unique=True)
        self._record.pushed(time.perf_counter() - began, 1)
        if apart is not None and gradients.dense:
            with self._dense_lock:
                apart(gradients.dense)
        elif dense:
            self._fetch_dense()
        self._record.stepped(0.0)

    @property
    def steps_of_schedule(self) -> int:
        return self._count

    def leave(self) -> None:
        self._raise_failure()

    def rejoin(self) -> None:
        self._raise_failure()

    def flush(self) -> None:
        self._raise_failure()
        self._fetch_dense()
