"""GEO-SGD: train on own copies, exchange differences with the servers now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from sparsefleet.errors import ConfigError, WorkerError
from sparsefleet.field_checks import require_int
from sparsefleet.modes.exchange_window import ExchangeWindows
from sparsefleet.modes.geo_replica import GeoReplica
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.modes.rates import RateKeeper
from sparsefleet.optim import SGD, Optimizer
from sparsefleet.store import AdmitAlways
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class GeoConfig:
    """Train on local copies; exchange differences with the servers now and then."""

    push_interval_steps: int = 100
    """Mini-batches of all threads of a worker between exchanges (Fluid's update_frequency).
    Larger: less traffic, staler rows."""

    def __post_init__(self) -> None:
        require_int(self, "push_interval_steps", 1, 2**31 - 1)


class GeoMode(Mode):
    """Every worker runs SGD on its own copy; differences, divided by the workers, are added up.

    A row unknown here is pulled at its first use, so all workers start from the servers' rows.
    What was not yet sent of a change is offered again in later exchanges, and all of it by
    ``flush``. Plain SGD only. A schedule counts this worker's mini-batches.
    """

    name: ClassVar[str] = "geo"

    def __init__(self, setting: ModeSetting, config: GeoConfig | None = None) -> None:
        for table, spec in setting.tables.items():
            _require_plain_sgd(f"table '{table}'", spec.optimizer)
            if not isinstance(spec.admission, AdmitAlways):
                raise ConfigError(
                    f"table '{table}': mode 'geo' trains rows on the workers, so the servers "
                    f"cannot apply {spec.admission!r}; use AdmitAlways or another mode"
                )
        for table, optimizer in setting.dense_optimizers.items():
            _require_plain_sgd(f"dense table '{table}'", optimizer)
        super().__init__(setting)
        self.takes_parts = True
        self._replica = GeoReplica(setting)
        self._rates = RateKeeper.of(setting, self._replica)
        self._steps = 0
        self._has_residue = False
        self._steps_lock = threading.Lock()
        interval = (config or GeoConfig()).push_interval_steps
        self._windows = ExchangeWindows(interval, wait_s=setting.wait_s)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Fetches the dense values and asks the servers to note which rows change."""
        for table in self._setting.tables:
            self._store.watch_changes(table)
        super().start()
        self._replica.start_dense()
        self._thread = threading.Thread(target=self._run, name="geo-exchange", daemon=True)
        self._thread.start()

    @property
    def steps_of_schedule(self) -> int:
        return self._steps

    def hand_over(self, gradients: StepGradients) -> None:
        self._raise_failure()
        if self._rates is not None:
            with self._steps_lock:
                step, self._steps = self._steps, self._steps + 1
            self._rates.at(step)
        staleness = self._windows.open_steps
        self._replica.apply(gradients)
        waited = self._windows.add()
        self._record.stepped(waited, staleness)

    def leave(self) -> None:
        self._raise_failure()

    def rejoin(self) -> None:
        self._raise_failure()

    def flush(self) -> None:
        """Sends what is left, undivided: what the exchanges to come would add up to."""
        self._raise_failure()
        rest = self._windows.take_rest()
        if rest or self._has_residue:
            self._send_rest(rest)
        self._has_residue = False
        self._take_over(exactly=True)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        wrapped = WorkerError({self._setting.worker_index: error})
        wrapped.__cause__ = error
        self._windows.fail(wrapped)

    def _pull_rows(
        self, keys: Mapping[str, Keys], train: bool, unknown: Unknown
    ) -> dict[str, Floats]:
        if not train:
            return super()._pull_rows(keys, train, unknown)
        return self._replica.pull(keys, lambda missing: self._store.pull_many(missing)[0])

    def _run(self) -> None:
        """The background thread: an exchange for each window that is full."""
        while steps := self._windows.next_full():
            try:
                self._exchange(steps)
            except BaseException as error:  # raised again in the training threads
                self._windows.fail(error)
                return
            self._windows.exchanged()

    def _exchange(self, steps: int) -> None:
        began = time.perf_counter()
        share = self._setting.worker_num
        self._has_residue = share > 1
        step = self._store.step
        self._send_dense(share)
        for table in self._setting.tables:
            self._send_rows(table, self._replica.take_row_deltas(table, share), step)
        self._record.pushed(time.perf_counter() - began, steps)
        self._take_over(exactly=False)

    def _send_rest(self, steps: int) -> None:
        began = time.perf_counter()
        step = self._store.step
        self._send_dense(1)
        for table in self._setting.tables:
            self._send_rows(table, self._replica.take_unsent_rows(table), step)
        self._record.pushed(time.perf_counter() - began, steps)

    def _send_rows(self, table: str, chunks: Iterable[tuple[Keys, Floats]], step: int) -> None:
        for keys, deltas in chunks:
            self._store.step = step  # all of an exchange is one step of the tables' rules
            self._store.push(table, keys, deltas, unique=True, add=True)

    def _send_dense(self, share: int) -> None:
        if self._setting.dense:
            deltas = self._replica.take_dense_deltas(share)
            self._store.push_many({}, deltas, add=True)

    def _take_over(self, *, exactly: bool) -> None:
        began = time.perf_counter()
        for table in self._setting.tables:
            for keys, rows in self._store.take_changes(table):
                self._replica.take_over_rows(table, keys, rows, exactly=exactly)
        if self._setting.dense:
            served = self._store.pull_many({}, list(self._setting.dense))[1]
            self._replica.take_over_dense(served, exactly=exactly)
        self._record.pulled(time.perf_counter() - began)

    def _end_threads(self) -> None:
        self._windows.close()
        if self._thread is not None:
            self._thread.join(self._setting.wait_s)


def _require_plain_sgd(what: str, optimizer: Optimizer) -> None:
    if type(optimizer) is not SGD or optimizer.l1 or optimizer.l2:
        raise ConfigError(
            f"{what} has optimizer {optimizer!r}: mode 'geo' adds up the workers' own changes, "
            "which makes sense for plain SGD only; use optim.SGD(lr=...) without weight decay, "
            "or another mode"
        )
