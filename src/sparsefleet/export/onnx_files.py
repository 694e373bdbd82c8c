"""The ONNX files of an export."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sparsefleet.errors import ConfigError, CorruptFileError, ExportError, FeedError
from sparsefleet.export.golden import Golden, largest_difference
from sparsefleet.export.manifest import OnnxEntry, OnnxStep
from sparsefleet.export.onnx_conversion import convert_to_onnx, require_onnx
from sparsefleet.export.onnx_cut import OnnxCut, OnnxLookup, OnnxPart
from sparsefleet.export.onnx_engine import OnnxEngine
from sparsefleet.export.pending_export import PendingExport
from sparsefleet.export.recorded_graph import RecordedGraph
from sparsefleet.export.row_file import RowFile
from sparsefleet.export.schema import Schema

__all__ = ["write_onnx"]

_log = logging.getLogger("sparsefleet.export")

# Engines add up in different orders.
_TOLERANCE = 1e-5


def write_onnx(
    pending: PendingExport,
    recorded: RecordedGraph,
    schema: Schema,
    rows: Mapping[str, RowFile],
    golden: Golden,
    wanted: bool | None,
) -> OnnxEntry:
    """Writes the graph as ONNX parts, and runs them on golden inputs.

    golden: its targets are what the graph of torch says with the same rows.
    wanted: True: what goes wrong is raised. None: it is told in the entry. False: no files.
    """
    if wanted is False:
        return OnnxEntry(steps=(), missing="it was exported with onnx=False")
    try:
        require_onnx()
        steps = _write_steps(pending, convert_to_onnx(recorded, schema))
        engine = OnnxEngine(pending.directory, steps, schema, threads=1)
        error = largest_difference(engine.predict(golden.inputs, rows), golden.targets)
        if not error <= _TOLERANCE:
            raise ExportError(f"ONNX predicts something else: it differs by {error:.2g}")
    except (ConfigError, ExportError, CorruptFileError, FeedError) as error:
        if wanted:
            raise
        pending.discard("onnx")
        _log.warning("the export to %s has no ONNX files: %s", pending.directory, error)
        return OnnxEntry(steps=(), missing=str(error))
    return OnnxEntry(steps=steps)


def _write_steps(pending: PendingExport, cut: OnnxCut) -> tuple[OnnxStep, ...]:
    steps = []
    for index, step in enumerate(cut.steps):
        if isinstance(step, OnnxPart):
            is_last = index == len(cut.steps) - 1
            path = pending.path("dense" if is_last else f"ids-{index}", "onnx")
            path.write_bytes(step.model.SerializeToString())
            steps.append(
                OnnxStep(inputs=step.inputs, outputs=step.outputs, file=pending.seal(path))
            )
        else:
            steps.append(_lookup_step(step))
    return tuple(steps)


def _lookup_step(lookup: OnnxLookup) -> OnnxStep:
    return OnnxStep(
        inputs=(lookup.ids,),
        outputs=(lookup.rows,),
        table=lookup.table,
        padding_id=lookup.padding_id,
        unknown=lookup.unknown,
    )
