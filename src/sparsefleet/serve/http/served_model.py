"""One version of a model, open and ready to answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsefleet.errors import CheckpointError
from sparsefleet.export.golden import largest_difference
from sparsefleet.export.opened_export import open_export
from sparsefleet.serve.http.batcher import Batcher
from sparsefleet.serve.http.config import ServeConfig
from sparsefleet.serve.http.merging import BatchLayout
from sparsefleet.serve.predictor import Predictor
from sparsefleet.serve.row_store import RowStore
from sparsefleet.serve.row_stores import open_rows

__all__ = ["ServedModel", "open_model"]

_log = logging.getLogger(__name__)
_BATCH_TOLERANCE = 1e-4


class ServedModel:
    """A Predictor with its rows and its queue. Everything a request needs comes from one of these,
    so that no answer can be of two versions.

    `in_use` and `is_retired` belong to the thread of the event loop.
    """

    def __init__(
        self, name: str, predictor: Predictor, batcher: Batcher, layout: BatchLayout
    ) -> None:
        self.name = name
        self.version = predictor.manifest.digest
        self.predictor = predictor
        self.rows = predictor.rows
        self.batcher = batcher
        self.layout = layout
        self.in_use = 0
        self.is_retired = False

    def answers_to(self, version: str) -> bool:
        """Whether it is meant by this name or digest."""
        return version in (self.name, self.version)

    def close_in_background(self) -> threading.Thread:
        """Ends its threads and frees its rows."""
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
    """Opens the export in `directory`, with the rows that `config` names, and tries it out.

    Raises what is wrong with it; nothing is left open then.
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
            "%s predicts an example otherwise when others are beside it: requests are not batched",
            directory,
        )
    batcher = Batcher(
        predictor.predict_arrays,
        layout,
        workers=config.workers,
        max_batch=config.max_batch if is_separable else 1,
        wait_s=config.batch_wait_s,
        observe=observe,
    )
    return ServedModel(name, predictor, batcher, layout)


def _rows_elsewhere(directory: Path, config: ServeConfig) -> RowStore | None:
    """None: in the files of the export, as they are."""
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
    """Predicts the golden examples, which also warms everything up. Raises CheckpointError if
    they are not what they should be. Whether examples are predicted alike with others beside
    them and without."""
    try:
        predictor.check_golden()
    except CheckpointError:
        if predictor.rows.freshness() is None:  # with updates they are no longer golden
            raise
    inputs = predictor.golden.inputs
    tables = predictor.tables_for(inputs)  # an update in between would make a difference, too
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
