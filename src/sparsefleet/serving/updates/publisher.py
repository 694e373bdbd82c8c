"""Publish a model's changes while it trains.

In shapes, N is the number of rows, D the row width.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import InternalError, NotFoundError, SparseFleetError
from sparsefleet.field_checks import require, require_int, require_positive
from sparsefleet.serving.export.export_directory import open_export
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.export.quantization import EncodedRows, decode_rows, encode_rows
from sparsefleet.serving.export.row_file import RowFile, open_tables
from sparsefleet.serving.updates.update import Overlay, TableChanges, Update, UpdateName
from sparsefleet.serving.updates.update_log import UpdateLog, open_log
from sparsefleet.serving.updates.update_reader import UpdateReader
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["PublishConfig", "Publisher", "TrainedModel", "differences"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishConfig:
    """Settings for updating a served export while its training continues.

    >>> PublishConfig(model="export", target="updates", every_s=1.0).deltas_between_wholes
    100
    """

    model: str | os.PathLike[str]
    """The export being served. Updates hold the changes since the export was written and apply to
    no other export. The first worker reads its files.
    """

    target: str | os.PathLike[str]
    """A directory that services can read, or `redis://host:port/database?model=NAME`."""

    every_steps: int | None = None
    """Publish when a worker has taken this many steps since the last update. If threads step
    together (sync, half_async, hybrid), a step of all threads counts as one.
    """

    every_s: float | None = None
    """Publish this many seconds after the last update, or sooner if `every_steps` is reached first.
    The state at the end of `fit` is always published.
    """

    deltas_between_wholes: int = 100
    """After this many updates, write a full update, which holds all changes since the export.
    Services that start or have missed an update begin with a full update. A larger value means
    less data to write but more files to read.
    """

    def __post_init__(self) -> None:
        require(bool(os.fspath(self.model)), self, "model", "a path")
        require(bool(os.fspath(self.target)), self, "target", "a path or redis://...")
        if self.every_steps is not None:
            require_int(self, "every_steps", 1, 2**62)
        if self.every_s is not None:
            require_positive(self, "every_s")
        require_int(self, "deltas_between_wholes", 1, 1_000_000)


def differences(exported: RowFile, chunks: Iterable[tuple[Keys, Floats]]) -> TableChanges:
    """Return how a table's rows in training differ from its export.

    chunks: uint64[N] and float32[N, D] with distinct keys. The result holds the rows that are
    new or different, and the keys of the export that are missing from `chunks`.

    Needs memory for 8 bytes per row, and for the rows that differ.
    """
    entry = exported.entry
    seen = [np.empty(0, np.uint64)]
    none = encode_rows(entry.name, seen[0], np.empty((0, entry.dim), np.float32), entry.format)
    found: list[tuple[Keys, EncodedRows]] = [(seen[0], none)]
    for keys, values in chunks:
        rows = encode_rows(entry.name, keys, values, entry.format)
        before, known = exported.find(keys)
        differs = np.flatnonzero(~known | (decode_rows(rows) != before).any(axis=1))
        seen.append(keys)
        found.append((keys[differs], rows.take(differs)))
    keys = np.concatenate([part for part, _ in found])
    order = np.argsort(keys)
    scales = [rows.scales for _, rows in found if rows.scales is not None]
    rows = EncodedRows(
        np.concatenate([rows.values for _, rows in found]),
        np.concatenate(scales) if scales else None,
    )
    there = np.isin(exported.keys, np.concatenate(seen), assume_unique=True)
    return TableChanges(keys[order], rows.take(order), exported.keys[~there])


_log = logging.getLogger("sparsefleet.serving.updates")

Chunks = Iterator[tuple[Keys, Floats]]


class TrainedModel(Protocol):
    """The model to publish, with the tables of its training job by name."""

    def has_lost_track(self) -> bool:
        """Return whether there are changed or removed rows that `take_changes` will not report."""

    def take_changes(self) -> dict[str, list[tuple[Keys, Floats]]]:
        """Return the rows changed since the last call, as chunks of uint64[N], float32[N, D]."""

    def open_all(self) -> dict[str, Chunks]:
        """Return a snapshot of all rows and restart change tracking.

        The snapshot can be read while training continues.
        """

    def dense(self) -> dict[str, NDArray[Any]]:
        """Return the dense parameters and buffers that are in the export."""

    def close(self) -> None:
        """Free all resources."""


class _Taken(NamedTuple):
    """A snapshot of the model that is not yet written."""

    made: float
    dense: dict[str, NDArray[Any]]
    tables: dict[str, TableChanges]
    everything: dict[str, Chunks] | None
    """All rows, to compare with the export, or None if the changes are known."""


class Publisher:
    """Publishes the model of one training job. `take` quickly captures a snapshot; `write` may take
    a while.

    A process computes its first update by comparing all rows with the export, so the update is
    correct whatever happened before. It does the same after rows were removed or the log lost data.
    Changes that could not be written go into the next update. Not thread-safe; `take` and `write`
    may be called from two threads, one after the other.
    """

    def __init__(self, export: OpenedExport, trained: TrainedModel, config: PublishConfig) -> None:
        self._export = export
        self._trained = trained
        self._deltas_between_wholes = config.deltas_between_wholes
        self._log: UpdateLog = open_log(config.target, export.manifest.digest)
        self._taken: _Taken | None = None
        self._pending = Overlay()  # changes that were taken but are not in the log
        self._at: UpdateName | None = None
        self._tried: UpdateName | None = None
        self._deltas = 0
        try:
            self._log.hold()
        except BaseException:
            self._log.close()
            raise

    @property
    def where(self) -> str:
        """Return where updates go, for messages."""
        return self._log.where

    def take(self) -> None:
        """Capture a snapshot for an update. It is consistent only if all workers are paused."""
        made, trained, before = time.time(), self._trained, self._at
        self._at = None  # if the changes are lost after this, comparing all rows finds them
        if before is None or trained.has_lost_track():
            everything = trained.open_all()
            self._taken = _Taken(made, trained.dense(), {}, everything)
            return
        self._pending = self._pending.after(self._encoded(trained.take_changes()))
        self._taken = _Taken(made, trained.dense(), self._pending.changes(), None)
        self._at = before

    def write(self) -> Update:
        """Write the captured snapshot to the log. Services can see the update on return."""
        taken, self._taken = self._taken, None
        if taken is None:
            raise InternalError("call take() before write()")
        names = self._log.names()
        if self._at is not None and self._tried in names:
            self._at = self._tried  # the update was written, but the reply was lost
        before = self._at
        if before is not None and before not in names:
            self._at = None
            raise NotFoundError(
                f"{self.where} has lost the updates that were published to it, or another "
                "trainer publishes to the same place; the next update will contain everything"
            )
        everything = taken.everything
        update = Update(
            base=self._export.manifest.digest,
            sequence=1 + max((name.sequence for name in names), default=0),
            snapshot_id=secrets.token_hex(8),
            previous=None if before is None else before.snapshot_id,
            made=taken.made,
            tables=taken.tables if everything is None else self._compared(everything),
            dense=taken.dense,
        )
        self._at = self._append(update)
        self._pending = Overlay()
        self._deltas = 0 if before is None else self._deltas + 1
        self._tidy(update)
        return update

    def close(self) -> None:
        """Release the log to other publishers and free all resources."""
        self._log.close()
        self._trained.close()

    def _append(self, update: Update) -> UpdateName:
        name, raw = update.to_bytes()
        self._tried = name
        self._log.append(name, raw)
        return name

    def _encoded(self, changes: Mapping[str, list[tuple[Keys, Floats]]]) -> dict[str, TableChanges]:
        """Encode changes for writing, with sorted distinct keys and rows in the export's format."""
        encoded = {}
        for table, pieces in changes.items():
            entry = self._export.manifest.table(table)
            keys = np.concatenate([np.empty(0, np.uint64), *(piece[0] for piece in pieces)])
            none = np.empty((0, entry.dim), np.float32)
            values = np.concatenate([none, *(piece[1] for piece in pieces)])
            # If a key was taken twice, the last row is the newest.
            keys, last = np.unique(keys[::-1], return_index=True)
            values = values[::-1][last]
            rows = encode_rows(table, keys, values, entry.format)
            encoded[table] = TableChanges(keys, rows, np.empty(0, np.uint64))
        return encoded

    def _compared(self, everything: Mapping[str, Chunks]) -> dict[str, TableChanges]:
        return {
            table: differences(self._export.tables[table], chunks)
            for table, chunks in everything.items()
        }

    def _tidy(self, update: Update) -> None:
        """Write a full update periodically and remove older updates. Failures are harmless."""
        try:
            if self._deltas >= self._deltas_between_wholes:
                self._fold()
            names = self._log.names()
            wholes = sorted(name.sequence for name in names if name.kind == "whole")
            if len(wholes) > 1:  # services may still be reading the second-to-last
                self._log.remove([name for name in names if name.sequence < wholes[-2]])
        except (SparseFleetError, OSError) as error:
            _log.warning("updates after %d in %s: %s", update.sequence, self.where, error)

    def _fold(self) -> None:
        """Write a full update for the newest snapshot, built from the updates in the log."""
        manifest = self._export.manifest
        reader = UpdateReader(self._log, manifest.digest, manifest.tables)
        reader.catch_up()
        snapshot, at = reader.snapshot, self._at
        if snapshot is None or at is None or snapshot.snapshot_id != at.snapshot_id:
            self._at = None
            raise NotFoundError(
                f"the log does not lead to the last published update: {reader.problem}"
            )
        self._append(snapshot.as_whole())
        self._deltas = 0


class OpenedExport(NamedTuple):
    """An export that updates apply to."""

    directory: Path
    manifest: ExportManifest
    tables: dict[str, RowFile]

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> OpenedExport:
        """Open an export and map its rows. Raises CheckpointError if there is no export."""
        return open_export(
            directory, True, lambda path, m: cls(path, m, open_tables(path, m.tables))
        )
