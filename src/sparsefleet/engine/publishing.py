"""Publishes updates of a served model while its training continues."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from sparsefleet.errors import ConfigError, NotFoundError, PublishError, SparseFleetError
from sparsefleet.serving.updates.publisher import OpenedExport, PublishConfig, Publisher
from sparsefleet.store import RemoteStore, Rows, Store
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["Publishing", "TrainedTables", "make_publisher"]

_log = logging.getLogger("sparsefleet.engine")


class Publishing:
    """Writes a model's changes in the background; the first worker does this for all workers.

    A failed update is logged, and the next update includes its changes; training continues. Not
    thread-safe.
    """

    def __init__(self, distributed: BoundModel, config: PublishConfig) -> None:
        self._publisher = make_publisher(distributed, config)
        self._writer: threading.Thread | None = None
        self.error: Exception | None = None
        """The error from the last update; None if it succeeded."""

    def begin(self) -> str:
        """Collect the changes and write them in a background thread; return a summary for the log.

        All workers must be paused, and all their updates applied.
        """
        if self._writer is not None and self._writer.is_alive():
            return "skipped: the previous update is still being written"
        self.wait()
        begun = time.monotonic()
        try:
            self._publisher.take()
        except (SparseFleetError, OSError) as error:
            self._failed(error)
            return f"failed: {error}"
        pause_ms = 1e3 * (time.monotonic() - begun)
        self._writer = threading.Thread(target=self._write, name="sparsefleet-publish", daemon=True)
        self._writer.start()
        return f"started, changes taken in {pause_ms:.1f} ms"

    def wait(self) -> None:
        """Block until the current update is published or has failed."""
        if self._writer is not None:
            self._writer.join()  # the thread will finish, since every call in it has a deadline
            self._writer = None

    def close(self) -> None:
        """Wait for the current update, then release the right to publish."""
        self.wait()
        try:
            self._publisher.close()
        except SparseFleetError as error:
            _log.warning("publishing to %s: %s", self._publisher.where, error)

    def raise_last_error(self) -> None:
        """Raise PublishError if the last update failed."""
        if self.error is not None:
            raise PublishError(
                f"the last update could not be published to {self._publisher.where}: {self.error}"
            ) from self.error

    def _write(self) -> None:
        """Write the update in the background thread."""
        begun = time.monotonic()
        try:
            update = self._publisher.write()
        except Exception as error:  # thread boundary
            self._failed(error)
            return
        self.error = None
        _log.info(
            "update %d is published: %d rows, %.2f s after the snapshot",
            update.sequence,
            update.num_rows,
            time.monotonic() - begun,
        )

    def _failed(self, error: Exception) -> None:
        self.error = error
        _log.error(
            "an update could not be published to %s; the next one will include its changes: %s: %s",
            self._publisher.where,
            type(error).__name__,
            error,
        )


def make_publisher(distributed: BoundModel, config: PublishConfig) -> Publisher:
    """Return a publisher that updates the export in `config.model` from this model.

    Call it on one worker of a job. Raises ConfigError if the export belongs to a different model.
    """
    export = OpenedExport.open(config.model)
    trained = TrainedTables(distributed, export)
    try:
        return Publisher(export, trained, config)
    except BaseException:
        trained.close()
        raise


class TrainedTables:
    """The parts of a model in training that its export contains; implements `TrainedModel`.

    Servers track the rows changed since the last update separately from those tracked for delta
    checkpoints and for GEO's exchange of deltas.
    """

    def __init__(self, distributed: BoundModel, export: OpenedExport) -> None:
        self._distributed = distributed
        self._tables = list(export.tables)
        self._dense = _dense_names(distributed, export)
        self._check_tables(export)
        self._owns_store = isinstance(distributed.store, RemoteStore)
        self._store: Store = distributed.store
        if self._owns_store:
            self._store = RemoteStore(distributed.role.server_endpoints, name="publisher")
        # Within one process, GEO would share this tracking.
        self._compares_always = not self._owns_store and distributed.mode.name == "geo"
        self._removed: dict[str, float] = {}

    def has_lost_track(self) -> bool:
        """Return whether changes may be missing because rows were removed or servers restarted."""
        return self._compares_always or self._removed != self._count_removed()

    def take_changes(self) -> dict[str, list[tuple[Keys, Floats]]]:
        """Implement `TrainedModel`."""
        return {table: list(self._store.take_changes(table)) for table in self._tables}

    def open_all(self) -> dict[str, Iterator[tuple[Keys, Floats]]]:
        """Implement `TrainedModel`."""
        self._removed = self._count_removed()
        if not self._compares_always:
            for table in self._tables:
                self._store.watch_changes(table)
                for _ in self._store.take_changes(table):
                    pass  # these changes are among the rows that are read now
        return {table: _keys_and_values(self._store.rows(table)) for table in self._tables}

    def dense(self) -> dict[str, NDArray[Any]]:
        """Implement `TrainedModel`: return all dense tensors.

        Some are in the store, others only in this process.
        """
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
                found = "no such table" if spec is None else f"width {spec.dim}"
                raise ConfigError(
                    f"{export.directory} is the export of a different model: its table '{name}' "
                    f"has width {table.entry.dim}, but the trained model has {found}"
                )

    def _count_removed(self) -> dict[str, float]:
        """Return how many rows of each table all servers together have removed so far."""
        stats = self._store.stats()
        return {
            table: sum(
                server.get(f"table.{table}.rows_created", 0) - server.get(f"table.{table}.rows", 0)
                for server in stats
            )
            for table in self._tables
        }


def _dense_names(distributed: BoundModel, export: OpenedExport) -> dict[str, str]:
    """Map each name in the export to a name in the model; tied tensors have several names."""
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
                f"{export.directory} is the export of a different model: its '{name}' has shape "
                f"{list(shape)}, but the trained model has {found}"
            )
        names[name] = known
    return names


def _shapes_in(path: str) -> Mapping[str, tuple[int, ...]]:
    try:
        with safe_open(path, "np") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} is missing: export the model again") from error


def _keys_and_values(chunks: Iterator[Rows]) -> Iterator[tuple[Keys, Floats]]:
    for rows in chunks:
        yield rows.keys, rows.values
