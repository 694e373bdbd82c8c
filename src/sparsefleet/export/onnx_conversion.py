"""A recorded graph in ONNX, cut at its lookups.

ONNX has no operator for rows that live elsewhere. So the graph is translated with lookups as
operators of our own, and then cut there: ids are outputs of the part before a lookup, rows are
inputs of the part after it. Ids that are inputs of the model need no part.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from sparsefleet.errors import ConfigError, ExportError
from sparsefleet.export.onnx_cut import OnnxCut
from sparsefleet.export.onnx_engine import TARGET_PREFIX
from sparsefleet.export.recorded_graph import LOOK_UP, RecordedGraph
from sparsefleet.export.schema import Schema

if TYPE_CHECKING:
    import onnx

__all__ = ["convert_to_onnx", "require_onnx"]

_DOMAIN = "sparsefleet"
_OPERATOR = "LookUp"
_NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def require_onnx() -> None:
    """Raises ConfigError, naming the extra, unless all that conversion needs is installed."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise ConfigError(
            f"ONNX is not installed ({error}): pip install sparsefleet[onnx]"
        ) from error
    del onnx, onnxruntime, onnxscript


def convert_to_onnx(recorded: RecordedGraph, schema: Schema) -> OnnxCut:
    """The graph in parts; raises ExportError for operators that ONNX has no counterpart of."""
    from onnx.checker import ValidationError

    inputs = [name for item in schema.inputs for name in item.arrays]
    targets = [f"{TARGET_PREFIX}{target.name}" for target in schema.targets]
    with _quietly():
        try:
            program = torch.onnx.export(
                recorded.program,
                (),
                dynamo=True,
                verbose=False,
                input_names=inputs,
                output_names=targets,
                custom_translation_table={LOOK_UP: _translation()},
            )
            assert program is not None
            model = program.model_proto
            _forget_sources(model)
            return OnnxCut(model, _DOMAIN)
        except (RuntimeError, ValueError, TypeError, AssertionError, ValidationError) as error:
            cause = _first_cause(error)
            raise ExportError(f"the graph cannot be translated to ONNX: {cause}") from error


def _translation() -> Any:
    """How a lookup is written down: an operator of our own domain."""
    import onnxscript
    from onnx.defs import OpSchema

    attribute, kinds = OpSchema.Attribute, OpSchema.AttrType
    schema = OpSchema(
        _OPERATOR,
        _DOMAIN,
        1,
        inputs=[OpSchema.FormalParameter("ids", "tensor(int64)")],
        outputs=[OpSchema.FormalParameter("rows", "tensor(float)")],
        attributes=[
            attribute("table", kinds.STRING, required=True),
            attribute("padding_id", kinds.INT, required=False),
            attribute("unknown", kinds.STRING, required=True),
        ],
    )
    operator = onnxscript.values.Op(onnxscript.values.Opset(_DOMAIN, 1), _OPERATOR, schema)

    def look_up(ids: Any, table: str, dim: int, padding_id: int | None, unknown: str) -> Any:
        del dim
        padding = {} if padding_id is None else {"padding_id": padding_id}
        return operator(ids, table=table, unknown=unknown, **padding)

    return look_up


def _forget_sources(model: onnx.ModelProto) -> None:
    """Removes notes on where the model's source lies."""
    for part in [model, model.graph, *model.graph.node, *model.graph.value_info]:
        del part.metadata_props[:]


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return re.sub(r"\s+", " ", str(error))[:500]


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells people of torchvision, and of its own deprecations."""
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
