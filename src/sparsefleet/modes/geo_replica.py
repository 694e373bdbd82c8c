"""A worker's own copy of what it trains, and what it believes the servers have.

Letters: N keys, D row width, W workers. For each value: *train*, trained here; *old*, what the
servers had when this worker last looked, with its own changes sent since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import NonFiniteError
from sparsefleet.modes.dense_parts import DenseParts
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.store import LocalStore, Rows, TableSpec
from sparsefleet.store.arrays import Floats, Keys

_CHUNK_FLOATS = 1 << 20
"""Most values that are compared, or sent, at a time when all rows are."""
_CACHED_FLOATS = 1 << 15
"""Values that an exchange works on at a time: several arrays of them stay in a core's cache."""


class GeoReplica:
    """Rows that this worker has touched and all dense parameters, trained by plain SGD.

    Thread-safe. ``train`` is only ever incremented, so that what other threads do to it
    meanwhile survives.
    """

    def __init__(self, setting: ModeSetting) -> None:
        self._train = LocalStore()
        self._old = LocalStore()
        self._specs = setting.tables
        for spec in setting.tables.values():
            # Rows come from the servers; here none is born or goes.
            own = TableSpec(
                name=spec.name,
                dim=spec.dim,
                optimizer=spec.optimizer,
                non_finite=spec.non_finite,
            )
            self._train.define(own)
            self._old.define(own)
        self._live = setting.dense
        self._old_dense = {name: live.copy() for name, live in setting.dense.items()}
        self._rates = {name: made.lr for name, made in setting.dense_optimizers.items()}
        self._dense_lock = threading.Lock()
        self._birth_lock = threading.Lock()

    def close(self) -> None:
        self._train.close()
        self._old.close()

    def start_dense(self) -> None:
        """The live parameters are what the servers have."""
        for name, live in self._live.items():
            np.copyto(self._old_dense[name], live)

    def set_learning_rate(self, table: str, lr: float, *, at: int | None = None) -> None:
        """As a store does."""
        if table in self._specs:
            self._train.set_learning_rate(table, lr, at=at)
        else:
            self._rates[table] = lr

    # -- training -----------------------------------------------------------------------------

    def pull(
        self, keys: Mapping[str, Keys], fetch: Callable[[dict[str, Keys]], Mapping[str, Floats]]
    ) -> dict[str, Floats]:
        """The rows as trained here; ``fetch`` brings those not seen before, of all tables."""
        rows: dict[str, Floats] = {}
        places = {}
        for table, wanted in keys.items():
            rows[table], unknown = self._train.pull_known(table, wanted)
            if unknown.size:
                places[table] = unknown
        if places:
            missing = {table: keys[table][unknown] for table, unknown in places.items()}
            for table, born in fetch(missing).items():
                self._give_birth(table, missing[table], born)
            for table, born in self._train.pull_many(missing)[0].items():
                rows[table][places[table]] = born
        return rows

    def apply(self, gradients: StepGradients) -> None:
        """One step of plain SGD."""
        if gradients.sparse:
            self._train.push_many(gradients.sparse, unique=True)
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

    # -- exchange -----------------------------------------------------------------------------

    def take_row_deltas(self, table: str, keys: Keys, share: int) -> Floats:
        """What is to be sent of these rows, (train - old) / share; counts as sent."""
        deltas: Floats = np.empty((len(keys), self._specs[table].dim), np.float32)
        for part in self._cached_parts(table, len(keys)):
            some, delta = keys[part], deltas[part]
            old = self._old.pull(table, some)
            np.subtract(self._train.pull(table, some), old, out=delta)
            if share > 1:
                delta /= np.float32(share)
            old += delta
            self._write_old(table, some, old)
        return deltas

    def take_dense_deltas(self, share: int) -> dict[str, Floats]:
        """The same for all dense parameters."""
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

    def unsent_rows(self, table: str) -> Iterator[Keys]:
        """The keys of rows that differ from what the servers have, in chunks."""
        chunk_rows = max(1, _CHUNK_FLOATS // self._specs[table].dim)
        for chunk in self._train.rows(table, chunk_rows=chunk_rows):
            differs = (chunk.values != self._old.pull(table, chunk.keys)).any(axis=1)
            if differs.any():
                yield chunk.keys[differs]

    def take_over_rows(self, table: str, keys: Keys, served: Floats, *, exactly: bool) -> None:
        """Rows as the servers have them now; those never touched here are not kept.

        ``exactly`` sets the rows, where nobody trains, so that no rounding is left to send.
        """
        known = self._train.contains(table, keys)
        if not known.all():
            keys, served = keys[known], served[known]
        for part in self._cached_parts(table, len(keys)):
            some, rows = keys[part], served[part]
            if exactly:
                self._write(self._train, table, some, rows)
            else:
                difference = rows - self._old.pull(table, some)
                self._train.push(table, some, difference, unique=True, add=True)
            self._write_old(table, some, rows)

    def _cached_parts(self, table: str, num_rows: int) -> Iterator[slice]:
        step = max(1, _CACHED_FLOATS // self._specs[table].dim)
        return (slice(begin, begin + step) for begin in range(0, num_rows, step))

    def take_over_dense(self, served: Mapping[str, Floats], *, exactly: bool) -> None:
        """The same for dense parameters."""
        for table, values in served.items():
            live, old = self._live[table], self._old_dense[table]
            with self._dense_lock:
                if exactly:
                    np.copyto(live, values)
                else:
                    np.add(live, values - old, out=live)
            np.copyto(old, values)

    def _give_birth(self, table: str, keys: Keys, rows: Floats) -> None:
        """Another thread may have been faster: its row, perhaps trained already, stays."""
        with self._birth_lock:
            new = ~self._train.contains(table, keys)
            self._write_old(table, keys[new], rows[new])
            self._write(self._train, table, keys[new], rows[new])

    def _write_old(self, table: str, keys: Keys, rows: Floats) -> None:
        self._write(self._old, table, keys, rows)

    @staticmethod
    def _write(store: LocalStore, table: str, keys: Keys, rows: Floats) -> None:
        no_state = np.empty((len(keys), 0), np.float32)
        no_counters = np.empty((len(keys), 0), np.uint32)
        store.import_rows(table, Rows(keys, rows, no_state, no_counters))
