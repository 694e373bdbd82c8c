"""Writing a trained model as files that predict."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet import __version__
from sparsefleet.errors import ConfigError, ExportError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.golden import Golden, largest_difference, write_golden
from sparsefleet.export.golden_rows import GoldenRows
from sparsefleet.export.graph_file import read_graph, write_graph, write_parameters
from sparsefleet.export.manifest import GoldenEntry, Manifest
from sparsefleet.export.model_inputs import ModelInputs
from sparsefleet.export.onnx_conversion import require_onnx
from sparsefleet.export.onnx_files import write_onnx
from sparsefleet.export.pending_export import PendingExport
from sparsefleet.export.quantization import RowFormat, check_format
from sparsefleet.export.recorded_graph import RecordedGraph, Varying, record
from sparsefleet.export.row_file import RowFile, open_tables
from sparsefleet.export.schema import Schema
from sparsefleet.export.schema_of_graph import schema_of
from sparsefleet.export.table_files import ModelTable, tables_of, write_tables
from sparsefleet.export.targets import Targets, TargetsLike
from sparsefleet.export.torch_engine import TorchEngine
from sparsefleet.nn import Pull, StepRows
from sparsefleet.store import Store

__all__ = ["save_inference_model"]

# With rows in float32 the graph is the model, so that a larger difference is a defect.
_TOLERANCE = 1e-5


def save_inference_model(
    directory: str | os.PathLike[str],
    model: nn.Module,
    example_inputs: Any,
    *,
    feeds: Sequence[str] | None = None,
    targets: TargetsLike = None,
    store: Store | None = None,
    rows: RowFormat = "float32",
    golden: Any = None,
    onnx: bool | None = None,
    varying: Varying | None = None,
) -> Manifest:
    """Writes what prediction needs, pruned to what the targets need; returns the manifest.

    example_inputs: a batch of two examples or more, as the model takes it: a tensor, a tuple of
        arguments, or a dict of named ones. A pair (values, offsets) is a ragged input.
    feeds: names of the inputs there will be; None: all. A target that needs another is an error.
    targets: outputs by name, paths of modules whose output is wanted, or a function of the
        model's output; None: all outputs.
    store: where the rows are; None: where the model's modules have them.
    rows: "float16" and "int8" (with a scale for each row) make files 2 and 4 times smaller; what
        that costs is in the manifest.
    golden: inputs to keep with the model's predictions; None: the example inputs.
    onnx: also write ONNX files; None: if the extra is installed and the graph allows it.
    varying: dimensions of an input that change from call to call, (0,) unless said here.

    The directory holds the export before until the new one is complete. Memory: 16 bytes a row
    of the largest table, and a copy of the dense parameters.

    >>> import tempfile
    >>> from sparsefleet.nn import SparseEmbedding
    >>> model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = save_inference_model(folder, model, torch.tensor([3, 5]), onnx=False)
    >>> print(manifest.schema.inputs[0], "->", manifest.schema.targets[0])
    input: int64[batch] -> output: float32[batch]
    """
    row_format = check_format(rows)
    if onnx:
        require_onnx()
    frozen = copy.deepcopy(model).eval()  # training may go on, and changes nothing of this
    inputs = ModelInputs(frozen, example_inputs)
    trained = _TrainedModel(
        frozen,
        Targets(frozen, targets),
        tables_of(frozen, store),
        inputs if golden is None else _golden_inputs(frozen, golden, inputs),
    )
    trained.note_golden_keys()
    recorded = record(frozen, inputs, trained.targets, feeds=feeds, varying=varying)
    with PendingExport(Path(directory).absolute()) as pending:
        manifest = _write(pending, trained, recorded, row_format, onnx)
        pending.commit(manifest)
    return manifest


def _golden_inputs(model: nn.Module, golden: Any, example: ModelInputs) -> ModelInputs:
    """Golden inputs, which must be of the same make as the example."""
    inputs = ModelInputs(model, golden)
    found, wanted = (
        [f"ragged {item.name}" if item.is_ragged else item.name for item in part.items]
        for part in (inputs, example)
    )
    if found != wanted:
        raise ConfigError(
            f"golden has the inputs {', '.join(found)}, wanted those of the example: "
            f"{', '.join(wanted)}"
        )
    return inputs


class _TrainedModel:
    """A model at one moment, and what it says of golden examples."""

    def __init__(
        self,
        model: nn.Module,
        targets: Targets,
        tables: dict[str, ModelTable],
        examples: ModelInputs,
    ) -> None:
        self.name = type(model).__name__
        self.targets = targets
        self.tables = tables
        self.rows = GoldenRows({name: table.store for name, table in tables.items()})
        self._model = model
        self._examples = examples

    def note_golden_keys(self) -> None:
        """Before rows are read: which of them golden examples need."""
        self._predict(self.rows.pull_and_note)

    def golden_inputs(self, schema: Schema) -> Arrays:
        """Those that the schema has, by their names in the graph."""
        tensors = {item.name: item.tensors for item in self._examples.items}
        return {
            name: _array(name, tensor)
            for item in schema.inputs
            for name, tensor in zip(item.arrays, tensors[item.name], strict=True)
        }

    def golden_targets(self, files: Mapping[str, RowFile]) -> Arrays:
        """What the model says of golden examples, with the rows that went into the files."""
        return self._predict(self.rows.pull_from(files))

    def _predict(self, pull: Pull) -> Arrays:
        with torch.no_grad(), StepRows(pull, train=False):
            examples = self._examples
            found = self.targets.run(lambda: examples.call(self._model, examples.tensors))
        return {name: _array(name, tensor) for name, tensor in found.items()}


def _array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    try:
        return tensor.numpy()
    except TypeError as error:  # bfloat16 and the like
        raise ExportError(
            f"'{name}' is {tensor.dtype}, which files of examples cannot hold: convert it in the "
            "model, as with .float()"
        ) from error


def _write(
    pending: PendingExport,
    trained: _TrainedModel,
    recorded: RecordedGraph,
    row_format: RowFormat,
    onnx: bool | None,
) -> Manifest:
    """Writes all files but the manifest, which it returns."""
    schema = schema_of(recorded)
    used = dict.fromkeys(lookup.table for lookup in schema.lookups)
    tables = write_tables(
        pending, {name: trained.tables[name] for name in used}, row_format, trained.rows
    )
    rows = open_tables(pending.directory, tables)
    golden = Golden(trained.golden_inputs(schema), trained.golden_targets(rows))
    graph = write_graph(pending, recorded.program)
    engine = TorchEngine(read_graph(pending.directory / graph), schema)
    found = engine.predict(golden.inputs, rows)
    error = largest_difference(found, golden.targets)
    if row_format == "float32" and not error <= _TOLERANCE:
        raise ExportError(
            f"the graph of {trained.name} does not predict what the model does: they differ by "
            f"{error:.2g}. Is there chance in its forward, or state that it changes?"
        )
    file = write_golden(pending, golden)
    return Manifest(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        made_by={"sparsefleet": __version__, "torch": torch.__version__},
        schema=schema,
        tables=tables,
        graph=graph,
        parameters=write_parameters(pending, recorded.program),
        golden=GoldenEntry(file=file, examples=golden.examples, largest_error=error),
        onnx=write_onnx(pending, recorded, schema, rows, Golden(golden.inputs, found), onnx),
        files=pending.files,
    )
