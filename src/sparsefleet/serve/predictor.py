"""Predictions from the files of an export, without servers and without training code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointError, CheckpointMismatchError, ConfigError
from sparsefleet.export.feeds import Arrays, check_feeds
from sparsefleet.export.golden import Golden, largest_difference, read_golden
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.onnx_engine import OnnxEngine, is_installed
from sparsefleet.export.opened_export import Verify, open_export
from sparsefleet.export.row_source import Tables
from sparsefleet.export.schema import Schema
from sparsefleet.serve.following_engine import FollowingEngine, UpdatableEngine
from sparsefleet.serve.row_store import FileRows, RowStore
from sparsefleet.serve.row_stores.updated_rows import UpdatedRows

__all__ = ["Engine", "Predictor"]

Engine = Literal["torch", "onnx", "auto"]

# Beyond what the format of the rows costs: other processors and versions add up in other orders.
_GOLDEN_TOLERANCE = 1e-5


class _Opened(NamedTuple):
    """All of an export, read or mapped: its files may go now."""

    directory: Path
    manifest: Manifest
    golden: Golden
    engine: Engine
    runs: FollowingEngine
    rows: RowStore


class Predictor:
    """Predicts with an exported model.

    engine: "torch" runs the graph that was recorded. "onnx" runs ONNX Runtime and needs no torch.
        "auto" is ONNX where the export and this process have it, else torch.
    rows: where the rows are; None: in the files of the export, mapped into memory. A store of
        another export is refused with CheckpointMismatchError. Who made the store closes it.
    verify: True: all files are there and whole, but rows are only checked for their size, so
        that loading does not depend on the size of tables. "deep": the rows too. False: nothing.
    threads: of one prediction; None is the engine's own choice. For torch it is a setting of the
        process.

    Thread-safe.

    >>> import tempfile
    >>> import numpy as np, torch
    >>> from sparsefleet.export import save_inference_model
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
    def manifest(self) -> Manifest:
        """Of the export: versions, tables, files, errors of the format."""
        return self._opened.manifest

    @property
    def engine(self) -> Engine:
        """The one in use, "torch" or "onnx"."""
        return self._opened.engine

    @property
    def rows(self) -> RowStore:
        """Where the rows are."""
        return self._opened.rows

    @property
    def schema(self) -> Schema:
        """Inputs, targets and lookups."""
        return self.manifest.schema

    def predict(self, inputs: Any) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """The target of a batch; a dict by name where there are several.

        inputs: a dict by name, a tuple by place, or the one input itself: NumPy arrays or tensors
            of the dtypes and shapes of the schema; a ragged input is a pair (values, offsets).
            What does not fit raises FeedError with what was given and what is wanted.
        """
        found = self.predict_all(inputs)
        return next(iter(found.values())) if len(found) == 1 else found

    def predict_all(self, inputs: Any) -> dict[str, NDArray[Any]]:
        """As `predict`, always a dict: all targets by name."""
        return self.predict_arrays(check_feeds(self.schema, inputs))

    def predict_arrays(self, arrays: Arrays) -> Arrays:
        """As `predict_all`, of arrays as `sparsefleet.export.feeds.check_feeds` gives them."""
        return self.predict_with(arrays, self.tables_for(arrays))

    def tables_for(self, arrays: Arrays) -> Tables:
        """The rows of this moment, with those that these arrays look up at hand."""
        return self.rows.tables(_ids(self.schema, arrays))

    def predict_with(self, arrays: Arrays, tables: Tables) -> Arrays:
        """As `predict_arrays`, looking up in these tables."""
        return self._opened.runs.predict(arrays, tables)

    @property
    def directory(self) -> Path:
        """Of the export."""
        return self._opened.directory

    @property
    def golden(self) -> Golden:
        """Examples with what the trained model said of them."""
        return self._opened.golden

    def check_golden(self) -> float:
        """Predicts the golden examples; the largest difference to the trained model.

        Relative for numbers above 1. Raises CheckpointError if it is larger than the format of
        the rows explains.
        """
        golden = self._opened.golden
        found = self.predict_arrays(golden.inputs)
        difference = largest_difference(found, golden.targets)
        allowed = self.manifest.golden.largest_error + _GOLDEN_TOLERANCE
        if not difference <= allowed:
            raise CheckpointError(
                f"{self._opened.directory}: predictions of golden examples differ by "
                f"{difference:.3g} from those of the trained model, allowed is {allowed:.3g}"
            )
        return difference

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.schema.inputs))
        targets = ", ".join(map(str, self.schema.targets))
        where = str(self._opened.directory)
        return f"Predictor({where!r}, engine={self.engine!r}: {inputs} -> {targets})"

    def _open(self, directory: Path, manifest: Manifest) -> _Opened:
        rows = self._given_rows or FileRows(directory, manifest=manifest)
        if rows.version != manifest.digest:
            raise CheckpointMismatchError(
                f"{directory} is the export {manifest.digest}, but the rows given are those of "
                f"{rows.version}: serve the export they belong to, or push its own rows"
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

    def _torch_engine(self, directory: Path, manifest: Manifest) -> UpdatableEngine:
        import torch

        from sparsefleet.export.graph_file import read_graph
        from sparsefleet.export.torch_engine import TorchEngine

        if self._threads is not None:
            torch.set_num_threads(self._threads)
        return TorchEngine(read_graph(directory / manifest.graph), manifest.schema)


def _ids(schema: Schema, arrays: Arrays) -> Arrays:
    """By table, the ids that are inputs: int64[n]. Those that the model computes are not known."""
    by_table: dict[str, list[NDArray[Any]]] = {}
    for lookup in schema.lookups:
        if lookup.ids is not None:
            by_table.setdefault(lookup.table, []).append(arrays[lookup.ids].reshape(-1))
    return {
        table: parts[0] if len(parts) == 1 else np.concatenate(parts)
        for table, parts in by_table.items()
    }
