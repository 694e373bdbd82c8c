"""The served model, open and ready to predict, and the switch between its versions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from sparsefleet.errors import CheckpointError, NotFoundError, StoreUnavailableError
from sparsefleet.serving.export.export_directory import open_export
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.golden import largest_difference
from sparsefleet.serving.http.admission import RequestMemory
from sparsefleet.serving.http.batcher import Batcher, BatchLayout
from sparsefleet.serving.http.catalogue import Catalogue, Choice, Version, find
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.refusal import Refusal
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.row_stores import open_rows
from sparsefleet.serving.row_stores.row_store import RowStore

__all__ = ["Models", "ServedModel", "open_model"]

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
    """Make predictions for the golden examples. This also warms up the model.

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


_FOLLOW_S = 1.0


class Models:
    """The loaded models.

    A request leases a model until the request is done, so a switch never affects a request in
    progress. A retired model is closed when its last request is done.

    May only be used by the event loop's thread; models are opened in other threads.

    open_version: opens a model in the catalogue; may take a long time.
    """

    def __init__(
        self, catalogue: Catalogue, open_version: Callable[[Version], ServedModel]
    ) -> None:
        self.catalogue = catalogue
        self._open_version = open_version
        self.active: ServedModel | None = None
        self.previous: ServedModel | None = None
        self.failure: str | None = None
        """Why the chosen version is not being served, or None if it is."""
        self.switches = 0
        self._seen: str | None = None
        self._changing = asyncio.Lock()

    @contextlib.contextmanager
    def lease(self, version: str | None = None) -> Iterator[ServedModel]:
        """Return the active model, or the given version. It stays open inside the `with` block."""
        model = self._find(version)
        model.in_use += 1
        try:
            yield model
        finally:
            model.in_use -= 1
            self._close_if_unused(model)

    def loaded(self) -> list[ServedModel]:
        """Return the loaded models, with the active model first."""
        return [model for model in (self.active, self.previous) if model is not None]

    async def start(self) -> None:
        """Open the chosen version, or the newest version if none is chosen.

        If its rows are unavailable, `follow` keeps trying; other errors are raised.
        """
        try:
            self._seen = await asyncio.to_thread(self.catalogue.chosen)
            chosen = self._seen
            if chosen is None:
                chosen = await asyncio.to_thread(self._newest)
            await self.switch(chosen, note=False)
        except StoreUnavailableError as error:
            self.failure = str(error)
            self._seen = None
            _log.error("not ready: %s", error)

    async def follow(self) -> None:
        """Poll for the chosen version and switch to it. Never returns."""
        reported = None
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self._follow_once()
                reported = None
            except Exception as error:  # the task must not end while the service runs
                self.failure = str(error) or type(error).__name__
                if reported != self.failure:
                    _log.error("the chosen version cannot be served: %s", self.failure)
                reported = self.failure

    async def _follow_once(self) -> None:
        async with self._changing:  # a choice that was read before a switch is out of date after it
            chosen = await asyncio.to_thread(self.catalogue.chosen)
            if chosen is None and self.active is None:
                chosen = await asyncio.to_thread(self._newest)
            if self.active is not None and chosen in (None, self._seen):
                self.failure = None
                return
            assert chosen is not None
            await self._change_to(chosen, note=False)
            self._seen = chosen

    async def switch(self, version: str, *, note: bool = True) -> ServedModel:
        """Open the given version and make it active.

        Raises an error, and changes nothing, if the version cannot be opened or the choice cannot
        be recorded.
        """
        async with self._changing:
            return await self._change_to(version, note=note)

    async def roll_back(self) -> ServedModel:
        """Make the previously active version active again."""
        async with self._changing:
            if self.previous is not None:
                before: str | None = self.previous.version
            else:
                before = await asyncio.to_thread(self.catalogue.previous)
            if before is None:
                raise NotFoundError("there is no previous version to roll back to")
            return await self._change_to(before, note=True)

    async def close(self) -> None:
        """Close all models. No request may be in progress."""
        models, self.active, self.previous = self.loaded(), None, None
        for model in models:
            await asyncio.to_thread(model.close)

    async def _change_to(self, wanted: str, *, note: bool) -> ServedModel:
        model = await self._loaded(wanted) or await self._opened(wanted)
        try:
            if note:
                await self._note(model)
        except BaseException:
            if model not in self.loaded():
                model.close_in_background()
            raise
        self._make_active(model)
        return model

    async def _opened(self, wanted: str) -> ServedModel:
        version = await asyncio.to_thread(find, self.catalogue, wanted)
        known = await self._loaded(version.digest)
        if known is not None:
            return known
        return await asyncio.to_thread(self._open_version, version)

    async def _loaded(self, digest: str) -> ServedModel | None:
        """Return the model of this version if it is open, even if its files were overwritten.

        Raises StoreUnavailableError if its rows are no longer available.
        """
        for model in self.loaded():
            if model.version == digest:
                if model is not self.active:
                    await asyncio.to_thread(model.rows.check)
                return model
        return None

    def _make_active(self, model: ServedModel) -> None:
        if model is self.active:
            self.failure = None
            return
        dropped = self.previous if self.previous is not model else None
        self.active, self.previous = model, self.active
        if dropped is not None:
            dropped.is_retired = True
            self._close_if_unused(dropped)
        self._changed()

    def _changed(self) -> None:
        assert self.active is not None
        self.failure = None
        self.switches += 1
        _log.info("serving %s (%s)", self.active.name, self.active.version)

    async def _note(self, model: ServedModel) -> None:
        before = self.previous if model is self.active else self.active
        choice = Choice(model.name, model.version, before.name if before else None)
        self._seen = await asyncio.to_thread(self.catalogue.choose, choice) or self._seen

    def _find(self, version: str | None) -> ServedModel:
        if version is None and self.active is not None:
            return self.active
        for model in self.loaded():
            if version is not None and model.answers_to(version):
                return model
        if self.active is None:
            why = self.failure or "it is loading"
            raise Refusal(503, "no_model", f"no model is served yet: {why}", {"Retry-After": "1"})
        there = ", ".join(f"{model.name} ({model.version})" for model in self.loaded())
        raise Refusal(
            404,
            "unknown_version",
            f"version {version!r:.80} is not loaded; loaded versions: {there}",
        )

    def _close_if_unused(self, model: ServedModel) -> None:
        if model.is_retired and model.in_use == 0:
            model.close_in_background()

    def _newest(self) -> str:
        versions = self.catalogue.versions()
        if not versions:
            raise NotFoundError("there is no version to serve")
        return versions[-1].digest
