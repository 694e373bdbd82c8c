"""Make predictions from an export's files, without servers or training code."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointError, CheckpointMismatchError, ConfigError
from sparsefleet.serving.export.export_directory import Verify, open_export
from sparsefleet.serving.export.feeds import Arrays, check_feeds
from sparsefleet.serving.export.golden import Golden, largest_difference, read_golden
from sparsefleet.serving.export.keyed_rows import Tables
from sparsefleet.serving.export.manifest import ExportManifest, Schema
from sparsefleet.serving.export.onnx_engine import OnnxEngine, is_installed
from sparsefleet.serving.row_stores.row_store import FileRows, RowStore, dense_of
from sparsefleet.serving.row_stores.updated_rows import UpdatedRows
from sparsefleet.serving.updates import DenseValues

__all__ = ["Engine", "FollowingEngine", "Predictor", "UpdatableEngine"]

_KEPT = 2  # predictions that use the previous snapshot may still be running


class UpdatableEngine(Protocol):
    """An engine that computes predictions and can switch to new dense parameters."""

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays: ...

    def with_dense(self, arrays: Mapping[str, NDArray[Any]]) -> UpdatableEngine: ...


class FollowingEngine:
    """An engine that takes dense parameters and rows from the same snapshot. Thread-safe."""

    def __init__(self, engine: UpdatableEngine) -> None:
        self._exported = engine
        self._newer: list[tuple[DenseValues, UpdatableEngine]] = []
        self._lock = threading.Lock()

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays:
        """Return the targets for these inputs, using the rows and dense parameters in `tables`."""
        dense = dense_of(tables)
        engine = self._exported if dense is None else self._with(dense)
        return engine.predict(arrays, tables)

    def prepare(self, dense: DenseValues) -> None:
        """Prepare a snapshot, so that the first prediction that uses it does not wait.

        Raises CheckpointMismatchError if the snapshot belongs to a different model.
        """
        self._with(dense)

    def _with(self, dense: DenseValues) -> UpdatableEngine:
        for known, engine in self._newer:
            if known is dense:
                return engine
        with self._lock:
            for known, engine in self._newer:
                if known is dense:
                    return engine
            made = self._exported.with_dense(dense.arrays)
            self._newer = [(dense, made), *self._newer][:_KEPT]
            return made


Engine = Literal["torch", "onnx", "auto"]

# Added to the row format's error, since the order of sums depends on processor and version.
_GOLDEN_TOLERANCE = 1e-5


class _Opened(NamedTuple):
    """An export that is fully read or mapped into memory, so that its files may be deleted."""

    directory: Path
    manifest: ExportManifest
    golden: Golden
    engine: Engine
    runs: FollowingEngine
    rows: RowStore


class Predictor:
    """Makes predictions with an exported model.

    engine: "torch" runs the recorded graph. "onnx" runs ONNX Runtime and needs no torch. "auto"
        uses ONNX if both the export and this process support it, otherwise torch.
    rows: the row store; None means the export's files, mapped into memory. A store for a different
        export is rejected with CheckpointMismatchError. The caller must close a store that it
        passes.
    verify: True checks that all files are present and intact, but checks rows only for size, so
        that loading time does not depend on table size. "deep" checks the rows too. False checks
        nothing.
    threads: threads per prediction; None lets the engine choose. For torch this is a process-wide
        setting.

    Thread-safe.

    >>> import tempfile
    >>> import numpy as np, torch
    >>> from sparsefleet.serving.export import save_inference_model
    >>> from sparsefleet.nn import SparseEmbedding
    >>> from torch import nn
    >>> model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = save_inference_model(folder, model, torch.tensor([3, 5]), onnx=False)
    ...     Predictor(folder).predict(np.array([3, 5, 8])).shape
    (3,)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        engine: Engine = "torch",
        rows: RowStore | None = None,
        verify: Verify = True,
        threads: int | None = None,
    ) -> None:
        if engine not in get_args(Engine):
            raise ConfigError(f"engine must be 'torch', 'onnx' or 'auto', got {engine!r}")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise ConfigError(f"threads must be None or an int >= 1, got {threads!r}")
        self._wanted = engine
        self._threads = threads
        self._given_rows = rows
        self._opened = open_export(directory, verify, self._open, with_rows=rows is None)

    @property
    def manifest(self) -> ExportManifest:
        """Return the export's manifest: versions, tables, files, errors of the row format."""
        return self._opened.manifest

    @property
    def engine(self) -> Engine:
        """Return the engine in use, "torch" or "onnx"."""
        return self._opened.engine

    @property
    def rows(self) -> RowStore:
        """Return the row store."""
        return self._opened.rows

    @property
    def schema(self) -> Schema:
        """Return the schema: inputs, targets and lookups."""
        return self.manifest.schema

    def predict(self, inputs: Any) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Return the target for a batch, or a dict of targets by name if there are several.

        inputs: a dict keyed by name, a positional tuple, or the only input itself: NumPy arrays or
            tensors with the dtypes and shapes of the schema; a ragged input is a pair (values,
            offsets). A mismatch raises FeedError, which says what was found and what was expected.
        """
        found = self.predict_all(inputs)
        return next(iter(found.values())) if len(found) == 1 else found

    def predict_all(self, inputs: Any) -> dict[str, NDArray[Any]]:
        """Return the same targets as `predict`, but always as a dict."""
        return self.predict_arrays(check_feeds(self.schema, inputs))

    def predict_arrays(self, arrays: Arrays) -> Arrays:
        """Return the same as `predict_all` for arrays from `serving.export.feeds.check_feeds`."""
        return self.predict_with(arrays, self.tables_for(arrays))

    def tables_for(self, arrays: Arrays) -> Tables:
        """Return a snapshot of the rows; the rows that these arrays look up are already fetched."""
        return self.rows.tables(_ids(self.schema, arrays))

    def predict_with(self, arrays: Arrays, tables: Tables) -> Arrays:
        """Return the same as `predict_arrays`, but look up rows in the given tables."""
        return self._opened.runs.predict(arrays, tables)

    @property
    def directory(self) -> Path:
        """Return the export's directory."""
        return self._opened.directory

    @property
    def golden(self) -> Golden:
        """Return the golden examples with the trained model's predictions."""
        return self._opened.golden

    def check_golden(self) -> float:
        """Predict for the golden examples; return the largest difference from the trained model.

        The difference is relative for values above 1. Raises CheckpointError if the row format
        cannot explain the difference.
        """
        golden = self._opened.golden
        found = self.predict_arrays(golden.inputs)
        difference = largest_difference(found, golden.targets)
        allowed = self.manifest.golden.largest_error + _GOLDEN_TOLERANCE
        if not difference <= allowed:
            raise CheckpointError(
                f"{self._opened.directory}: predictions for golden examples differ by "
                f"{difference:.3g} from the trained model's, more than the allowed {allowed:.3g}"
            )
        return difference

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.schema.inputs))
        targets = ", ".join(map(str, self.schema.targets))
        where = str(self._opened.directory)
        return f"Predictor({where!r}, engine={self.engine!r}: {inputs} -> {targets})"

    def _open(self, directory: Path, manifest: ExportManifest) -> _Opened:
        rows = self._given_rows or FileRows(directory, manifest=manifest)
        if rows.version != manifest.digest:
            raise CheckpointMismatchError(
                f"{directory} is the export {manifest.digest}, but the given rows belong to "
                f"{rows.version}; serve that export, or push the rows of this export"
            )
        golden = read_golden(directory / manifest.golden.file, manifest.schema)
        onnx = manifest.onnx
        if self._wanted == "onnx" and not onnx.steps:
            raise ConfigError(
                f"{directory} has no ONNX files: {onnx.missing}; use engine='torch', or export "
                "again"
            )
        runs: UpdatableEngine
        if self._wanted == "onnx" or (self._wanted == "auto" and onnx.steps and is_installed()):
            engine: Engine = "onnx"
            runs = OnnxEngine(directory, onnx.steps, manifest.schema, threads=self._threads)
        else:
            engine, runs = "torch", self._torch_engine(directory, manifest)
        following = FollowingEngine(runs)
        if isinstance(rows, UpdatedRows):
            rows.prepare_with(following.prepare)
        return _Opened(directory, manifest, golden, engine, following, rows)

    def _torch_engine(self, directory: Path, manifest: ExportManifest) -> UpdatableEngine:
        import torch

        from sparsefleet.serving.export.graph_file import read_graph
        from sparsefleet.serving.export.torch_engine import TorchEngine

        if self._threads is not None:
            torch.set_num_threads(self._threads)
        return TorchEngine(read_graph(directory / manifest.graph), manifest.schema)


def _ids(schema: Schema, arrays: Arrays) -> Arrays:
    """Return the input ids of each table as a flat array, without ids that the model computes."""
    by_table: dict[str, list[NDArray[Any]]] = {}
    for lookup in schema.lookups:
        if lookup.ids is not None:
            by_table.setdefault(lookup.table, []).append(arrays[lookup.ids].reshape(-1))
    return {
        table: parts[0] if len(parts) == 1 else np.concatenate(parts)
        for table, parts in by_table.items()
    }
