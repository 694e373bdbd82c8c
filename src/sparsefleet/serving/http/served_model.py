"""One version of a model, open and ready to predict."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsefleet.errors import CheckpointError
from sparsefleet.serving.export.export_directory import open_export
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.golden import largest_difference
from sparsefleet.serving.http.admission import RequestMemory
from sparsefleet.serving.http.batcher import Batcher, BatchLayout
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.row_stores import open_rows
from sparsefleet.serving.row_stores.row_store import RowStore

__all__ = ["ServedModel", "open_model"]

_log = logging.getLogger(__name__)
_BATCH_TOLERANCE = 1e-4


class ServedModel:
    """A Predictor with its rows and its queue of requests.

    A request uses the same served model throughout, so that no response mixes two versions. Only
    the event loop's thread may use `in_use` and `is_retired`.
    """

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        batcher: Batcher,
        layout: BatchLayout,
        memory: RequestMemory,
    ) -> None:
        self.name = name
        self.version = predictor.manifest.digest
        self.predictor = predictor
        self.rows = predictor.rows
        self.batcher = batcher
        self.layout = layout
        self.memory = memory
        self.in_use = 0
        self.is_retired = False

    def answers_to(self, version: str) -> bool:
        """Return whether this name or digest refers to this model."""
        return version in (self.name, self.version)

    def close_in_background(self) -> threading.Thread:
        """Stop the model's threads and free the rows in a new thread; return that thread."""
        thread = threading.Thread(target=self.close, name="close-model", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        self.batcher.close()
        self.rows.close()


def open_model(
    directory: Path,
    name: str,
    config: ServeConfig,
    observe: Callable[[int, int, float], None] = lambda *_: None,
) -> ServedModel:
    """Open the export in `directory`, with the rows named in `config`, and test it.

    If an error is raised, nothing is left open.
    """
    rows = _rows_elsewhere(directory, config)
    try:
        predictor = Predictor(directory, engine=config.engine, rows=rows, threads=config.threads)
        layout = BatchLayout(predictor.schema)
        predictor.rows.check()
        is_separable = try_out(predictor, layout)
    except BaseException:
        if rows is not None:
            rows.close()
        raise
    if not is_separable and config.max_batch > 1:
        _log.warning(
            "%s predicts differently when examples are batched, so requests are not batched",
            directory,
        )
    memory = RequestMemory(predictor.manifest, config.max_row_bytes)

    def predict(arrays: Arrays) -> Arrays:
        return predictor.predict_with(arrays, memory.bound(predictor.tables_for(arrays)))

    batcher = Batcher(
        predict,
        layout,
        workers=config.workers,
        max_batch=config.max_batch if is_separable else 1,
        wait_s=config.batch_wait_s,
        observe=observe,
    )
    return ServedModel(name, predictor, batcher, layout, memory)


def _rows_elsewhere(directory: Path, config: ServeConfig) -> RowStore | None:
    """Return the row store, or None if rows are read from the export's own files."""
    if not config.rows and not config.updates:
        return None
    manifest = open_export(directory, True, lambda _, found: found, with_rows=not config.rows)
    return open_rows(
        directory,
        manifest,
        rows=config.rows or None,
        updates=config.updates or None,
        cache_bytes=config.cache_bytes,
        timeout_s=config.store_timeout_s,
    )


def try_out(predictor: Predictor, layout: BatchLayout) -> bool:
    """Make predictions for the golden examples, which also warms up the model.

    Returns whether an example's prediction is independent of the other examples in its batch.
    Raises CheckpointError if the predictions are wrong.
    """
    try:
        predictor.check_golden()
    except CheckpointError:
        if predictor.rows.freshness() is None:  # updates change the predictions
            raise
    inputs = predictor.golden.inputs
    tables = predictor.tables_for(inputs)  # so that an update between the two runs has no effect
    whole = predictor.predict_with(inputs, tables)
    for name, array in whole.items():
        if not np.isfinite(array).all():
            raise CheckpointError(f"target '{name}' of a golden example is not a finite number")
    if layout.count(inputs) < 2:
        return True
    fewer = layout.count(inputs) // 2
    alone = predictor.predict_with(layout.part(inputs, fewer), tables)
    beside = {name: array[:fewer] for name, array in whole.items()}
    return largest_difference(alone, beside) <= _BATCH_TOLERANCE
