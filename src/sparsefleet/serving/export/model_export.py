"""Write a trained model as files for prediction."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import nn

from sparsefleet import __version__
from sparsefleet.errors import ConfigError, ExportError
from sparsefleet.nn.pulled_rows import Pull
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.golden import Golden, GoldenRows, largest_difference, write_golden
from sparsefleet.serving.export.graph_file import read_graph, write_graph, write_parameters
from sparsefleet.serving.export.hashing import Features, hashed_inputs, missing_inputs
from sparsefleet.serving.export.manifest import (
    ExportedTable,
    ExportManifest,
    GoldenEntry,
    InitialValues,
    Schema,
)
from sparsefleet.serving.export.onnx_conversion import require_onnx, write_onnx
from sparsefleet.serving.export.quantization import RowFormat, check_format
from sparsefleet.serving.export.recorded_graph import RecordedGraph, Varying, record, schema_of
from sparsefleet.serving.export.row_file import RowFile, open_tables, write_rows
from sparsefleet.serving.export.signature import ModelInputs, Targets, TargetsLike
from sparsefleet.serving.export.torch_engine import TorchEngine
from sparsefleet.store import Store, TableSpec

__all__ = ["save_inference_model"]

# With float32 rows, the graph computes what the model does, so a larger difference is a bug.
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
    features: Features | None = None,
) -> ExportManifest:
    """Write the files that prediction needs, pruned to the targets; return the manifest.

    example_inputs: a batch of two or more examples in the form the model takes: a tensor, a tuple
        of arguments, or a dict of named arguments. A pair (values, offsets) is a ragged input.
    feeds: names of the inputs that callers will pass; None means all. A target that needs any other
        input is an error.
    targets: names of outputs, paths of modules whose output to export, or a function of the model's
        output; None means all outputs.
    store: the store that holds the rows; None means the stores of the model's modules.
    rows: the storage format. "float16" and "int8" (with a scale per row) make files 2 and 4 times
        smaller than "float32"; the manifest records the error that they introduce.
    golden: inputs to keep with the model's predictions; None means the example inputs.
    onnx: whether to also write ONNX files; None writes them if the `onnx` extra is installed and
        the graph can be converted.
    varying: dimensions of an input that change from call to call; (0,) by default.
    features: the reader that training read from, its format, or its fields. If given, inputs
        with a `hash_seed` also take strings, which are hashed as in training.

    The directory keeps the previous export until the new one is complete. Needs memory for 16 bytes
    per row of the largest table, and for a copy of the dense parameters.

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
    frozen = copy.deepcopy(
        model
    ).eval()  # a copy, so that continued training does not affect the export
    inputs = ModelInputs(frozen, example_inputs)
    trained = _TrainedModel(
        frozen,
        Targets(frozen, targets),
        _tables_of(frozen, store),
        inputs if golden is None else _golden_inputs(frozen, golden, inputs),
    )
    trained.note_golden_keys()
    recorded = record(frozen, inputs, trained.targets, feeds=feeds, varying=varying)
    with PendingExport(Path(directory).absolute()) as pending:
        schema = schema_of(recorded)
        if features is not None:
            hashed, filled = hashed_inputs(features, schema), missing_inputs(features, schema)
            schema = replace(schema, hashed=hashed, filled=filled)
        manifest = _write(pending, trained, recorded, schema, row_format=row_format, onnx=onnx)
        pending.commit(manifest)
    return manifest


def _golden_inputs(model: nn.Module, golden: Any, example: ModelInputs) -> ModelInputs:
    """Return the golden inputs, which must have the same structure as the example."""
    inputs = ModelInputs(model, golden)
    found, wanted = (
        [f"ragged {item.name}" if item.is_ragged else item.name for item in part.items]
        for part in (inputs, example)
    )
    if found != wanted:
        raise ConfigError(
            f"golden has the inputs {', '.join(found)}, expected the same inputs as the example: "
            f"{', '.join(wanted)}"
        )
    return inputs


class _TrainedModel:
    """A frozen model with its predictions for golden examples."""

    def __init__(
        self,
        model: nn.Module,
        targets: Targets,
        tables: dict[str, _ModelTable],
        examples: ModelInputs,
    ) -> None:
        self.name = type(model).__name__
        self.targets = targets
        self.tables = tables
        self.rows = GoldenRows({name: table.store for name, table in tables.items()})
        self._model = model
        self._examples = examples

    def note_golden_keys(self) -> None:
        """Record the keys that golden examples need. Must be called before rows are read."""
        self._predict(self.rows.pull_and_note)

    def golden_inputs(self, schema: Schema) -> Arrays:
        """Return the golden inputs that the schema lists, by graph name."""
        tensors = {item.name: item.tensors for item in self._examples.items}
        return {
            name: _array(name, tensor)
            for item in schema.inputs
            for name, tensor in zip(item.arrays, tensors[item.name], strict=True)
        }

    def golden_targets(self, files: Mapping[str, RowFile]) -> Arrays:
        """Return the model's predictions for golden examples, using the exported rows."""
        return self._predict(self.rows.pull_from(files))

    def _predict(self, pull: Pull) -> Arrays:
        with torch.no_grad(), StepRows(pull, train=False):
            examples = self._examples
            found = self.targets.run(lambda: examples.call(self._model, examples.tensors))
        return {name: _array(name, tensor) for name, tensor in found.items()}


def _array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    try:
        return tensor.numpy()
    except TypeError as error:  # bfloat16 and similar dtypes
        raise ExportError(
            f"'{name}' is {tensor.dtype}, which example files do not support; convert it in the "
            "model, for example with .float()"
        ) from error


def _write(
    pending: PendingExport,
    trained: _TrainedModel,
    recorded: RecordedGraph,
    schema: Schema,
    *,
    row_format: RowFormat,
    onnx: bool | None,
) -> ExportManifest:
    """Write all files except the manifest, and return the manifest."""
    used = dict.fromkeys(lookup.table for lookup in schema.lookups)
    tables = _write_tables(
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
            f"the graph of {trained.name} does not predict the same values as the model; they "
            f"differ by {error:.2g}. Check whether the model's forward uses random numbers or "
            "changes state"
        )
    file = write_golden(pending, golden)
    return ExportManifest(
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


class _ModelTable(NamedTuple):
    """A table that a model uses for lookups."""

    spec: TableSpec
    store: Store


def _tables_of(model: nn.Module, store: Store | None) -> dict[str, _ModelTable]:
    """Return all sparse modules' tables by name, from `store` or the modules' own stores."""
    tables: dict[str, _ModelTable] = {}
    for path, module in model.named_modules():
        if not isinstance(module, SparseModule):
            continue
        if store is None:
            module.home.open(module.spec)
        own = store or module.home.store
        assert own is not None
        known = tables.setdefault(module.name, _ModelTable(module.spec(), own))
        if known.store is not own:
            raise ConfigError(
                f"module '{path}' and another module share table '{module.name}' but use different "
                "stores; bind the model to one store, or train it, before exporting it"
            )
    return tables


def _write_tables(
    pending: PendingExport,
    tables: Mapping[str, _ModelTable],
    row_format: RowFormat,
    golden: GoldenRows,
) -> tuple[ExportedTable, ...]:
    """Write all admitted rows, without optimizer state."""
    entries = []
    for index, (name, (spec, store)) in enumerate(tables.items()):
        path, num_rows, error = write_rows(
            pending,
            f"rows-{index}",
            golden.passing(name, store.rows(name)),
            table=name,
            dim=spec.dim,
            row_format=row_format,
        )
        entries.append(
            ExportedTable(
                name=name,
                dim=spec.dim,
                rows=num_rows,
                format=row_format,
                file=pending.seal(path),
                initial=_initial_values(spec),
                largest_error=error.largest,
                mean_error=error.mean,
            )
        )
    return tuple(entries)


def _initial_values(spec: TableSpec) -> InitialValues:
    fields = spec.initializer.native_fields(spec.dim)
    return InitialValues(
        kind=str(fields["kind"]),  # type: ignore[arg-type]
        a=float(fields["a"]),
        b=float(fields["b"]),
        seed=spec.seed,
        row_dtype=spec.row_dtype,
    )
