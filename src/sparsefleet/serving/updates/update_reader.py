"""Read updates in order as they arrive, without gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMismatchError, CorruptFileError, NotFoundError
from sparsefleet.serving.export.manifest import ExportedTable
from sparsefleet.serving.updates.update import Overlay, Update, UpdateName
from sparsefleet.serving.updates.update_log import UpdateLog

__all__ = ["DenseValues", "ModelSnapshot", "UpdatePath", "UpdateReader", "find_path"]


class DenseValues:
    """Dense parameters and buffers by name; one object per snapshot."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays


class ModelSnapshot(NamedTuple):
    """An immutable snapshot of everything that updates changed since the export."""

    base: str
    """`ExportManifest.digest` of the export."""
    sequence: int
    snapshot_id: str
    made: float
    """When the snapshot was taken, in seconds since 1970."""
    rows: Overlay
    dense: DenseValues

    @classmethod
    def of_whole(cls, update: Update) -> ModelSnapshot:
        """Return the snapshot that results from a full update."""
        rows = Overlay().after(update.tables)
        dense = DenseValues(update.dense)
        return cls(update.base, update.sequence, update.snapshot_id, update.made, rows, dense)

    def after(self, update: Update) -> ModelSnapshot:
        """Apply a delta; raise CheckpointMismatchError if it applies to a different snapshot."""
        if update.previous != self.snapshot_id or update.base != self.base:
            raise CheckpointMismatchError(
                f"update {update.sequence} applies to snapshot {update.previous}, but this is "
                f"snapshot {self.snapshot_id}, number {self.sequence}; the log was restarted"
            )
        return self._replace(
            sequence=update.sequence,
            snapshot_id=update.snapshot_id,
            made=update.made,
            rows=self.rows.after(update.tables),
            dense=DenseValues(update.dense),
        )

    def as_whole(self) -> Update:
        """Return a full update that results in this snapshot."""
        return Update(
            base=self.base,
            sequence=self.sequence,
            snapshot_id=self.snapshot_id,
            previous=None,
            made=self.made,
            tables=self.rows.changes(),
            dense=self.dense.arrays,
        )


class UpdatePath(NamedTuple):
    """The updates to apply in order; a full update, if any, comes first."""

    names: list[UpdateName]
    missing: int | None = None
    """The first missing number after the path, if newer updates exist; otherwise None."""


def find_path(
    names: Iterable[UpdateName], at: tuple[int, str] | None, *, start_over: bool = False
) -> UpdatePath:
    """Find the updates that lead from `at` to the newest reachable update.

    at: number and id of the current snapshot, or None for the export.
    start_over: start at the newest full update, even if there are deltas after `at`.

    >>> whole, one, two = (
    ...     UpdateName(kind, number, f"{number:016x}", "0" * 16)
    ...     for kind, number in [("whole", 1), ("delta", 2), ("delta", 4)]
    ... )
    >>> [name.sequence for name in find_path([one, whole], None).names]
    [1, 2]
    >>> path = find_path([two, one, whole], (1, "0" * 15 + "1"))
    >>> [name.sequence for name in path.names], path.missing
    ([2], 3)
    """
    deltas: dict[int, UpdateName] = {}
    wholes: dict[int, UpdateName] = {}
    ids: dict[int, set[str]] = {}
    for name in names:
        (deltas if name.kind == "delta" else wholes)[name.sequence] = name
        ids.setdefault(name.sequence, set()).add(name.snapshot_id)
    newest = max(ids, default=0)
    if at is not None and not start_over and _is_of_this_log(at, ids, newest):
        forward = _run(deltas, at[0])
        if at[0] + len(forward) == newest:
            return UpdatePath(forward)
        newest_whole = max(wholes, default=0)
        if newest_whole <= at[0] + len(forward):  # starting again from a full update would not help
            return UpdatePath(forward, at[0] + len(forward) + 1)
    if not wholes:
        return UpdatePath([], 1 if newest else None)
    first = max(wholes)
    path = [wholes[first], *_run(deltas, first)]
    reached = path[-1].sequence
    return UpdatePath(path, None if reached == newest else reached + 1)


def _run(deltas: dict[int, UpdateName], after: int) -> list[UpdateName]:
    """Return the deltas after number `after`, up to the first gap."""
    found: list[UpdateName] = []
    while (name := deltas.get(after + len(found) + 1)) is not None:
        found.append(name)
    return found


def _is_of_this_log(at: tuple[int, str], ids: dict[int, set[str]], newest: int) -> bool:
    """Return whether the log contained this snapshot. Its older updates may have been removed."""
    number, snapshot_id = at
    return number <= newest and (number not in ids or snapshot_id in ids[number])


class UpdateReader:
    """Follows a log from snapshot to snapshot. Not thread-safe.

    A delta that is missing, damaged or from a different log is never skipped; the reader stays at
    the last snapshot known to be correct until a full update bridges the gap.

    tables: the tables of the export that the updates must match.
    """

    def __init__(self, log: UpdateLog, version: str, tables: Iterable[ExportedTable]) -> None:
        self._log = log
        self._version = version
        self._entries = {entry.name: entry for entry in tables}
        self.snapshot: ModelSnapshot | None = None
        """The current snapshot, or None if no update has been applied to the export."""
        self.problem: str | None = None
        """Why newer updates cannot be read and how to fix it; None if there is no problem."""

    def catch_up(self, prepare: Callable[[ModelSnapshot], None] | None = None) -> bool:
        """Read new updates and return whether there were any.

        prepare: called with the new snapshot before it becomes active. If `prepare` raises, the
            exception propagates and the current snapshot is kept.
        Raises StoreUnavailableError if the log cannot be reached.
        """
        names = self._log.names()
        try:
            found, problem = self._follow(names, start_over=False)
        except (CheckpointMismatchError, CorruptFileError, NotFoundError) as error:
            found, problem = self._start_over(error)
        is_new = found is not None and found is not self.snapshot
        if is_new and prepare is not None:
            assert found is not None
            prepare(found)
        self.snapshot, self.problem = found, problem
        return is_new

    def _start_over(self, cause: Exception) -> tuple[ModelSnapshot | None, str | None]:
        """Start over from the newest full update, which may be newer than the old list."""
        try:
            found, problem = self._follow(self._log.names(), start_over=True)
        except (CheckpointMismatchError, CorruptFileError, NotFoundError) as error:
            return self.snapshot, f"{error}; waiting for a full update"
        at = self.snapshot
        if found is None or (at is not None and _is_older(found, at)):
            return at, f"{cause}; waiting for a full update"
        return found, problem

    def _follow(
        self, names: list[UpdateName], *, start_over: bool
    ) -> tuple[ModelSnapshot | None, str | None]:
        at = self.snapshot
        place = None if at is None else (at.sequence, at.snapshot_id)
        path = find_path(names, place, start_over=start_over)
        for name in path.names:
            update = self._read(name)
            if update.previous is None:
                at = ModelSnapshot.of_whole(update)
            elif at is not None:
                at = at.after(update)
        if path.missing is None:
            return at, None
        return at, (
            f"update {path.missing} is missing in {self._log.where}, although there are newer "
            "updates; "
            "waiting for a full update"
        )

    def _read(self, name: UpdateName) -> Update:
        update = Update.from_bytes(name, self._log.read(name), self._log.where)
        if update.base != self._version or (update.sequence, update.snapshot_id) != name[1:3]:
            raise CheckpointMismatchError(
                f"{self._log.where}: '{name}' holds update {update.sequence} of the export "
                f"{update.base}, expected an update of {self._version}"
            )
        for table, changes in update.tables.items():
            entry = self._entries.get(table)
            values: Any = changes.rows.values
            if entry is None or (values.shape[1], values.dtype) != (
                entry.dim,
                np.dtype(entry.format),
            ):
                wanted = (
                    "no such table"
                    if entry is None
                    else f"{entry.format} rows of width {entry.dim}"
                )
                raise CheckpointMismatchError(
                    f"{self._log.where}: update {update.sequence} of table '{table}' has "
                    f"{values.dtype} rows of width {values.shape[1]}, but the export has {wanted}"
                )
        return update


def _is_older(found: ModelSnapshot, at: ModelSnapshot) -> bool:
    """Return whether a snapshot precedes another.

    Numbers start over with a new log, and the publisher's clock may be set back, but both are
    unlikely to happen at once.
    """
    return found.made < at.made and found.sequence <= at.sequence
