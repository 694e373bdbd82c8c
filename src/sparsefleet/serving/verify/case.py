"""The inputs to a verification: settings, the export under test with its updates, and the examples.

In shapes, B is the number of examples, U the number of distinct keys, N the number of rows, D the
row width.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import fx

from sparsefleet.errors import ConfigError, CorruptFileError, StoreUnavailableError
from sparsefleet.serving.example_files import read_inputs, read_table
from sparsefleet.serving.export.export_directory import read_manifest
from sparsefleet.serving.export.feeds import Arrays, check_feeds
from sparsefleet.serving.export.golden import Golden, read_golden
from sparsefleet.serving.export.graph_file import read_graph
from sparsefleet.serving.export.keyed_rows import KeyedRows, Tables, dense_tensors
from sparsefleet.serving.export.manifest import ExportManifest, InputSchema, Schema
from sparsefleet.serving.export.recorded_graph import LOOK_UP
from sparsefleet.serving.export.row_file import RowFile, open_tables
from sparsefleet.serving.export.torch_engine import TorchEngine, trace_layers
from sparsefleet.serving.updates import ModelSnapshot, UpdateReader, open_log
from sparsefleet.serving.updates.update import TableOverlay
from sparsefleet.serving.verify.report import CheckResult
from sparsefleet.serving.verify.side import Side, Trace
from sparsefleet.store.arrays import Floats, Keys

__all__ = [
    "Case",
    "Check",
    "Examples",
    "LookupLayer",
    "ModelTable",
    "OfflineModel",
    "UpdatedTable",
    "VerifyConfig",
    "dense_of",
    "joined",
    "snapshot_of",
    "with_updates",
]


class Examples:
    """B examples as arrays, with labels if known."""

    def __init__(
        self, schema: Schema, arrays: Arrays, labels: NDArray[np.float32] | None, source: str
    ) -> None:
        self.schema = schema
        self.arrays = arrays
        """Arrays by graph name."""
        self.labels = labels
        """float32[B], or None if unknown"""
        self.source = source
        self.count = _count(schema, arrays)

    @classmethod
    def of_golden(cls, schema: Schema, golden: Golden) -> Examples:
        """Return the golden examples of the export."""
        return cls(schema, golden.inputs, None, "golden examples of the export")

    @classmethod
    def of_file(
        cls, path: Path, schema: Schema, *, label: str | None = None, limit: int | None = None
    ) -> Examples:
        """Read a file with one column per input; `label` names the column of labels."""
        table = read_table(path, schema)
        table = table if limit is None else table.slice(0, limit)
        arrays = check_feeds(schema, read_inputs(path, table, schema))
        labels = None
        if label is not None:
            if label not in table.column_names:
                columns = ", ".join(table.column_names)
                raise ConfigError(
                    f"{path} has no label column '{label}'; its columns are {columns}"
                )
            labels = table.column(label).to_numpy().astype(np.float32)
        return cls(schema, arrays, labels, str(path))

    def part(self, begin: int, end: int) -> Arrays:
        """Return the arrays of examples [begin, end)."""
        found: Arrays = {}
        for item in self.schema.inputs:
            found |= _part(item, self.arrays, begin, end)
        return found

    def batches(self, size: int) -> Iterator[Arrays]:
        """Yield all examples, up to `size` at a time."""
        for begin in range(0, max(self.count, 1), size):
            yield self.part(begin, min(begin + size, self.count))

    def row(self, index: int) -> dict[str, Any]:
        """Return one example in the form used in JSON: numbers and lists of numbers."""
        return rows_of(self.schema, self.part(index, index + 1))[0]


def rows_of(schema: Schema, arrays: Arrays) -> list[dict[str, Any]]:
    """Return one dict per example with its inputs by name, as numbers and lists of numbers."""
    columns = {item.name: _column(item, arrays) for item in schema.inputs}
    lengths = [len(column) for column in columns.values()]
    return [
        {name: column[index] for name, column in columns.items()}
        for index in range(min(lengths, default=0))
    ]


def _column(item: InputSchema, arrays: Arrays) -> list[Any]:
    if not item.is_ragged:
        return list(arrays[item.name].tolist())
    values, offsets = (arrays[name] for name in item.arrays)
    ends = offsets[1:] if item.is_closed else [*offsets[1:], len(values)]
    begins = offsets[:-1] if item.is_closed else offsets
    return [values[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]


def _count(schema: Schema, arrays: Arrays) -> int:
    for item in schema.inputs:
        if item.is_ragged:
            return len(arrays[item.arrays[1]]) - int(item.is_closed)
        if item.shape[:1] == ("batch",):
            return len(arrays[item.name])
    return 1


def _part(item: InputSchema, arrays: Arrays, begin: int, end: int) -> Arrays:
    if not item.is_ragged:
        whole = arrays[item.name]
        return {item.name: whole[begin:end] if item.shape[:1] == ("batch",) else whole}
    (values, numbers), (offsets, places) = ((name, arrays[name]) for name in item.arrays)
    first = int(places[begin]) if begin < len(places) else len(numbers)
    last = int(places[end]) if end < len(places) else len(numbers)
    cut = places[begin : end + 1] if item.is_closed else places[begin:end]
    return {values: numbers[first:last], offsets: cut - first}


class UpdatedTable(KeyedRows):
    """An export's rows with updates applied."""

    def __init__(self, file: RowFile, overlay: TableOverlay) -> None:
        super().__init__(file.entry, file.initial)
        self._file = file
        self._overlay = overlay
        changes = overlay.changes()
        stay = file.keys[~np.isin(file.keys, changes.removed)]
        self.keys: Keys = np.union1d(stay, changes.keys)
        """All keys in ascending order: uint64[N]."""

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Implement `KeyedRows.find`: look in the updated rows first, then in the file."""
        rows, known = self._file.find(keys)
        self._overlay.find(keys, rows, known)
        return rows, known


ModelTable = RowFile | UpdatedTable


def snapshot_of(updates: str | os.PathLike[str], manifest: ExportManifest) -> ModelSnapshot | None:
    """Return the newest snapshot that results from an export's updates, or None if there are none.

    Raises StoreUnavailableError if an update is missing, damaged or cannot be read.
    """
    log = open_log(updates, manifest.digest)
    try:
        reader = UpdateReader(log, manifest.digest, manifest.tables)
        reader.catch_up()
        if reader.problem is not None:
            raise StoreUnavailableError(f"updates from {os.fspath(updates)}: {reader.problem}")
        return reader.snapshot
    finally:
        log.close()


def with_updates(
    tables: Mapping[str, RowFile], snapshot: ModelSnapshot | None
) -> dict[str, ModelTable]:
    """Return the tables of an export with the changes in a snapshot."""
    found: dict[str, ModelTable] = {}
    for name, file in tables.items():
        overlay = TableOverlay() if snapshot is None else snapshot.rows.table(name)
        found[name] = UpdatedTable(file, overlay) if len(overlay) else file
    return found


_BATCH = 1024


class LookupLayer(NamedTuple):
    """A lookup as a layer of the graph; `dim` is the row width."""

    name: str
    what: str
    dim: int


class OfflineModel:
    """An export whose files are read on first use, so that some checks can run even if a file is
    damaged.

    updates: where a trainer publishes updates, which are applied to rows and dense parameters.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, updates: str | os.PathLike[str] | None = None
    ) -> None:
        self.directory = Path(directory)
        self.manifest = read_manifest(directory)
        self.schema = self.manifest.schema
        self._updates = updates

    @property
    def name(self) -> str:
        return str(self.directory)

    @cached_property
    def snapshot(self) -> ModelSnapshot | None:
        """The newest snapshot, or None if there are no updates."""
        return None if self._updates is None else snapshot_of(self._updates, self.manifest)

    def catch_up(self) -> None:
        """Apply updates published since the last call."""
        for name in ("snapshot", "tables", "graph"):
            self.__dict__.pop(name, None)

    @cached_property
    def files(self) -> dict[str, RowFile]:
        """The rows as exported, without updates."""
        return open_tables(self.directory, self.manifest.tables)

    @cached_property
    def tables(self) -> dict[str, ModelTable]:
        """The rows with updates applied."""
        return with_updates(self.files, self.snapshot)

    @cached_property
    def exported_graph(self) -> fx.GraphModule:
        """The graph as exported, without updates."""
        graph = read_graph(self.directory / self.manifest.graph)
        assert isinstance(graph, fx.GraphModule)
        return graph

    @cached_property
    def graph(self) -> fx.GraphModule:
        """The graph with updated dense parameters."""
        if self.snapshot is None:
            return self.exported_graph
        return self._graph_with(self.exported_graph, self.snapshot.dense.arrays)

    @cached_property
    def golden(self) -> Golden:
        return read_golden(self.directory / self.manifest.golden.file, self.schema)

    @cached_property
    def parameters(self) -> Arrays:
        """Dense parameters and buffers by name, from the safetensors file."""
        path = self.directory / self.manifest.parameters
        try:
            return dict(load_file(path))
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"{path} is not a parameter file: {error}") from error

    @property
    def dense(self) -> Arrays:
        """Return dense parameters and buffers by name, from the graph."""
        return dense_of(self.graph)

    @property
    def lookup_layers(self) -> list[LookupLayer]:
        """Return the lookups of the graph in order."""
        nodes = [node for node in self.graph.graph.nodes if node.target is LOOK_UP]
        return [LookupLayer(n.name, f"look_up(table '{n.args[1]}')", int(n.args[2])) for n in nodes]

    def predict(self, examples: Examples, tables: Tables | None = None) -> Arrays:
        """Return the targets of all examples, computed by torch; `tables` replaces the rows."""
        self._require_feeds()
        engine = TorchEngine(self.graph, self.schema)
        rows = self.tables if tables is None else tables
        return joined([engine.predict(part, rows) for part in examples.batches(_BATCH)])

    def trace(self, arrays: Arrays, tables: Tables | None = None) -> Trace:
        """Return the intermediate values of a prediction."""
        self._require_feeds()
        rows = self.tables if tables is None else tables
        return Trace(arrays, trace_layers(self.graph, self.schema, arrays, rows))

    def with_dense(self, dense: Arrays) -> OfflineModel:
        """Return a copy of the model with these dense parameters.

        Parameters whose name or shape does not match are ignored.
        """
        other = copy.copy(self)
        other.__dict__["graph"] = self._graph_with(self.graph, dense)
        return other

    def _graph_with(
        self, graph: fx.GraphModule, dense: Mapping[str, NDArray[Any]]
    ) -> fx.GraphModule:
        arrays = dense_of(graph)
        arrays |= {n: x for n, x in dense.items() if n in arrays and x.shape == arrays[n].shape}
        found = TorchEngine(graph, self.schema).with_dense(arrays).graph
        assert isinstance(found, fx.GraphModule)
        return found

    def as_exported(self) -> OfflineModel:
        """Return the model without updates."""
        return self if self.snapshot is None else OfflineModel(self.directory)

    def _require_feeds(self) -> None:
        """Raise a clearer error than torch would if the graph and the manifest disagree."""
        takes = sum(node.op == "placeholder" for node in self.graph.graph.nodes)
        declared = sum(len(item.arrays) for item in self.schema.inputs)
        if takes != declared:
            raise CorruptFileError(
                f"{self.directory}: the graph takes {takes} arrays, but the manifest declares "
                f"{declared}"
            )


def dense_of(graph: fx.GraphModule) -> Arrays:
    """Return a graph's dense parameters and persistent buffers by their model names."""
    return {name: tensor.numpy() for name, tensor in dense_tensors(graph.state_dict()).items()}


def joined(parts: list[Arrays]) -> Arrays:
    """Concatenate the targets of several batches."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig:
    """The settings of a verification, such as the examples to compare and the tolerance.

    >>> VerifyConfig(tolerance=-1)
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: VerifyConfig.tolerance must be >= 0, got -1
    """

    examples: str | os.PathLike[str] | None = None
    """A file with one column per input; None means the export's golden examples."""

    online_examples: str | os.PathLike[str] | None = None
    """The examples as the online side prepared them, for example its feature log, in the same
    order. If None, only the inputs that a service reports are compared.
"""

    label: str | None = None
    """The column of `examples` with labels 0 or 1. If given, both sides' AUC is reported."""

    max_examples: int = 10_000
    """The maximum number of examples to read from the file."""

    tolerance: float = 1e-5
    """The largest allowed difference between scores, relative for scores above 1. Rows and dense
    parameters must always be equal bit for bit.
"""

    sample: int | None = None
    """The number of rows per table to compare with an online store; None means all."""

    seed: int = 0
    """Seed for sampling rows."""

    previous: str | os.PathLike[str] | None = None
    """The export that was online before. If given, stale rows are reported as such."""

    updates: str | os.PathLike[str] | None = None
    """The directory or Redis where a trainer publishes updates to the export. The updates are
    applied before anything is compared, and the online side must have applied the same updates.
"""

    pruned: tuple[str, ...] = ()
    """Patterns of trained parameters and tables that the export omits on purpose."""

    expect: Mapping[str, str] = field(default_factory=dict)
    """Required settings, such as `{"engine": "onnx", "rows": "float32"}`."""

    token: str | None = None
    """The bearer token of the service."""

    timeout_s: float = 90.0
    """Timeout for one request to an online side. A service's first trace may take a minute."""

    def __post_init__(self) -> None:
        for name, least in (("max_examples", 1), ("sample", 1), ("tolerance", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"VerifyConfig.{name} must be >= {least}, got {value}")
        if not self.timeout_s > 0:
            raise ConfigError(f"VerifyConfig.timeout_s must be > 0, got {self.timeout_s}")


class Case:
    """The export under test, its examples and the settings of the verification."""

    def __init__(self, model: OfflineModel, config: VerifyConfig) -> None:
        self.model = model
        self.config = config

    @cached_property
    def previous(self) -> OfflineModel | None:
        where = self.config.previous
        return None if where is None else OfflineModel(where)

    @cached_property
    def examples(self) -> Examples:
        config, schema = self.config, self.model.schema
        if config.examples is None:
            return Examples.of_golden(schema, self.model.golden)
        path = Path(config.examples)
        return Examples.of_file(path, schema, label=config.label, limit=config.max_examples)

    def read_examples(self) -> None:
        """Read the examples now, so that a bad file is reported before any check runs."""
        _ = self.examples

    @cached_property
    def scores(self) -> Arrays:
        """The export's predictions for the examples."""
        return self.model.predict(self.examples)

    def catch_up(self) -> None:
        """Apply to the export all updates published since the last call."""
        self.model.catch_up()
        self.__dict__.pop("scores", None)


class Check(Protocol):
    """One of the five checks. Model defects become findings; other problems are raised."""

    def of_export(self, case: Case) -> CheckResult | None:
        """Check the export alone; return None if the check does not apply."""

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        """Compare the export with another copy of the model; return None if not applicable."""
