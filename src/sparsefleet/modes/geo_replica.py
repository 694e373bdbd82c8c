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
from sparsefleet.store.arrays import Floats, Keys, as_keys, as_values
from sparsefleet.store.lowering import lower_table
from sparsefleet.store.rejected_rows import RejectedRows

_CHUNK_FLOATS = 1 << 18
"""Differences sent at a time: few enough to be in the processor's cache when they are."""


class GeoReplica:
    """Rows that this worker has touched and all dense parameters, trained by plain SGD.

    Thread-safe. ``train`` is only ever incremented, so that what other threads do to it
    meanwhile survives.
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

    def start_dense(self) -> None:
        """The live parameters are what the servers have."""
        for name, live in self._live.items():
            np.copyto(self._old_dense[name], live)

    def set_learning_rate(self, table: str, lr: float, *, at: int | None = None) -> None:  # noqa: ARG002
        """As a store does; rates come in the order of the schedule."""
        if table in self._tables:
            self._tables[table].set_learning_rate(lr)
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
            rows[table] = np.empty((len(wanted), self._dims[table]), np.float32)
            unknown = self._tables[table].pull(wanted, rows[table])
            if unknown.size:
                places[table] = unknown
        if places:
            missing = {table: keys[table][unknown] for table, unknown in places.items()}
            for table, fetched in fetch(missing).items():
                # Another thread may have been faster: its row, perhaps trained already, stays.
                self._tables[table].insert(missing[table], fetched)
                self._tables[table].pull(missing[table], fetched)
                rows[table][places[table]] = fetched
        return rows

    def apply(self, gradients: StepGradients) -> None:
        """One step of plain SGD."""
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

    # -- exchange -----------------------------------------------------------------------------

    def take_row_deltas(self, table: str, share: int) -> Iterator[tuple[Keys, Floats]]:
        """What is to be sent of the rows stepped since the last time, (train - old) / share.

        Counts as sent. Arrays hold until the next are asked for.
        """
        return self._chunks(table, self._tables[table].stepped(share))

    def take_unsent_rows(self, table: str) -> Iterator[tuple[Keys, Floats]]:
        """All that differs from what the servers have, undivided. Nobody may train meanwhile."""
        return self._chunks(table, self._tables[table].unsent())

    def _chunks(self, table: str, walk: _core.ReplicaWalk) -> Iterator[tuple[Keys, Floats]]:
        dim = self._dims[table]
        keys: Keys = np.empty(max(1, _CHUNK_FLOATS // dim), np.uint64)
        deltas: Floats = np.empty((len(keys), dim), np.float32)
        while count := walk.next(keys, deltas):
            yield keys[:count], deltas[:count]

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

    def take_over_rows(self, table: str, keys: Keys, served: Floats, *, exactly: bool) -> None:
        """Rows as the servers have them now; those never touched here are not kept.

        ``exactly`` sets the rows, where nobody trains, so that no rounding is left to send.
        """
        self._tables[table].take_over(keys, served, exactly)

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
