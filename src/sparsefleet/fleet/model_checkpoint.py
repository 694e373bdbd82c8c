"""A model in a checkpoint: dense parameters by name, their optimizer state, and its tables.

A parameter's state is beside it, as `<parameter>/<name of the state>`; the state of one float
a parameter's table, such as Adam's step, is repeated for each element, as servers hold it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import CheckpointMismatchError
from sparsefleet.store.store_load import load_tables
from sparsefleet.store.store_save import StoreSave
from sparsefleet.store.table_entry import state_names

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["ModelSave", "load_model", "own_tensors"]

Arrays = dict[str, NDArray[Any]]
Predicate = Callable[[str], bool]

_SCHEDULE_NOTE = "schedule_steps"


class ModelSave:
    """One save of a model and its tables; made and used by one worker.

    step: training steps so far, for whoever lists checkpoints.
    workers: what each worker needs to go on, by rank.
    schedule_steps: where the schedule of learning rates is.
    only: chooses parameters, buffers and tables by name; None is everything.
    For base, track, storage_options and timeout_s see `StoreSave`.
    """

    def __init__(
        self,
        distributed: DistributedModel,
        path: str | os.PathLike[str],
        *,
        step: int = 0,
        workers: Sequence[Mapping[str, Any]] = (),
        schedule_steps: int = 0,
        only: Predicate | None = None,
        base: str | None = None,
        track: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        self._distributed = distributed
        self._step = step
        self._workers = workers
        self._schedule_steps = schedule_steps
        self._only = only or (lambda name: True)
        self._names = distributed.dense_names
        tables = [name for name in distributed.tables if self._only(name)]
        tables += [n for n, names in self._names.items() if any(map(self._only, names))]
        self._tables = StoreSave(
            distributed.store,
            path,
            tables=tables,
            base=base,
            track=track,
            storage_options=storage_options,
            timeout_s=timeout_s,
        )
        self._own: Arrays = {}

    def open(self) -> None:
        """The moment of the save. Everything handed over must be applied, and nobody may train.

        Quick; the disk is not touched.
        """
        tensors = {**own_tensors(self._distributed), **self._distributed.torch_state()}
        self._own = {name: _copy(t) for name, t in tensors.items() if self._only(_owner(name))}
        self._tables.open()

    def write(self) -> None:
        """Returns when the checkpoint is in force; while it is written, training goes on."""
        self._tables.write()
        try:
            tensors = dict(self._own)
            for table in self._tables.dense:
                tensors |= self._parameters_of(table)
            notes = {_SCHEDULE_NOTE: self._schedule_steps}
            self._tables.commit(tensors, step=self._step, workers=self._workers, notes=notes)
        except BaseException:
            self._tables.abort()
            raise

    def _parameters_of(self, table: str) -> Arrays:
        """A dense table cut into its parameters, each with its state."""
        values, state = self._tables.dense_table(table)
        names = [*_arrays_of(self._tables.dense[table].optimizer)]
        tensors: Arrays = {}
        begin = 0
        for name, shape in self._names[table].items():
            end = begin + int(np.prod(shape, dtype=np.int64))
            if self._only(name):
                tensors[name] = values[begin:end].reshape(shape)
                for array, part in zip(names, state, strict=True):
                    tensors[f"{name}/{array}"] = part[begin:end].reshape(shape)
            begin = end
        return tensors


def load_model(
    distributed: DistributedModel,
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Loads what `ModelSave` wrote, in one worker; returns where the schedule was.

    Nothing changes unless all of it fits and is whole.
    """
    checkpoint = Checkpoint.open(os.fspath(path), dict(storage_options or {}) or None)
    names = distributed.dense_names
    own = {**own_tensors(distributed)}
    stepped_here = distributed.torch_state()
    _require_same_model(checkpoint, distributed, own)
    tensors = checkpoint.dense()
    for name, tensor in {**own, **stepped_here}.items():
        _require_shape(checkpoint, name, tensors, tuple(tensor.shape))
    load_tables(
        distributed.store,
        path,
        dense_names={table: list(parameters) for table, parameters in names.items()},
        storage_options=storage_options,
    )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(tensors[name]))
    distributed.take_torch_state({name: tensors[name] for name in tensors})
    return int(checkpoint.manifest.notes.get(_SCHEDULE_NOTE, 0))
