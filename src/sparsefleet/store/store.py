"""The one protocol through which training reaches its tables, wherever they live.

Letters: N keys, D row width, S floats of optimizer state a row, C counters a row.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.field_checks import is_number
from sparsefleet.store.arrays import Floats, Keys, as_keys, as_output, as_parts, as_values
from sparsefleet.store.file_calls import FileCalls
from sparsefleet.store.lowering import lower_dense, lower_table
from sparsefleet.store.meeting_calls import MeetingCalls
from sparsefleet.store.rejected_rows import RejectedRows
from sparsefleet.store.round_member import RoundMember, lower_member
from sparsefleet.store.rows import PushResult, Rows
from sparsefleet.store.table_spec import DenseSpec, TableSpec

if TYPE_CHECKING:
    from typing_extensions import Self

Unknown = Literal["zeros", "initial"]

# table, keys (None: dense), gradients in parts (none: rows are wanted), whether no key repeats,
# whether to add past the optimizer, what takes the dense values or the rows after the push
_Section = tuple[str, Keys | None, list[Floats], bool, bool, Floats | None]

# Servers hand out chunks as large as suits them; a local store as many rows as this.
_CHANGES_CHUNK_ROWS = 65536


class Store(MeetingCalls, FileCalls):
    """Tables by name: pull rows, push gradients, meet other workers.

    Made as :class:`LocalStore` (tables in this process) or :class:`RemoteStore` (tables on
    servers); both behave alike. Thread-safe; every call releases the GIL and ends after
    ``timeout_s`` seconds (default: the store's own) at the latest, with ``DeadlineError``.

    >>> import numpy as np
    >>> from sparsefleet.store import LocalStore, TableSpec
    >>> from sparsefleet.optim import SGD
    >>> from sparsefleet.store import Constant
    >>> store = LocalStore()
    >>> store.define(TableSpec(name="ads", dim=2, optimizer=SGD(lr=0.5), initializer=Constant(1.0)))
    >>> store.pull("ads", np.array([7, 9]))
    array([[1., 1.],
           [1., 1.]], dtype=float32)
    >>> store.push("ads", np.array([7]), np.array([[2.0, 4.0]], np.float32))
    PushResult(applied=1, rejected_non_finite=0, not_admitted=0)
    >>> store.pull("ads", np.array([7]))
    array([[ 0., -1.]], dtype=float32)
    """

    def __init__(self, native: _core.Store, *, timeout_s: float) -> None:
        _check_timeout(timeout_s)
        self._native = native
        self._timeout_s = timeout_s
        self._specs: dict[str, TableSpec | DenseSpec] = {}
        self._dims: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._step = 0
        self._rejected = RejectedRows()
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _close_native, native, os.getpid())

    # -- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends connections and frees local tables. Idempotent; later calls raise."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def num_servers(self) -> int:
        """Servers the tables are dealt over; 1 for a LocalStore."""
        return self._native.num_servers

    @property
    def step(self) -> int:
        """The step that pushes and ``shrink`` are stamped with: pushes made so far, unless set.

        Workers that count steps together set it to the common number.
        """
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        if not 0 <= value < 2**63:
            raise ConfigError(f"step must be in 0..2**63 - 1, got {value}")
        self._step = value

    # -- tables -------------------------------------------------------------------------------

    def define(self, spec: TableSpec | DenseSpec, *, timeout_s: float | None = None) -> None:
        """Makes the table on every server. The same spec again is fine, another one is an error."""
        deadline_s = self._deadline(timeout_s)
        if isinstance(spec, TableSpec):
            self._native.define_sparse(lower_table(spec), deadline_s)
            self._dims[spec.name] = spec.dim
        else:
            self._native.define_dense(lower_dense(spec), deadline_s)
            self._sizes[spec.name] = spec.size
        self._specs[spec.name] = spec

    @property
    def specs(self) -> Mapping[str, TableSpec | DenseSpec]:
        """The tables that this store object has defined, by name."""
        return self._specs

    def info(self, table: str, *, timeout_s: float | None = None) -> _core.TableInfo:
        """Kind, width and size of a table, also of one that another worker defined."""
        return self._native.info(table, self._deadline(timeout_s))

    def set_learning_rate(
        self, table: str, lr: float, *, at: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Takes effect from the next push on.

        Workers that follow one schedule name the count ``at`` which the rate begins to hold: a
        server that has taken a rate with a larger ``at`` ignores this one. A rate without ``at`` is
        always taken, and counts begin anew after it.
        """
        self._native.set_learning_rate(table, lr, at, self._deadline(timeout_s))

    # -- pull and push ------------------------------------------------------------------------

    def pull(
        self,
        table: str,
        keys: Any,
        *,
        out: Any = None,
        train: bool = True,
        unknown: Unknown = "zeros",
        timeout_s: float | None = None,
    ) -> Floats:
        """The rows of ``keys`` (int64 or uint64, any shape): float32[keys.shape + (D,)].

        ``train=True`` gives unknown keys a row; ``train=False`` stores nothing and reads them
        as zeros or, with ``unknown="initial"``, as the values their rows would start with.
        ``out`` takes the rows in place.
        """
        mode = _pull_mode(train, unknown)
        keys = as_keys(table, keys)
        rows = as_output(table, out, (*keys.shape, self._dim(table)))
        sections = [(table, keys.reshape(-1), rows.reshape(-1))]
        self._native.pull(sections, mode, self._step, self._deadline(timeout_s))
        return rows

    def push(
        self,
        table: str,
        keys: Any,
        gradients: Any,
        *,
        unique: bool = False,
        add: bool = False,
        timeout_s: float | None = None,
    ) -> PushResult:
        """Feeds ``gradients`` (float32[keys.shape + (D,)]) to the rows' optimizer.

        Finished when every server has applied its part, exactly once. Gradients of a repeated
        key are summed first; ``unique=True`` promises there are none. ``add=True`` adds the
        values to the rows as they are, past the optimizer.
        """
        return self.push_many(
            {table: (keys, gradients)}, unique=unique, add=add, timeout_s=timeout_s
        )

    def pull_dense(self, table: str, *, out: Any = None, timeout_s: float | None = None) -> Floats:
        """The whole dense table: float32[size]."""
        values = as_output(table, out, (self._size(table),))
        self._native.pull(
            [(table, None, values)], _core.PullMode.train, self._step, self._deadline(timeout_s)
        )
        return values

    def push_dense(
        self, table: str, gradient: Any, *, add: bool = False, timeout_s: float | None = None
    ) -> PushResult:
        """One optimizer step of the whole dense table with ``gradient`` (float32[size])."""
        return self.push_many({}, {table: gradient}, add=add, timeout_s=timeout_s)

    def write_dense(self, table: str, values: Any, *, timeout_s: float | None = None) -> None:
        """Sets the dense table to ``values`` (float32[size]); optimizer state stays."""
        values = as_values(table, "values", values, (self._size(table),))
        self._native.write_dense(table, values, self._deadline(timeout_s))

    def pull_many(
        self,
        sparse: Mapping[str, Any],
        dense: Iterable[str] | Mapping[str, Any] = (),
        *,
        train: bool = True,
        unknown: Unknown = "zeros",
        timeout_s: float | None = None,
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Rows of several tables and dense tables, in one request a server.

        ``sparse`` maps table to keys; returns table to rows, and dense table to values. Where
        ``dense`` maps tables to arrays (float32[size]), these take the values in place.
        """
        places = dense if isinstance(dense, Mapping) else {}
        rows: dict[str, Floats] = {}
        values: dict[str, Floats] = {}
        sections: list[tuple[str, Keys | None, Floats]] = []
        for table, raw in sparse.items():
            keys = as_keys(table, raw)
            rows[table] = np.empty((*keys.shape, self._dim(table)), np.float32)
            sections.append((table, keys.reshape(-1), rows[table].reshape(-1)))
        for table in dense:
            values[table] = as_output(table, places.get(table), (self._size(table),))
            sections.append((table, None, values[table]))
        self._native.pull(
            sections, _pull_mode(train, unknown), self._step, self._deadline(timeout_s)
        )
        return rows, values

    def push_many(
        self,
        sparse: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any] | None = None,
        *,
        values: Mapping[str, Any] | None = None,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        unique: bool = False,
        add: bool = False,
        timeout_s: float | None = None,
    ) -> PushResult:
        """Gradients of several tables in one request a server, all or nothing on each.

        ``sparse`` maps table to (keys, gradients), ``dense`` maps table to gradient, which may be
        a list of flat float32 arrays that make it up one after another. Those of the dense tables
        that ``values`` maps to arrays (float32[size]) have the values that the push has left, or
        newer ones, written there: it saves a pull. So do ``rows``, table to (keys, array
        float32[keys.shape + (D,)]): what a training pull right after the push would read.
        """
        sections = self._sections(sparse, dense, values, unique=unique, add=add)
        sections += self._wanted(rows)
        result = self._native.push(sections, self._next_step(), self._deadline(timeout_s))
        return self._told([*sparse, *(dense or ())], PushResult(*result))

    def push_round(
        self,
        member: RoundMember,
        round_number: int,
        sparse: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any] | None = None,
        *,
        values: Mapping[str, Any] | None = None,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        unique: bool = False,
        timeout_s: float | None = None,
    ) -> PushResult:
        """One optimizer step with the mean of the gradients of all members of a group.

        As ``push_many``; the maps may be empty, or name other tables than those of other members.
        Finished when every server has the gradients of all members that have not left,
        and has applied their sum, added up in order of rank, times one over the number of members
        that brought some, as one push. All get its result. Round numbers rise.

        Gradients that a table refuses for NaN or infinity (``non_finite="raise"``) end the round
        for all members with ``NonFiniteError``; nothing is applied. A member that is lost ends it
        with ``PeerLostError``, see ``RoundMember``; ``DeadlineError`` tells who is missing.

        >>> import numpy as np
        >>> from sparsefleet.optim import SGD
        >>> from sparsefleet.store import Constant, LocalStore, RoundMember, TableSpec
        >>> store = LocalStore()
        >>> store.define(TableSpec(name="t", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0)))
        >>> alone = RoundMember(rank=0, size=1)
        >>> store.push_round(alone, 1, {"t": (np.array([5]), np.ones((1, 1), np.float32))})
        PushResult(applied=1, rejected_non_finite=0, not_admitted=0)
        >>> store.leave_group(alone)
        """
        sections = self._sections(sparse, dense, values, unique=unique, add=False)
        sections += self._wanted(rows)
        result = self._native.push_round(
            lower_member(member),
            round_number,
            sections,
            self._next_step(),
            self._deadline(timeout_s),
        )
        return self._told([*sparse, *(dense or ())], PushResult(*result))

    # -- upkeep -------------------------------------------------------------------------------

    def stats(self, *, timeout_s: float | None = None) -> list[dict[str, float]]:
        """Numbers by name, one dict a server, e.g. ``stats()[0]["table.ads.rows"]``."""
        return self._native.stats(self._deadline(timeout_s))

    def shrink(self, table: str, *, timeout_s: float | None = None) -> int:
        """Removes the rows the table's eviction rules name as of ``step``; says how many went."""
        return self._native.shrink(table, self._step, self._deadline(timeout_s))

    def erase(self, table: str, keys: Any, *, timeout_s: float | None = None) -> int:
        """Removes the rows of these keys; says how many there were."""
        keys = as_keys(table, keys).reshape(-1)
        return self._native.erase(table, keys, self._deadline(timeout_s))

    def rows(
        self,
        table: str,
        *,
        chunk_rows: int = 65536,
        only_dirty: bool = False,
        clear_dirty: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[Rows]:
        """All rows as of this moment, in chunks, while pushes go on.

        ``only_dirty`` keeps the rows pushed to since the last iteration with ``clear_dirty``
        (tables with ``track_dirty``).
        """
        if chunk_rows < 1:
            raise ConfigError(f"chunk_rows must be >= 1, got {chunk_rows}")
        cut = self._native.open_cut(table, only_dirty, clear_dirty, self._deadline(timeout_s))
        return _chunks(cut, chunk_rows)

    def import_rows(self, table: str, rows: Rows, *, timeout_s: float | None = None) -> None:
        """Sets rows to these values, state and counters, creating or overwriting them.

        A ``state`` or ``counters`` of width 0 means initial state, or a count of 0
        and last touched now.
        """
        keys = as_keys(table, rows.keys).reshape(-1)
        values = as_values(table, "values", rows.values, (len(keys), self._dim(table)))
        state = np.ascontiguousarray(rows.state, np.float32).reshape(-1)
        counters = np.ascontiguousarray(rows.counters, np.uint32).reshape(-1)
        self._native.import_rows(
            table, keys, values.reshape(-1), state, counters, self._deadline(timeout_s)
        )

    def watch_changes(self, table: str, *, timeout_s: float | None = None) -> None:
        """From now on the keys that any worker's pushes change are kept for ``take_changes``.

        Imported rows count as well. A second time does nothing.
        """
        self._native.watch_changes(table, self._deadline(timeout_s))

    def take_changes(
        self, table: str, *, timeout_s: float | None = None
    ) -> Iterator[tuple[Keys, Floats]]:
        """The rows changed since they were last taken, own pushes included, with their values now.

        Chunks of (uint64[N], float32[N, D]); ``NotFoundError`` without ``watch_changes`` before. A
        change is handed out exactly once, also where a request had to be sent again; what an
        iteration given up halfway has left comes with the next. Rows removed meanwhile do not show.
        Each chunk has ``timeout_s``.
        """
        deadline_s = self._deadline(timeout_s)
        return _changes(self._native.take_changes(table, self._dim(table), deadline_s))

    def command(
        self, server: int, name: str, body: bytes = b"", *, timeout_s: float | None = None
    ) -> bytes:
        """What the Python of server number ``server`` answers to the command ``name``.

        It is handed the command exactly once, also where the request had to be sent again, and its
        errors are raised here as what they were raised there. A LocalStore has no server to ask.
        """
        return self._native.command(server, name, body, self._deadline(timeout_s))

    def shutdown(self, *, timeout_s: float | None = None) -> None:
        """Asks the servers to finish their work and end. A LocalStore has none."""
        self._native.shutdown(self._deadline(timeout_s))

    # -- inside -------------------------------------------------------------------------------

    def _deadline(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else _check_timeout(timeout_s)

    def _next_step(self) -> int:
        with self._lock:
            self._step += 1
            return self._step

    def _sections(
        self,
        sparse: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any] | None,
        values: Mapping[str, Any] | None,
        *,
        unique: bool,
        add: bool,
    ) -> list[_Section]:
        sections: list[_Section] = []
        for table, (raw_keys, raw_gradients) in sparse.items():
            keys = as_keys(table, raw_keys)
            shape = (*keys.shape, self._dim(table))
            gradients = as_values(table, "gradients", raw_gradients, shape)
            sections.append((table, keys.reshape(-1), [gradients.reshape(-1)], unique, add, None))
        for table, raw in (dense or {}).items():
            shape = (self._size(table),)
            parts = as_parts(table, raw, self._size(table))
            out = as_output(table, values[table], shape) if values and table in values else None
            sections.append((table, None, parts, True, add, out))
        return sections

    def _wanted(self, rows: Mapping[str, tuple[Any, Any]] | None) -> Iterator[_Section]:
        for table, (raw_keys, raw_out) in (rows or {}).items():
            keys = as_keys(table, raw_keys)
            out = as_output(table, raw_out, (*keys.shape, self._dim(table)))
            if keys.size:
                yield table, keys.reshape(-1), [], False, False, out.reshape(-1)

    def _told(self, tables: Iterable[str], result: PushResult) -> PushResult:
        if result.rejected_non_finite:
            self._rejected.add(", ".join(tables), result.rejected_non_finite)
        return result

    def _dim(self, table: str) -> int:
        dim = self._dims.get(table)
        if dim is None:
            info = self.info(table)
            if info.dense:
                raise ShapeError(f"table '{table}' is dense: it has no rows to pull or push by key")
            dim = self._dims[table] = info.dim
        return dim

    def _size(self, table: str) -> int:
        size = self._sizes.get(table)
        if size is None:
            info = self.info(table)
            if not info.dense:
                raise ShapeError(f"table '{table}' is sparse: pull and push it by keys")
            size = self._sizes[table] = info.size
        return size


def _close_native(native: _core.Store, pid: int) -> None:
    if os.getpid() == pid:  # a fork has none of the threads that closing would wait for
        native.close()


def _check_timeout(timeout_s: float) -> float:
    if not (is_number(timeout_s) and timeout_s > 0):
        raise ConfigError(f"timeout_s must be a finite number > 0, got {timeout_s!r}")
    return timeout_s


def _pull_mode(train: bool, unknown: str) -> _core.PullMode:
    if unknown not in ("zeros", "initial"):
        raise ConfigError(f"unknown must be 'zeros' or 'initial', got {unknown!r}")
    if train:
        return _core.PullMode.train
    return _core.PullMode.infer_zeros if unknown == "zeros" else _core.PullMode.infer_initial


def _chunks(cut: _core.Cut, chunk_rows: int) -> Iterator[Rows]:
    try:
        while (chunk := cut.next(chunk_rows)) is not None:
            yield Rows(*chunk)
    finally:
        cut.close()


def _changes(cut: _core.Cut) -> Iterator[tuple[Keys, Floats]]:
    try:
        while (chunk := cut.next(_CHANGES_CHUNK_ROWS)) is not None:
            yield chunk[0], chunk[1]
    finally:
        cut.close()
