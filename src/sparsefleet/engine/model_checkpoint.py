"""Saves and loads a model: named dense parameters, their optimizer state, and the tables.

A parameter's state is stored next to it as `<parameter>/<name of the state>`. As on servers, state
with one float for all elements, such as Adam's step, is repeated for each element.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.manifest import SERIES_NOTE
from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.errors import CheckpointMismatchError, CheckpointMissingError
from sparsefleet.store.store_load import load_tables
from sparsefleet.store.store_save import Base, StoreSave
from sparsefleet.store.table_spec import state_names

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel
    from sparsefleet.engine.training_progress import WorkerReport

__all__ = ["LoadRequest", "ModelSave", "Predicate", "load_model", "read_user_notes"]

Arrays = dict[str, NDArray[Any]]

Predicate = Callable[[str], bool]
"""Selects parameters, buffers and tables by name."""

_SCHEDULE_NOTE = "schedule_steps"
_USER_NOTES = "user"


class ModelSave:
    """One save of a model and its tables; created and used by one worker.

    step: number of training steps so far, for listings of checkpoints.
    workers: the data that each worker needs to resume, by rank.
    schedule_steps: steps of the learning-rate schedule.
    user_notes: JSON stored in the manifest for the caller; see `read_user_notes`.
    only: selects what to save; None means everything.
    generation: identifies the run that owns the checkpoint series; see `SeriesOwner`.

    For base, track, storage_options and timeout_s, see `StoreSave`.
    """

    def __init__(
        self,
        distributed: BoundModel,
        path: str | os.PathLike[str],
        *,
        step: int = 0,
        workers: Sequence[Mapping[str, Any]] = (),
        schedule_steps: int = 0,
        user_notes: Mapping[str, Any] | None = None,
        only: Predicate | None = None,
        base: Base | None = None,
        track: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 3600.0,
        generation: int | None = None,
    ) -> None:
        self._tensors = distributed.tensors
        self._step = step
        self._workers = workers
        self._schedule_steps = schedule_steps
        self._only = only or _everything
        self._tables = StoreSave(
            distributed.store,
            path,
            tables=_chosen_tables(distributed, self._only),
            base=base,
            track=track,
            storage_options=storage_options,
            timeout_s=timeout_s,
        )
        self._notes = distributed.notes_to_save()
        if user_notes:
            self._notes[_USER_NOTES] = dict(user_notes)
        if generation is not None:
            self._notes[SERIES_NOTE] = {"generation": generation}
        self._own: Arrays = {}

    @classmethod
    def of_workers(
        cls,
        distributed: BoundModel,
        path: str | os.PathLike[str],
        reports: Sequence[WorkerReport],
        **how: Any,
    ) -> ModelSave:
        """Create a save that stores the position of each worker by rank.

        `how` holds the other arguments of the class.
        """
        return cls(
            distributed,
            path,
            step=sum(report.batches for report in reports),
            workers=[report.to_json() for report in reports],
            schedule_steps=max(report.schedule_steps for report in reports),
            **how,
        )

    def open(self) -> None:
        """Take the snapshot. All updates must have been applied, and no worker may train.

        Taking the snapshot is quick and touches no file.
        """
        self._own = self._tensors.copy_own(self._only)
        self._tables.open()

    def write(self) -> Base:
        """Write and commit the files while training continues.

        Returns the base for later delta checkpoints.
        """
        self._tables.write()
        try:
            tensors = dict(self._own)
            for table in self._tables.dense:
                tensors |= self._parameters_of(table)
        except BaseException:
            self._tables.abort()
            raise
        notes = {_SCHEDULE_NOTE: self._schedule_steps, **self._notes}
        manifest = self._tables.commit(tensors, step=self._step, workers=self._workers, notes=notes)
        return Base(self._tables.path, manifest.token)

    def abort(self) -> None:
        """Abandon an open save; does nothing after `write`."""
        self._tables.abort()

    def _parameters_of(self, table: str) -> Arrays:
        """Return a dense table split into its parameters, each with its state."""
        values, state = self._tables.dense_table(table)
        wide, single = state_names(self._tables.dense[table].optimizer)
        tensors: Arrays = {}
        begin = 0
        for name, shape in self._tensors.in_tables[table].items():
            end = begin + int(np.prod(shape, dtype=np.int64))
            if self._only(name):
                tensors[name] = values[begin:end].reshape(shape)
                for array, part in zip((*wide, *single), state, strict=True):
                    tensors[f"{name}/{array}"] = part[begin:end].reshape(shape)
            begin = end
        return tensors


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A checkpoint to load, and which part of it to load."""

    directory: str | os.PathLike[str]
    only: Predicate | None = None
    """Selects what to load, by name. If None, everything is loaded, and the checkpoint must hold
    exactly the model's tensors and tables.
    """
    storage_options: Mapping[str, Any] | None = None
    """Options for fsspec."""


def load_model(distributed: BoundModel, request: LoadRequest, *, with_tables: bool = True) -> int:
    """Load a checkpoint written by `ModelSave` in one worker; return the number of schedule steps.

    Nothing changes unless the whole checkpoint fits the model and is intact. with_tables: False if
    a different worker loads the tables.
    """
    path, only = absolute_path(request.directory), request.only
    checkpoint = Checkpoint.open(path, dict(request.storage_options or {}) or None)
    _require_fits(checkpoint, distributed, only)
    own = distributed.fitted(checkpoint.dense()) if distributed.tensors.own_names() else {}
    tables = _chosen_tables(distributed, only or _everything) if with_tables else []
    if tables:
        load_tables(
            distributed.store,
            path,
            tables=tables,
            dense_names={t: list(names) for t, names in distributed.tensors.in_tables.items()},
            storage_options=request.storage_options,
        )
    distributed.tensors.take_own(own, only or _everything)
    distributed.take_notes(checkpoint.manifest.notes)
    return int(checkpoint.manifest.notes.get(_SCHEDULE_NOTE, 0))


def read_user_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the user's notes in a checkpoint, or {} if it has no notes or does not exist."""
    try:
        manifest = Checkpoint.open(absolute_path(path)).manifest
    except CheckpointMissingError:
        return {}
    return dict(manifest.notes.get(_USER_NOTES, {}))


def _everything(_: str) -> bool:
    return True


def _chosen_tables(distributed: BoundModel, only: Predicate) -> list[str]:
    """Return the selected sparse tables, and the dense tables that contain selected parameters."""
    sparse = [name for name in distributed.tables if only(name)]
    in_tables = distributed.tensors.in_tables
    return sparse + [table for table, names in in_tables.items() if any(map(only, names))]


def _require_fits(checkpoint: Checkpoint, distributed: BoundModel, only: Predicate | None) -> None:
    """Raise CheckpointMismatchError unless tensors and tables match the model."""
    where = checkpoint.path
    wanted = distributed.tensors.shapes()
    shapes = {entry.name: entry.shape for entry in checkpoint.manifest.dense}
    found = {n: s for n, s in shapes.items() if n.rpartition("/")[0] not in shapes}
    for name, shape in wanted.items():
        if only is not None and not only(name):
            continue
        if name not in found:
            raise CheckpointMismatchError(
                f"{where} belongs to a different model: it has no tensor '{name}'"
            )
        if found[name] != shape:
            raise CheckpointMismatchError(
                f"{where}: '{name}': expected shape {list(shape)}, found {list(found[name])}"
            )
    if only is not None:
        return
    unknown = sorted(found.keys() - wanted.keys())
    unknown += sorted(
        table.name for table in checkpoint.manifest.tables if table.name not in distributed.tables
    )
    if unknown:
        raise CheckpointMismatchError(
            f"{where} belongs to a different model: it has '{unknown[0]}', which this model lacks; "
            "to load part of it, pass only="
        )
