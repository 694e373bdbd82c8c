"""Reading updates as they come, in order, none left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sparsefleet.errors import (
    CheckpointMismatchError,
    CorruptFileError,
    NotFoundError,
)
from sparsefleet.export.manifest import TableEntry
from sparsefleet.updates.model_moment import ModelMoment
from sparsefleet.updates.update import Update
from sparsefleet.updates.update_log import UpdateLog
from sparsefleet.updates.update_name import UpdateName
from sparsefleet.updates.update_path import find_path

__all__ = ["UpdateReader"]


class UpdateReader:
    """Follows a log from moment to moment. Used by one thread.

    A delta that is missing, damaged or of another log is never passed over: the reader stays at
    the last moment that it knows to be right, until a whole update leads beyond.

    tables: of the export that the updates must fit.
    """

    def __init__(self, log: UpdateLog, version: str, tables: Iterable[TableEntry]) -> None:
        self._log = log
        self._version = version
        self._entries = {entry.name: entry for entry in tables}
        self.moment: ModelMoment | None = None
        """Where it is; None: the export as it was written."""
        self.problem: str | None = None
        """Why newer updates cannot be read, and what will help; None: all is well."""

    def catch_up(self, prepare: Callable[[ModelMoment], None] | None = None) -> bool:
        """Reads what is new; whether there was anything.

        prepare: called with the new moment before it becomes `moment`; what it raises is raised
            here, and the moment stays as it was.
        Raises StoreUnavailableError where the log cannot be reached.
        """
        names = self._log.names()
        try:
            found, problem = self._follow(names, start_over=False)
        except (CheckpointMismatchError, CorruptFileError, NotFoundError) as error:
            found, problem = self._start_over(error)
        is_new = found is not None and found is not self.moment
        if is_new and prepare is not None:
            assert found is not None
            prepare(found)
        self.moment, self.problem = found, problem
        return is_new

    def _start_over(self, cause: Exception) -> tuple[ModelMoment | None, str | None]:
        """From the newest whole update, which may be newer than the list that has misled us."""
        try:
            found, problem = self._follow(self._log.names(), start_over=True)
        except (CheckpointMismatchError, CorruptFileError, NotFoundError) as error:
            return self.moment, f"{error}; waiting for a whole update"
        at = self.moment
        if found is None or (at is not None and found.made < at.made):
            return at, f"{cause}; waiting for a whole update"
        return found, problem

    def _follow(
        self, names: list[UpdateName], *, start_over: bool
    ) -> tuple[ModelMoment | None, str | None]:
        at = self.moment
        place = None if at is None else (at.sequence, at.moment)
        path = find_path(names, place, start_over=start_over)
        for name in path.names:
            update = self._read(name)
            if update.previous is None:
                at = ModelMoment.of_whole(update)
            elif at is not None:
                at = at.after(update)
        if path.missing is None:
            return at, None
        return at, (
            f"update {path.missing} is missing in {self._log.where}, though there are newer ones; "
            "waiting for a whole update"
        )

    def _read(self, name: UpdateName) -> Update:
        update = Update.from_bytes(name, self._log.read(name), self._log.where)
        if update.base != self._version or (update.sequence, update.moment) != name[1:3]:
            raise CheckpointMismatchError(
                f"{self._log.where}: '{name}' holds update {update.sequence} of the export "
                f"{update.base}, wanted one of {self._version}"
            )
        for table, changes in update.tables.items():
            entry = self._entries.get(table)
            values: Any = changes.rows.values
            if entry is None or (values.shape[1], values.dtype) != (
                entry.dim,
                np.dtype(entry.format),
            ):
                wanted = "no such table" if entry is None else f"{entry.format} of {entry.dim}"
                raise CheckpointMismatchError(
                    f"{self._log.where}: update {update.sequence} has rows of table '{table}' in "
                    f"{values.dtype} of {values.shape[1]}, but the export has {wanted}"
                )
        return update
