"""Publishing the changes of a model that is being trained.

Letters: N rows, D row width.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import InternalError, NotFoundError, SparseFleetError
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.opened_export import open_export
from sparsefleet.export.quantization import encode_rows
from sparsefleet.export.row_file import RowFile, open_tables
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.updates.differences import differences
from sparsefleet.updates.overlay import Overlay
from sparsefleet.updates.publish_config import PublishConfig
from sparsefleet.updates.update import TableChanges, Update
from sparsefleet.updates.update_log import UpdateLog, open_log
from sparsefleet.updates.update_name import UpdateName
from sparsefleet.updates.update_reader import UpdateReader

__all__ = ["Publisher", "TrainedModel"]

_log = logging.getLogger("sparsefleet.updates")

Chunks = Iterator[tuple[Keys, Floats]]


class TrainedModel(Protocol):
    """What is published: the tables of a training, by name."""

    def has_lost_track(self) -> bool:
        """Whether rows have changed or gone that `take_changes` will not tell of."""

    def take_changes(self) -> dict[str, list[tuple[Keys, Floats]]]:
        """Rows changed since they were last taken: uint64[N], float32[N, D] in pieces."""

    def open_all(self) -> dict[str, Chunks]:
        """All rows as of this moment, read while the training goes on; changes begin anew."""

    def dense(self) -> dict[str, NDArray[Any]]:
        """Dense parameters and buffers, those of the export."""

    def close(self) -> None:
        """Frees what it holds."""


class _Taken(NamedTuple):
    """The model at one moment, not yet written."""

    made: float
    dense: dict[str, NDArray[Any]]
    tables: dict[str, TableChanges]
    everything: dict[str, Chunks] | None
    """In place of changes: all rows, to be compared with the export."""


class Publisher:
    """Publishes one training. `take` is quick and has the moment; `write` may take a while.

    The first update of a process is found by comparing all rows with those of the export, so that
    it is right whatever happened in between; so is one after rows were removed, or after the log
    lost what was written to it. Whatever fails to be written goes with the next update. Not
    thread-safe; `take` and `write` may be called from two threads, one after the other.
    """

    def __init__(self, export: OpenedExport, trained: TrainedModel, config: PublishConfig) -> None:
        self._export = export
        self._trained = trained
        self._deltas_between_wholes = config.deltas_between_wholes
        self._log: UpdateLog = open_log(config.target, export.manifest.digest)
        self._taken: _Taken | None = None
        self._pending = Overlay()  # changes that were taken and are not in the log
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
        """Where updates go, for messages."""
        return self._log.where

    def take(self) -> None:
        """The moment of the update. For one of all workers, none may train meanwhile."""
        made, trained, before = time.time(), self._trained, self._at
        self._at = None  # what is taken and lost again is found by comparing all rows
        if before is None or trained.has_lost_track():
            everything = trained.open_all()
            self._taken = _Taken(made, trained.dense(), {}, everything)
            return
        self._pending = self._pending.after(self._encoded(trained.take_changes()))
        self._taken = _Taken(made, trained.dense(), self._pending.changes(), None)
        self._at = before

    def write(self) -> Update:
        """Puts what was taken into the log; on return services can see it."""
        taken, self._taken = self._taken, None
        if taken is None:
            raise InternalError("take() comes before write()")
        names = self._log.names()
        if self._at is not None and self._tried in names:
            self._at = self._tried  # it was written, though the answer was lost
        before = self._at
        if before is not None and before not in names:
            self._at = None
            raise NotFoundError(
                f"{self.where} has lost the updates that were published to it, or another "
                "trainer publishes there; the next update will be a whole one"
            )
        everything = taken.everything
        update = Update(
            base=self._export.manifest.digest,
            sequence=1 + max((name.sequence for name in names), default=0),
            moment=secrets.token_hex(8),
            previous=None if before is None else before.moment,
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
        """Lets others publish, and frees what it holds."""
        self._log.close()
        self._trained.close()

    def _append(self, update: Update) -> UpdateName:
        name, raw = update.to_bytes()
        self._tried = name
        self._log.append(name, raw)
        return name

    def _encoded(self, changes: Mapping[str, list[tuple[Keys, Floats]]]) -> dict[str, TableChanges]:
        """Changes as they are written: sorted, each key once, in the format of the export."""
        encoded = {}
        for table, pieces in changes.items():
            entry = self._export.manifest.table(table)
            keys = np.concatenate([np.empty(0, np.uint64), *(piece[0] for piece in pieces)])
            none = np.empty((0, entry.dim), np.float32)
            values = np.concatenate([none, *(piece[1] for piece in pieces)])
            # Of a key that was taken twice the last is the newest.
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
        """A whole update now and then, and older ones go. What fails here is only untidy."""
        try:
            if self._deltas >= self._deltas_between_wholes:
                self._fold()
            names = self._log.names()
            wholes = sorted(name.sequence for name in names if name.kind == "whole")
            if len(wholes) > 1:  # services may be reading from the last but one on
                self._log.remove([name for name in names if name.sequence < wholes[-2]])
        except (SparseFleetError, OSError) as error:
            _log.warning("updates after %d in %s: %s", update.sequence, self.where, error)

    def _fold(self) -> None:
        """Writes a whole update of the newest moment, made of those in the log."""
        manifest = self._export.manifest
        reader = UpdateReader(self._log, manifest.digest, manifest.tables)
        reader.catch_up()
        moment, at = reader.moment, self._at
        if moment is None or at is None or moment.moment != at.moment:
            self._at = None
            raise NotFoundError(
                f"they do not lead to the last that was published: {reader.problem}"
            )
        self._append(moment.as_whole())
        self._deltas = 0


class OpenedExport(NamedTuple):
    """An export to which updates are made."""

    directory: Path
    manifest: Manifest
    tables: dict[str, RowFile]

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> OpenedExport:
        """Maps its rows; raises CheckpointError where there is no export."""
        return open_export(
            directory, True, lambda path, m: cls(path, m, open_tables(path, m.tables))
        )
