"""GEO-SGD mode: workers train their own copies and exchange deltas with the servers.

In shapes, N is the number of keys, D the row width, and W the number of workers. For each value,
*train* is the value trained here; *old* is the servers' value when this worker last fetched it,
plus the changes that this worker has sent since.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import ConfigError, DeadlineError, NonFiniteError
from sparsefleet.field_checks import require_int
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import GRADIENTS, DenseParts, ModeSetting, StepGradients
from sparsefleet.modes.rates import ScheduledRates
from sparsefleet.optim import SGD, Optimizer
from sparsefleet.store import AdmitAlways
from sparsefleet.store.arrays import Floats, Keys, as_keys, as_values
from sparsefleet.store.rows import DataMark, RejectedRows, join_marks
from sparsefleet.store.store import Unknown
from sparsefleet.store.table_spec import lower_table

_CHUNK_FLOATS = 1 << 18
"""Number of differences sent at a time, few enough to stay in the processor's cache."""
_GROWTH = 100  # the interval is the number of mini-batches so far divided by this
_MOST_STEPS = 100
_FEW_STEPS = 10  # lower limit when an interval is divided among workers
_FRAME_SHARE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class GeoConfig:
    """Train on local copies, and exchange deltas with the servers periodically."""

    push_interval_steps: int | None = None
    """Mini-batches of all threads of a worker between exchanges (Fluid's update_frequency). Larger
    values mean less traffic but staler rows. None means a hundredth of the mini-batches so far, at
    most 100, divided by the number of other workers, but no less than 10. This keeps workers
    together while the model changes quickly. The changes of all workers add up, so rows that all of
    them change overshoot sooner with more workers.
    """

    def __post_init__(self) -> None:
        if self.push_interval_steps is not None:
            require_int(self, "push_interval_steps", 1, 2**31 - 1)


class GeoMode(Mode):
    """Every worker runs SGD on its own copy; servers add up the deltas of all workers.

    A row is pulled when a worker first uses it, so all workers start from the servers' rows. The
    part of a change that was not sent is offered again in later exchanges, and ``flush`` sends all
    of it. Only plain SGD is supported. A schedule counts this worker's mini-batches.

    If servers track mini-batches, an exchange sends exactly the complete changes since the last
    exchange in one push, so a process that replaces this one can continue after the last exchange.
    If one more mini-batch would make the push exceed a frame, the exchange happens first.
    """

    name: ClassVar[str] = "geo"

    def __init__(self, setting: ModeSetting, config: GeoConfig | None = None) -> None:
        for table, spec in setting.tables.items():
            _require_plain_sgd(f"table '{table}'", spec.optimizer)
            if not isinstance(spec.admission, AdmitAlways):
                raise ConfigError(
                    f"table '{table}': mode 'geo' trains rows on the workers, so the servers "
                    f"cannot apply {spec.admission!r}; use AdmitAlways or a different mode"
                )
        for table, optimizer in setting.dense_optimizers.items():
            _require_plain_sgd(f"dense table '{table}'", optimizer)
        super().__init__(setting)
        self.takes_parts = True
        self._replica = GeoReplica(setting)
        self._rates = ScheduledRates.of(setting, self._replica)
        at = setting.position
        self._steps = 0 if at is None else at.count("steps") + at.batches
        self._has_residue = False
        self._account = Account(ExchangeRoom(setting, self._replica))
        self._keeps_account = False
        self._steps_lock = threading.Lock()
        self._exchange_lock = threading.Lock()
        interval = (config or GeoConfig()).push_interval_steps
        begun = setting.first_step + self._steps
        self._windows = ExchangeWindows(
            interval, others=setting.worker_num - 1, begun=begun, wait_s=setting.wait_s
        )
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Fetch the dense values, and ask the servers to record which rows change."""
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
        with self._steps_lock:
            step, self._steps = self._steps, self._steps + 1
        if self._rates is not None:
            self._rates.at(step)
        staleness = self._windows.open_steps
        origin = gradients.origin
        if origin is None:
            self._replica.apply(gradients)
        else:
            self._keeps_account = True
            rows = {table: len(keys) for table, (keys, _) in gradients.sparse.items()}
            while not self._account.begin(rows, is_partial=GRADIENTS in origin.partial):
                with self._exchange_lock:
                    self._send_account(0)
            try:
                self._replica.apply(gradients)
            finally:
                self._account.end(self._marks([origin]))
        waited = self._windows.add()
        self._record.stepped(waited, staleness)

    def state(self) -> dict[str, int]:
        return {"steps": self._steps}

    def leave(self) -> None:
        self._raise_failure()

    def rejoin(self) -> None:
        self._raise_failure()

    def flush(self) -> None:
        """Send all remaining deltas at once, not divided by the number of workers."""
        self._raise_failure()
        rest = self._windows.take_rest()
        with self._exchange_lock:
            if self._keeps_account:
                self._send_account(rest)
            elif rest or self._has_residue:
                self._send_rest(rest)
            self._has_residue = False
            self._take_over_rows(exactly=True)
            if self._setting.dense:
                served = self._store.pull_many({}, list(self._setting.dense))[1]
                self._replica.take_over_dense(served, exactly=True)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._windows.fail(self._worker_error(error))

    def _pull_rows(
        self, keys: Mapping[str, Keys], train: bool, unknown: Unknown
    ) -> dict[str, Floats]:
        if not train:
            return super()._pull_rows(keys, train, unknown)
        return self._replica.pull(keys, lambda missing: self._store.pull_many(missing)[0])

    def _run(self) -> None:
        """Run the background thread, which makes one exchange per full window."""
        while steps := self._windows.next_full():
            try:
                with self._exchange_lock:
                    self._exchange(steps)
            except BaseException as error:  # raised again in the training threads
                self._windows.fail(error)
                return
            self._windows.exchanged()

    def _exchange(self, steps: int) -> None:
        if self._keeps_account:
            self._send_account(steps)
        else:
            began = time.perf_counter()
            share = self._setting.worker_num
            self._has_residue = share > 1
            step = self._store.step
            self._send_dense(share)
            for table in self._setting.tables:
                self._send_rows(table, self._replica.take_row_deltas(table, share), step)
            self._record.pushed(time.perf_counter() - began, steps)
        self._take_over_rows(exactly=False)

    def _send_account(self, steps: int) -> None:
        """Send the deltas of all mini-batches since the last exchange in one push.

        The dense values in the reply are merged into the local ones.
        """
        began = time.perf_counter()
        with self._account.closing() as (data, is_partial):
            rows = {table: self._replica.take_all_deltas(table) for table in self._setting.tables}
            dense = self._replica.take_dense_deltas(1)
        if not data:  # another thread was first
            return
        sent = {table: found for table, found in rows.items() if len(found[0])}
        values = _like(dense)
        self._store.push_many(sent, dense, values=values, data=data, unique=True, add=True)
        self._replica.take_over_dense(values, exactly=False)
        if is_partial:  # servers that had it did not add it again, so the copies are ahead
            served = self._store.pull_many({table: keys for table, (keys, _) in sent.items()})[0]
            for table, now in served.items():
                self._replica.take_over_rows(table, sent[table][0], now, exactly=False)
        self._record.pushed(time.perf_counter() - began, steps)

    def _send_rest(self, steps: int) -> None:
        began = time.perf_counter()
        step = self._store.step
        self._send_dense(1)
        for table in self._setting.tables:
            self._send_rows(table, self._replica.take_unsent_rows(table), step)
        self._record.pushed(time.perf_counter() - began, steps)

    def _send_rows(self, table: str, chunks: Iterable[tuple[Keys, Floats]], step: int) -> None:
        for keys, deltas in chunks:
            self._store.step = step  # a whole exchange counts as one step for the tables' rules
            self._store.push(table, keys, deltas, unique=True, add=True)

    def _send_dense(self, share: int) -> None:
        if self._setting.dense:
            deltas = self._replica.take_dense_deltas(share)
            values = _like(deltas)
            self._store.push_many({}, deltas, values=values, add=True)
            self._replica.take_over_dense(values, exactly=False)

    def _take_over_rows(self, *, exactly: bool) -> None:
        began = time.perf_counter()
        for table in self._setting.tables:
            for keys, rows in self._store.take_changes(table):
                self._replica.take_over_rows(table, keys, rows, exactly=exactly)
        self._record.pulled(time.perf_counter() - began)

    def _end_threads(self) -> None:
        self._windows.close()
        if self._thread is not None:
            self._thread.join(self._setting.wait_s)


class ExchangeRoom:
    """Counts the rows of the next exchange, so that its push fits in a frame. Not thread-safe.

    The count is an upper bound: every row of every mini-batch, up to the number of copies.
    """

    def __init__(self, setting: ModeSetting, replica: GeoReplica) -> None:
        self._replica = replica
        self._row_bytes = {table: 8 + 4 * spec.dim for table, spec in setting.tables.items()}
        self._rows = dict.fromkeys(setting.tables, 0)
        frame, servers = setting.store.max_frame_bytes, setting.store.num_servers
        self._bytes = math.inf
        if frame is not None:
            dense = sum(values.nbytes for values in setting.dense.values())
            # Rows are spread evenly by a hash, but all dense values may be on one server.
            self._bytes = _FRAME_SHARE * max(frame - dense, 0) * servers

    def fits(self, rows: Mapping[str, int]) -> bool:
        """Return whether a mini-batch with this many rows of each table can be added."""
        counts = {table: self._rows[table] + rows.get(table, 0) for table in self._rows}
        return self._bytes >= sum(
            min(count, self._replica.size(table)) * self._row_bytes[table]
            for table, count in counts.items()
        )

    def add(self, rows: Mapping[str, int]) -> None:
        """Count the rows of a mini-batch."""
        for table, count in rows.items():
            self._rows[table] += count

    def clear(self) -> None:
        """Start counting from zero, since an exchange is starting."""
        self._rows = dict.fromkeys(self._rows, 0)


class Account:
    """The mini-batches whose changes are in the local copies but not on the servers. Thread-safe.

    Threads may enter mini-batches concurrently, but not while changes are being collected. A
    mini-batch that some servers have already applied is not collected together with others.
    """

    def __init__(self, room: ExchangeRoom) -> None:
        self._room = room
        self._changed = threading.Condition()
        self._entering = 0
        self._is_partial = False
        self._is_closing = False
        self._marks: list[DataMark] = []

    def begin(self, rows: Mapping[str, int], *, is_partial: bool) -> bool:
        """Start entering a mini-batch with this many rows of each table; return False if the
        mini-batches entered so far must be collected first.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closing)
            is_alone = not (self._marks or self._entering)
            if not is_alone and (is_partial or self._is_partial or not self._room.fits(rows)):
                return False
            self._is_partial = is_partial
            self._room.add(rows)
            self._entering += 1
            return True

    def end(self, marks: Sequence[DataMark]) -> None:
        """Record that the changes of a mini-batch are entered."""
        with self._changed:
            self._entering -= 1
            self._marks += marks
            self._changed.notify_all()

    @contextmanager
    def closing(self) -> Iterator[tuple[list[DataMark], bool]]:
        """Collect the changes of all entered mini-batches. Return their data, with adjacent ranges
        joined, and whether some servers have already applied it.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closing)
            self._is_closing = True
            self._changed.wait_for(lambda: not self._entering)
            marks, self._marks = join_marks(self._marks), []
            self._room.clear()
        try:
            yield marks, self._is_partial
        finally:
            with self._changed:
                self._is_closing = False
                self._changed.notify_all()


def _like(arrays: Mapping[str, Floats]) -> dict[str, Floats]:
    return {name: np.empty_like(array) for name, array in arrays.items()}


def settled_interval(workers: int) -> int:
    """Return the default interval of `GeoConfig` once it has stopped growing.

    >>> [settled_interval(workers) for workers in (1, 2, 5, 500)]
    [100, 100, 25, 10]
    """
    return _divided(_MOST_STEPS, max(workers - 1, 1))


def _divided(grown: int, others: int) -> int:
    return max(grown // others, min(grown, _FEW_STEPS))


class ExchangeWindows:
    """Counts one window of mini-batches while the previous one is exchanged.

    Invariant: no window grows beyond its interval, which never shrinks. Training is therefore at
    most one interval ahead of a running exchange. Thread-safe; one thread exchanges.

    interval_steps: mini-batches per window; None means that it grows, see `GeoConfig`.
    others: the number of other workers.
    begun: mini-batches in an earlier part of the same run.
    """

    def __init__(
        self, interval_steps: int | None, *, others: int = 1, begun: int = 0, wait_s: float
    ) -> None:
        self._fixed = interval_steps
        self._others = max(others, 1)
        self._total = begun  # mini-batches since the start
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._filling = 0  # mini-batches
        self._full = 0
        self._closed = False
        self._failure: BaseException | None = None

    def add(self) -> float:
        """Count a mini-batch, blocking while both windows are full; return the seconds blocked."""
        began = time.monotonic()
        with self._changed:
            self._wait(lambda: self._filling < self._interval)
            self._filling += 1
            self._total += 1
            self._turn_if_full()
        return time.monotonic() - began

    def next_full(self) -> int:
        """Wait for a full window. Return its mini-batch count, or 0 after a close or failure."""
        with self._changed:
            self._changed.wait_for(lambda: self._full or self._closed or self._failure)
            return 0 if self._failure else self._full

    def exchanged(self) -> None:
        """Mark the window that ``next_full`` returned as exchanged."""
        with self._changed:
            self._full = 0
            self._turn_if_full()
            self._changed.notify_all()

    def take_rest(self) -> int:
        """Wait for the running exchange, then empty the incomplete window; return its size."""
        with self._changed:
            self._wait(lambda: not self._full)
            rest, self._filling = self._filling, 0
            return rest

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Make all waits, pending or later, raise ``error``."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    @property
    def open_steps(self) -> int:
        """Return the number of mini-batches not yet exchanged."""
        return self._filling + self._full

    @property
    def _interval(self) -> int:
        if self._fixed is not None:
            return self._fixed
        return max(_divided(min(self._total // _GROWTH, _MOST_STEPS), self._others), 1)

    def _turn_if_full(self) -> None:
        if not self._full and self._filling >= self._interval:
            self._full, self._filling = self._filling, 0
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(lambda: condition() or self._failure, self._wait_s):
            raise DeadlineError(
                f"the exchange of {self._full} mini-batches with the servers did not finish within "
                f"{self._wait_s:g} s"
            )
        if self._failure is not None:
            raise self._failure


def _require_plain_sgd(what: str, optimizer: Optimizer) -> None:
    if type(optimizer) is not SGD or optimizer.l1 or optimizer.l2:
        raise ConfigError(
            f"{what} has optimizer {optimizer!r}, but mode 'geo' adds up the changes of all "
            "workers, which needs plain SGD; use optim.SGD(lr=...) without weight decay, or a "
            "different mode"
        )


class GeoReplica:
    """The rows that this worker has used, and all dense parameters, trained with plain SGD.

    Thread-safe. ``train`` is only ever incremented, so concurrent changes by other threads are
    kept.
    """

    def __init__(self, setting: ModeSetting) -> None:
        self._tables = {
            name: _core.Replica.create(lower_table(spec)) for name, spec in setting.tables.items()
        }
        self._dims = {name: spec.dim for name, spec in setting.tables.items()}
        self._rejected = RejectedRows()
        self._live = setting.dense
        self._old_dense = {name: live.copy() for name, live in setting.dense.items()}
        self._rates = {name: made.lr for name, made in setting.dense_optimizers.items()}
        self._dense_lock = threading.Lock()

    def size(self, table: str) -> int:
        """Return how many of the table's rows this worker has copies of."""
        return self._tables[table].size

    def start_dense(self) -> None:
        """Treat the live parameters as the servers' current values."""
        for name, live in self._live.items():
            np.copyto(self._old_dense[name], live)

    def set_learning_rate(self, table: str, lr: float, *, at: int | None = None) -> None:  # noqa: ARG002
        """Set the learning rate of a table, as a store does; call it in schedule order."""
        if table in self._tables:
            self._tables[table].set_learning_rate(lr)
        else:
            self._rates[table] = lr

    # -- Training -----------------------------------------------------------------------------

    def pull(
        self, keys: Mapping[str, Keys], fetch: Callable[[dict[str, Keys]], Mapping[str, Floats]]
    ) -> dict[str, Floats]:
        """Return the rows as trained here; ``fetch`` pulls rows used for the first time."""
        rows: dict[str, Floats] = {}
        places = {}
        for table, wanted in keys.items():
            rows[table] = np.empty((len(wanted), self._dims[table]), np.float32)
            unknown = self._tables[table].pull(wanted, rows[table])
            if unknown.size:
                places[table] = unknown
        if places:
            missing = {table: keys[table][unknown] for table, unknown in places.items()}
            for table, fetched in fetch(missing).items():
                # A different thread may have inserted the row first; its version, perhaps already
                # trained, stays.
                self._tables[table].insert(missing[table], fetched)
                self._tables[table].pull(missing[table], fetched)
                rows[table][places[table]] = fetched
        return rows

    def apply(self, gradients: StepGradients) -> None:
        """Take one plain SGD step."""
        for table, (raw_keys, raw_rows) in gradients.sparse.items():
            keys = as_keys(table, raw_keys)
            rows = as_values(table, "gradients", raw_rows, (len(keys), self._dims[table]))
            if rejected := self._tables[table].step(keys, rows):
                self._rejected.add(table, rejected)
        for table, gradient in gradients.dense.items():
            self._step_dense(table, [gradient])
        for table, parts in gradients.dense_parts.items():
            self._step_dense(table, parts)

    def _step_dense(self, table: str, parts: DenseParts) -> None:
        with self._dense_lock:
            is_finite = _core.step_by_parts(parts, self._rates[table], self._live[table])
        if not is_finite:
            raise NonFiniteError(
                f"dense table '{table}': NaN or infinity in the gradient; nothing was applied"
            )

    # -- Exchange -----------------------------------------------------------------------------

    def take_row_deltas(self, table: str, share: int) -> Iterator[tuple[Keys, Floats]]:
        """Yield (train - old) / share for the rows trained since the last call; treat it as sent.

        The arrays are valid until the next chunk is requested.
        """
        return self._chunks(table, self._tables[table].stepped(share))

    def take_all_deltas(self, table: str) -> tuple[Keys, Floats]:
        """Return train - old for the rows trained since the last call, and treat it as sent."""
        dim, walk = self._dims[table], self._tables[table].stepped(1)
        keys: Keys = np.empty(max(1, _CHUNK_FLOATS // dim), np.uint64)
        deltas: Floats = np.empty((len(keys), dim), np.float32)
        size = 0
        while count := walk.next(keys[size:], deltas[size:]):
            size += count
            if size == len(keys):
                keys = np.concatenate([keys, np.empty_like(keys)])
                deltas = np.concatenate([deltas, np.empty_like(deltas)])
        return keys[:size], deltas[:size]

    def take_unsent_rows(self, table: str) -> Iterator[tuple[Keys, Floats]]:
        """Yield the full deltas from the servers' values. No thread may train at the same time."""
        return self._chunks(table, self._tables[table].unsent())

    def _chunks(self, table: str, walk: _core.ReplicaWalk) -> Iterator[tuple[Keys, Floats]]:
        dim = self._dims[table]
        keys: Keys = np.empty(max(1, _CHUNK_FLOATS // dim), np.uint64)
        deltas: Floats = np.empty((len(keys), dim), np.float32)
        while count := walk.next(keys, deltas):
            yield keys[:count], deltas[:count]

    def take_dense_deltas(self, share: int) -> dict[str, Floats]:
        """Return (train - old) / share for all dense parameters, and treat it as sent."""
        deltas = {}
        for table, live in self._live.items():
            old = self._old_dense[table]
            with self._dense_lock:
                delta: Floats = live - old
            if share > 1:
                delta /= np.float32(share)
            old += delta
            deltas[table] = delta
        return deltas

    def take_over_rows(self, table: str, keys: Keys, served: Floats, *, exactly: bool) -> None:
        """Merge in the servers' current rows; skip rows that this worker has never used.

        With ``exactly``, the rows are set instead, which leaves no rounding error to send but
        requires that no thread trains.
        """
        self._tables[table].take_over(keys, served, exactly)

    def take_over_dense(self, served: Mapping[str, Floats], *, exactly: bool) -> None:
        """Merge in the servers' current dense values; for ``exactly``, see `take_over_rows`."""
        for table, values in served.items():
            live, old = self._live[table], self._old_dense[table]
            with self._dense_lock:
                if exactly:
                    np.copyto(live, values)
                else:
                    np.add(live, values - old, out=live)
            np.copyto(old, values)
