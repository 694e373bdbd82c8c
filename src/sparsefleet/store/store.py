"""The protocol through which training reaches its tables, wherever they live.

In shapes, N is the number of keys and D the row width.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.store.arrays import Floats, Keys, as_keys, as_output, as_values
from sparsefleet.store.connection import RoundMember, StoreConnection, lower_member
from sparsefleet.store.gradient_sender import GradientSender, SenderConfig
from sparsefleet.store.request_sections import Gradients, PushSection, RequestSections
from sparsefleet.store.rows import DataMark, PushResult, RejectedRows, Rows
from sparsefleet.store.table_spec import DenseSpec, TableSpec, lower_dense, lower_table

Unknown = Literal["zeros", "initial"]

# The chunk size of a local store; servers choose their own.
_CHANGES_CHUNK_ROWS = 65536


class Store(StoreConnection):
    """Tables by name: pull rows, push gradients, synchronize with other workers.

    Create a :class:`LocalStore` (tables in this process) or a :class:`RemoteStore` (tables on
    servers); both behave the same. Thread-safe. Every call releases the GIL and raises
    ``DeadlineError`` after ``timeout_s`` seconds (default: the store's own).

    >>> import numpy as np
    >>> from sparsefleet.store import Constant, LocalStore, TableSpec
    >>> from sparsefleet.optim import SGD
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
        super().__init__(native, timeout_s=timeout_s)
        self._specs: dict[str, TableSpec | DenseSpec] = {}
        self._requests = RequestSections(lambda table: native.info(table, timeout_s))
        self._rejected = RejectedRows()

    def define(self, spec: TableSpec | DenseSpec, *, timeout_s: float | None = None) -> None:
        """Create the table on every server; defining it again with the same spec does nothing."""
        deadline_s = self._deadline(timeout_s)
        if isinstance(spec, TableSpec):
            self._native.define_sparse(lower_table(spec), deadline_s)
        else:
            self._native.define_dense(lower_dense(spec), deadline_s)
        self._requests.add_table(spec)
        self._specs[spec.name] = spec

    @property
    def specs(self) -> Mapping[str, TableSpec | DenseSpec]:
        """Return the specs of the tables defined through this object, by name."""
        return self._specs

    def info(self, table: str, *, timeout_s: float | None = None) -> _core.TableInfo:
        """Return a table's kind, width and size, no matter which worker defined it."""
        return self._native.info(table, self._deadline(timeout_s))

    def set_learning_rate(
        self, table: str, lr: float, *, at: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Set the learning rate, effective from the next push.

        Workers that follow a common schedule pass the step of the schedule as ``at``; a server that
        already has a rate with a larger ``at`` ignores the call. A rate without ``at`` always takes
        effect, and makes the server forget the step.
        """
        self._native.set_learning_rate(table, lr, at, self._deadline(timeout_s))

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
        """Return the rows of ``keys`` (int64 or uint64, any shape): float32[keys.shape + (D,)].

        With ``train=True``, rows are created for unknown keys. With ``train=False``, nothing is
        stored, and unknown keys read as zeros or, with ``unknown="initial"``, as the values that
        their rows would start with. If ``out`` is given, rows are written into it.
        """
        mode = _pull_mode(train, unknown)
        keys = as_keys(table, keys)
        rows = as_output(table, out, (*keys.shape, self._requests.dim(table)))
        sections = [(table, keys.reshape(-1), rows.reshape(-1))]
        self._native.pull(sections, mode, self.step, self._deadline(timeout_s))
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
        """Update rows with ``gradients`` (float32[keys.shape + (D,)]) through their optimizer.

        Returns when every server has applied its part, exactly once. Gradients of a repeated key
        are summed first; ``unique=True`` promises that no key repeats. ``add=True`` adds the values
        directly to the rows, without the optimizer.
        """
        return self.push_many(
            {table: (keys, gradients)}, unique=unique, add=add, timeout_s=timeout_s
        )

    def pull_dense(self, table: str, *, out: Any = None, timeout_s: float | None = None) -> Floats:
        """Return the whole dense table: float32[size]."""
        values = as_output(table, out, (self._requests.size(table),))
        self._native.pull(
            [(table, None, values)], _core.PullMode.train, self.step, self._deadline(timeout_s)
        )
        return values

    def push_dense(
        self, table: str, gradient: Any, *, add: bool = False, timeout_s: float | None = None
    ) -> PushResult:
        """Update the whole dense table with ``gradient`` (float32[size])."""
        return self.push_many({}, {table: gradient}, add=add, timeout_s=timeout_s)

    def write_dense(self, table: str, values: Any, *, timeout_s: float | None = None) -> None:
        """Set the dense table to ``values`` (float32[size]); its optimizer state is kept."""
        values = as_values(table, "values", values, (self._requests.size(table),))
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
        """Pull several sparse and dense tables with one request per server.

        ``sparse`` maps tables to keys. Returns the rows by table and the dense values by table. If
        ``dense`` maps tables to arrays (float32[size]), the values are written into them.
        """
        outputs = dense if dense and isinstance(dense, Mapping) else {}
        rows: dict[str, Floats] = {}
        values: dict[str, Floats] = {}
        sections: list[tuple[str, Keys | None, Floats]] = []
        for table, raw in sparse.items():
            keys = as_keys(table, raw)
            rows[table] = np.empty((*keys.shape, self._requests.dim(table)), np.float32)
            sections.append((table, keys.reshape(-1), rows[table].reshape(-1)))
        for table in dense:
            values[table] = as_output(table, outputs.get(table), (self._requests.size(table),))
            sections.append((table, None, values[table]))
        self._native.pull(
            sections, _pull_mode(train, unknown), self.step, self._deadline(timeout_s)
        )
        return rows, values

    def push_many(
        self,
        sparse: Mapping[str, tuple[Any, Any]],
        dense: Mapping[str, Any] | None = None,
        *,
        values: Mapping[str, Any] | None = None,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        data: Sequence[DataMark] = (),
        unique: bool = False,
        add: bool = False,
        timeout_s: float | None = None,
    ) -> PushResult:
        """Push gradients of several tables with one request per server, which applies all or none.

        ``sparse`` maps tables to (keys, gradients); ``dense`` maps tables to a gradient, or to a
        list of flat float32 arrays that form it when concatenated. ``values`` and ``rows`` save a
        pull: ``values`` maps dense tables to arrays (float32[size]) that receive the values after
        this push or a later one; ``rows`` maps tables to (keys, float32[keys.shape + (D,)]), and
        each array receives the rows that a training pull right after the push would return.
        """
        sections = self._requests.push(sparse, dense, values, unique=unique, add=add)
        return self._push([sections], rows, timeout_s, data)

    def push_mean(
        self,
        batches: Sequence[Gradients],
        *,
        values: Mapping[str, Any] | None = None,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        data: Sequence[DataMark] = (),
        timeout_s: float | None = None,
    ) -> PushResult:
        """Push the mean of several mini-batches, each in the form that ``push_many`` takes.

        A batch is a pair (``sparse``, ``dense``) in which no key repeats. Sums are divided by the
        number of batches, including batches that lack a row.

        >>> import numpy as np
        >>> from sparsefleet.optim import SGD
        >>> from sparsefleet.store import Constant, LocalStore, TableSpec
        >>> store = LocalStore()
        >>> store.define(TableSpec(name="t", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0)))
        >>> one = np.ones((1, 1), np.float32)
        >>> batches = [({"t": (np.array([5]), one)}, {}), ({"t": (np.array([7]), 3 * one)}, {})]
        >>> store.push_mean(batches)
        PushResult(applied=2, rejected_non_finite=0, not_admitted=0)
        >>> store.pull("t", np.array([5, 7])).tolist()
        [[-0.5], [-1.5]]
        """
        return self._push(self._requests.push_batches(batches, values), rows, timeout_s, data)

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
        data: Sequence[DataMark] = (),
        timeout_s: float | None = None,
    ) -> PushResult:
        """Take one optimizer step with the mean of the gradients of all members of a group.

        The arguments are the same as for ``push_many``; the maps may be empty, and members may push
        different tables. Returns when every server has received the gradients of all members that
        have not left, and has applied their mean as one push: summed in rank order, divided by the
        number of members that contributed. All members get the same result. Round numbers must
        increase.

        If a table rejects NaN or infinity (``non_finite="raise"``), all members get
        ``NonFiniteError`` and nothing is applied. If a member is lost, they get ``PeerLostError``;
        see ``RoundMember``. ``DeadlineError`` names the missing members.

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
        sections = self._requests.push(sparse, dense, values, unique=unique, add=False)
        return self._push_round(member, round_number, [sections], rows, timeout_s, data)

    def push_round_mean(
        self,
        member: RoundMember,
        round_number: int,
        batches: Sequence[Gradients],
        *,
        values: Mapping[str, Any] | None = None,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        data: Sequence[DataMark] = (),
        timeout_s: float | None = None,
        counts_step: bool = True,
    ) -> PushResult:
        """Contribute the mean of several mini-batches to a round; see ``push_round``.

        counts_step: False if a different push in the same training step advances ``step``.
        """
        sections = self._requests.push_batches(batches, values)
        return self._push_round(member, round_number, sections, rows, timeout_s, data, counts_step)

    def sender(self, config: SenderConfig) -> GradientSender:
        """Return a sender that merges and pushes gradients to this store in the background."""
        self._begin_loop()
        return GradientSender(
            self._native,
            config,
            timeout_s=self._timeout_s,
            sections=lambda *gradients: self._requests.push_later(*gradients),  # keeps the store
            rejected=self._rejected,
        )

    def shrink(self, table: str, *, timeout_s: float | None = None) -> int:
        """Remove the rows that match the table's eviction rules; return their number."""
        return self._native.shrink(table, self.step, self._deadline(timeout_s))

    def erase(self, table: str, keys: Any, *, timeout_s: float | None = None) -> int:
        """Remove the rows of these keys; return how many existed."""
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
        """Iterate over a snapshot of all rows, in chunks; pushes may continue.

        With ``only_dirty``, only the rows updated since the last iteration with ``clear_dirty`` are
        returned (for tables with ``track_dirty``).
        """
        if chunk_rows < 1:
            raise ConfigError(f"chunk_rows must be >= 1, got {chunk_rows}")
        cut = self._native.open_cut(table, only_dirty, clear_dirty, self._deadline(timeout_s))
        return _chunks(cut, chunk_rows)

    def import_rows(self, table: str, rows: Rows, *, timeout_s: float | None = None) -> None:
        """Create or overwrite rows with these values, state and counters.

        ``state`` of width 0 means the initial state; ``counters`` of width 0 means a count of 0 and
        the current time as the time of the last push.
        """
        keys = as_keys(table, rows.keys).reshape(-1)
        values = as_values(table, "values", rows.values, (len(keys), self._requests.dim(table)))
        state = np.ascontiguousarray(rows.state, np.float32).reshape(-1)
        counters = np.ascontiguousarray(rows.counters, np.uint32).reshape(-1)
        self._native.import_rows(
            table, keys, values.reshape(-1), state, counters, self._deadline(timeout_s)
        )

    def watch_changes(self, table: str, *, timeout_s: float | None = None) -> None:
        """Start recording the keys changed by any worker's pushes, for ``take_changes``.

        Imported rows are also recorded as changed. Calling it again does nothing.
        """
        self._native.watch_changes(table, self._deadline(timeout_s))

    def take_changes(
        self, table: str, *, timeout_s: float | None = None
    ) -> Iterator[tuple[Keys, Floats]]:
        """Iterate over the current values of the rows changed since the last call.

        Rows changed by this process's own pushes are included. Yields chunks (uint64[N],
        float32[N, D]). Each change is returned exactly once, even if requests are retried; rows
        that an abandoned iteration did not return come with the next iteration. Removed rows are
        left out. ``timeout_s`` applies to each chunk. Raises ``NotFoundError`` if ``watch_changes``
        has not been called.
        """
        cut = self._native.take_changes(table, self._requests.dim(table), self._deadline(timeout_s))
        return ((rows.keys, rows.values) for rows in _chunks(cut, _CHANGES_CHUNK_ROWS))

    def version(self, table: str, *, timeout_s: float | None = None) -> int:
        """Return the number of pushes applied to the table, as the minimum over all servers."""
        return self._native.version(table, self._deadline(timeout_s))

    def wait_version(self, table: str, at_least: int, *, timeout_s: float | None = None) -> None:
        """Wait until every server has applied ``at_least`` pushes to the table."""
        self._native.wait_version(table, at_least, self._deadline(timeout_s))

    def save(
        self,
        directory: str | os.PathLike[str],
        *,
        tables: Collection[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        """Write a checkpoint of ``tables`` (default: all defined here); pushes may continue.

        Each server writes its own rows, so ``directory``, a path or fsspec URL, must be visible to
        all servers and to this process. Returns when the checkpoint is committed; until then, and
        after an error, the previous checkpoint stays valid. Each server takes its snapshot at a
        different time during the call; docs/checkpoints.md explains how to get a consistent
        checkpoint.
        """
        # Checkpoints load Arrow, which is slow to import.
        from sparsefleet.store.store_save import save_tables

        save_tables(
            self, directory, tables=tables, storage_options=storage_options, timeout_s=timeout_s
        )

    def load(
        self,
        directory: str | os.PathLike[str],
        *,
        tables: Collection[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        """Load the contents of ``tables`` (default: all defined here) from a checkpoint.

        Any number of servers may have written the checkpoint; all servers and this process must
        have access to it. Everything is checked before the first row changes; a table that does not
        match raises ``CheckpointMismatchError``.
        """
        from sparsefleet.store.store_load import load_tables

        load_tables(
            self, directory, tables=tables, storage_options=storage_options, timeout_s=timeout_s
        )

    def import_table(
        self,
        table: str,
        path: str | os.PathLike[str],
        *,
        key_column: str | None = None,
        has_header: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Set rows to the vectors in a CSV or Parquet file; return the number of vectors read.

        ``checkpoint.import_table`` describes the columns. If a key repeats, its last vector wins.
        The optimizer state of imported rows is reset; other rows stay. Not atomic: rows read before
        an error stay imported.
        """
        from sparsefleet.store.store_load import import_vectors

        return import_vectors(
            self,
            table,
            path,
            key_column=key_column,
            has_header=has_header,
            storage_options=storage_options,
        )

    def _push(
        self, batches: list[list[PushSection]], rows: Any, timeout_s: float | None, data: Any
    ) -> PushResult:
        self._begin_loop()
        requested, step = list(self._requests.rows_after_push(rows)), self._native.next_step()
        request = (batches, requested, step, self._deadline(timeout_s), list(data))
        return self._push_result(batches, self._native.push(*request))

    def _push_round(
        self,
        member: RoundMember,
        round_number: int,
        batches: list[list[PushSection]],
        rows: Mapping[str, tuple[Any, Any]] | None,
        timeout_s: float | None,
        data: Sequence[DataMark],
        counts_step: bool = True,
    ) -> PushResult:
        self._begin_loop()
        requested = list(self._requests.rows_after_push(rows))
        step = self._native.next_step() if counts_step else self._native.step
        deadline_s = self._deadline(timeout_s)
        request = (lower_member(member), round_number, batches, requested, step, deadline_s)
        return self._push_result(batches, self._native.push_round(*request, list(data)))

    def _push_result(
        self, batches: Iterable[Iterable[PushSection]], totals: tuple[int, int, int]
    ) -> PushResult:
        result = PushResult(*totals)
        if result.rejected_non_finite:
            tables = dict.fromkeys(section[0] for batch in batches for section in batch)
            self._rejected.add(", ".join(tables), result.rejected_non_finite)
        return result


def _pull_mode(train: bool, unknown: str) -> _core.PullMode:
    if unknown not in ("zeros", "initial"):
        raise ConfigError(f"`unknown` must be 'zeros' or 'initial', got {unknown!r}")
    if train:
        return _core.PullMode.train
    return _core.PullMode.infer_zeros if unknown == "zeros" else _core.PullMode.infer_initial


def _chunks(cut: _core.Cut, chunk_rows: int) -> Iterator[Rows]:
    try:
        while (chunk := cut.next(chunk_rows)) is not None:
            yield Rows(*chunk)
    finally:
        cut.close()
