"""The tables and dense parameters of a model that is being trained, for whoever publishes them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from sparsefleet.errors import ConfigError, NotFoundError
from sparsefleet.store import RemoteStore, Rows, Store
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.updates.publish_config import PublishConfig
from sparsefleet.updates.publisher import OpenedExport, Publisher

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["TrainedTables", "make_publisher"]


def make_publisher(distributed: DistributedModel, config: PublishConfig) -> Publisher:
    """Publishes this model as updates of the export in `config.model`; for one worker of a job.

    ConfigError where the export is of another model.
    """
    export = OpenedExport.open(config.model)
    trained = TrainedTables(distributed, export)
    try:
        return Publisher(export, trained, config)
    except BaseException:
        trained.close()
        raise


class TrainedTables:
    """A `TrainedModel`: what of a model in training is in an export of it.

    Servers note which rows change, for this reader alone: checkpoints of only what changed, and
    workers that exchange changes (GEO), have notes of their own.
    """

    def __init__(self, distributed: DistributedModel, export: OpenedExport) -> None:
        self._distributed = distributed
        self._tables = list(export.tables)
        self._dense = _dense_names(distributed, export)
        self._check_tables(export)
        self._owns_store = isinstance(distributed.store, RemoteStore)
        self._store: Store = distributed.store
        if self._owns_store:
            self._store = RemoteStore(distributed.role.server_endpoints, name="publisher")
        # In one process GEO's notes and these would be the same.
        self._compares_always = not self._owns_store and distributed.mode.name == "geo"
        self._removed: dict[str, float] = {}

    def has_lost_track(self) -> bool:
        """Rows that were removed are not noted as changed, nor those of servers begun anew."""
        return self._compares_always or self._removed != self._count_removed()

    def take_changes(self) -> dict[str, list[tuple[Keys, Floats]]]:
        """As `TrainedModel`."""
        return {table: list(self._store.take_changes(table)) for table in self._tables}

    def open_all(self) -> dict[str, Iterator[tuple[Keys, Floats]]]:
        """As `TrainedModel`."""
        self._removed = self._count_removed()
        if not self._compares_always:
            for table in self._tables:
                self._store.watch_changes(table)
                for _ in self._store.take_changes(table):
                    pass  # they are in the rows that are now read
        return {table: _keys_and_values(self._store.rows(table)) for table in self._tables}

    def dense(self) -> dict[str, NDArray[Any]]:
        """As `TrainedModel`: those of the store, and those only here."""
        distributed = self._distributed
        found: dict[str, NDArray[Any]] = distributed.tensors.copy_own(self._is_wanted)
        for table, shapes in distributed.tensors.in_tables.items():
            values, begin = distributed.store.pull_dense(table), 0
            for name, shape in shapes.items():
                end = begin + int(np.prod(shape, dtype=np.int64))
                found[name] = values[begin:end].reshape(shape)
                begin = end
        return {name: found[known] for name, known in self._dense.items()}

    def close(self) -> None:
        if self._owns_store:
            self._store.close()

    def _is_wanted(self, name: str) -> bool:
        return name in self._dense.values()

    def _check_tables(self, export: OpenedExport) -> None:
        for name, table in export.tables.items():
            spec = self._distributed.tables.get(name)
            if spec is None or spec.dim != table.entry.dim:
                found = "no such table" if spec is None else f"rows of {spec.dim}"
                raise ConfigError(
                    f"{export.directory} is the export of another model: its table '{name}' has "
                    f"rows of {table.entry.dim}, but the model that is trained has {found}"
                )

    def _count_removed(self) -> dict[str, float]:
        """By table, how many rows were removed so far on all servers."""
        stats = self._store.stats()
        return {
            table: sum(
                server.get(f"table.{table}.rows_created", 0) - server.get(f"table.{table}.rows", 0)
                for server in stats
            )
            for table in self._tables
        }


def _dense_names(distributed: DistributedModel, export: OpenedExport) -> dict[str, str]:
    """Dense tensors of the export -> what the model calls them; tied ones have several names."""
    shapes = distributed.tensors.shapes()
    model = distributed.model
    state: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    state.update(model.named_buffers(remove_duplicate=False))
    first = {id(state[name]): name for name in reversed(list(state)) if name in shapes}
    names = {}
    path = os.fspath(export.directory / export.manifest.parameters)
    for name, shape in _shapes_in(path).items():
        known = first.get(id(state.get(name)))
        if known is None or shapes[known] != shape:
            found = "no such tensor" if known is None else f"one of {list(shapes[known])}"
            raise ConfigError(
                f"{export.directory} is the export of another model: its '{name}' has the shape "
                f"{list(shape)}, but the model that is trained has {found}"
            )
        names[name] = known
    return names


def _shapes_in(path: str) -> Mapping[str, tuple[int, ...]]:
    try:
        with safe_open(path, "np") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} is missing") from error


def _keys_and_values(chunks: Iterator[Rows]) -> Iterator[tuple[Keys, Floats]]:
    for rows in chunks:
        yield rows.keys, rows.values
