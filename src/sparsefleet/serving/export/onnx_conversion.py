"""Convert a recorded graph to ONNX, split at its lookups.

ONNX has no operator for rows stored elsewhere. The graph is therefore translated with lookups as
custom operators and then split at them: ids are outputs of the part before a lookup, and rows are
inputs of the part after it. If the ids are model inputs, no part before the lookup is needed.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from sparsefleet.errors import ConfigError, CorruptFileError, ExportError, FeedError
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.golden import Golden, largest_difference
from sparsefleet.serving.export.manifest import OnnxEntry, OnnxStep, Schema
from sparsefleet.serving.export.onnx_engine import TARGET_PREFIX, OnnxEngine
from sparsefleet.serving.export.recorded_graph import LOOK_UP, RecordedGraph
from sparsefleet.serving.export.row_file import RowFile

if TYPE_CHECKING:
    import onnx

__all__ = ["require_onnx", "write_onnx"]

_DOMAIN = "sparsefleet"
_OPERATOR = "LookUp"
_NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def require_onnx() -> None:
    """Raise a ConfigError that names the extra to install, unless conversion is possible."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise ConfigError(
            f"ONNX is not installed ({error}); run `pip install sparsefleet[onnx]`"
        ) from error
    del onnx, onnxruntime, onnxscript


def _convert_to_onnx(recorded: RecordedGraph, schema: Schema) -> _OnnxCut:
    """Convert the graph to ONNX parts. Raises ExportError for operators that ONNX lacks."""
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
            return _OnnxCut(model, _DOMAIN)
        except (RuntimeError, ValueError, TypeError, AssertionError, ValidationError) as error:
            cause = _first_cause(error)
            raise ExportError(f"the graph cannot be translated to ONNX: {cause}") from error


def _translation() -> Any:
    """Return a function that translates a lookup into an operator of our own ONNX domain."""
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
    """Remove metadata that says where the model's source code is."""
    for part in [model, model.graph, *model.graph.node, *model.graph.value_info]:
        del part.metadata_props[:]


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return re.sub(r"\s+", " ", str(error))[:500]


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's messages about torchvision and about its own deprecations."""
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


class _OnnxPart(NamedTuple):
    """A separate graph that maps named arrays to other named arrays."""

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class _OnnxLookup(NamedTuple):
    """A lookup that turns the array `ids` into the array `rows`."""

    table: str
    ids: str
    rows: str
    padding_id: int | None
    unknown: Literal["zeros", "initial"]


class _OnnxCut:
    """The steps of a prediction: parts and lookups, each after the steps it depends on.

    A lookup runs as soon as its ids are available. The last step is the part that computes the
    outputs of the model.
    """

    def __init__(self, model: onnx.ModelProto, domain: str) -> None:
        self._model = model
        self._domain = domain
        graph = model.graph
        self._nodes = list(graph.node)
        self._producer = {name: at for at, node in enumerate(self._nodes) for name in node.output}
        self._lookups = {n.output[0]: _lookup(n) for n in self._nodes if n.domain == domain}
        self._given = {value.name for value in graph.input}
        self.steps: list[_OnnxPart | _OnnxLookup] = []
        left = list(self._lookups.values())
        while left:
            ready = [item for item in left if self._rows_before(item.ids) <= self._given]
            ids = dict.fromkeys(item.ids for item in ready if item.ids not in self._given)
            if ids:
                self.steps.append(self._part(ids))
            self.steps += ready
            self._given.update(item.rows for item in ready)
            left = [item for item in left if item not in ready]
        outputs = [value.name for value in graph.output if value.name not in self._given]
        if outputs:
            self.steps.append(self._part(outputs))

    def _needed(self, names: Iterable[str]) -> tuple[set[int], set[str]]:
        """Return the indices of the nodes that compute these arrays, and the arrays that the nodes
        need from elsewhere.
        """
        waiting, nodes, sources = list(names), set[int](), set[str]()
        while waiting:
            name = waiting.pop()
            at = self._producer.get(name)
            if name in self._given or at is None:
                sources.add(name)
            elif at not in nodes:
                nodes.add(at)
                waiting += [source for source in self._nodes[at].input if source]
        return nodes, sources

    def _rows_before(self, name: str) -> set[str]:
        """Return the lookup results that an array depends on."""
        nodes, sources = self._needed([name])
        within = {output for at in nodes for output in self._nodes[at].output}
        return (sources | within) & self._lookups.keys()

    def _part(self, names: Iterable[str]) -> _OnnxPart:
        import onnx
        from onnx import helper

        graph = self._model.graph
        outputs = tuple(names)
        nodes, sources = self._needed(outputs)
        described = {v.name: v for v in [*graph.input, *graph.output, *graph.value_info]}
        initializers = [item for item in graph.initializer if item.name in sources]
        held = {item.name for item in initializers}
        inputs = tuple(name for name in described if name in sources - held)
        made = helper.make_graph(
            [node for at, node in enumerate(self._nodes) if at in nodes],
            "part",
            [described[name] for name in inputs],
            [described[name] for name in outputs],
            initializers,
        )
        model = helper.make_model(
            made,
            ir_version=self._model.ir_version,
            opset_imports=[i for i in self._model.opset_import if i.domain != self._domain],
            functions=self._model.functions,
            producer_name="sparsefleet",
        )
        onnx.checker.check_model(model)
        return _OnnxPart(model, inputs, outputs)


def _lookup(node: onnx.NodeProto) -> _OnnxLookup:
    settings = {item.name: item for item in node.attribute}
    padding = settings.get("padding_id")
    return _OnnxLookup(
        table=settings["table"].s.decode("utf-8"),
        ids=node.input[0],
        rows=node.output[0],
        padding_id=None if padding is None else padding.i,
        unknown="initial" if settings["unknown"].s == b"initial" else "zeros",
    )


_log = logging.getLogger("sparsefleet.serving.export")

# Engines add numbers in different orders.
_TOLERANCE = 1e-5


def write_onnx(
    pending: PendingExport,
    recorded: RecordedGraph,
    schema: Schema,
    rows: Mapping[str, RowFile],
    golden: Golden,
    wanted: bool | None,
) -> OnnxEntry:
    """Write the graph as ONNX parts and run them on golden inputs.

    golden: examples whose targets are the torch graph's predictions with the same rows.
    wanted: if True, failures are raised; if None, they are recorded in the entry; if False, no
        files are written.
    """
    if wanted is False:
        return OnnxEntry(steps=(), missing="the model was exported with onnx=False")
    try:
        require_onnx()
        steps = _write_steps(pending, _convert_to_onnx(recorded, schema))
        engine = OnnxEngine(pending.directory, steps, schema, threads=1)
        error = largest_difference(engine.predict(golden.inputs, rows), golden.targets)
        if not error <= _TOLERANCE:
            raise ExportError(f"the predictions of the ONNX model differ by {error:.2g}")
    except (ConfigError, ExportError, CorruptFileError, FeedError) as error:
        if wanted:
            raise
        pending.discard("onnx")
        _log.warning("the export to %s has no ONNX files: %s", pending.directory, error)
        return OnnxEntry(steps=(), missing=str(error))
    return OnnxEntry(steps=steps)


def _write_steps(pending: PendingExport, cut: _OnnxCut) -> tuple[OnnxStep, ...]:
    steps = []
    for index, step in enumerate(cut.steps):
        if isinstance(step, _OnnxPart):
            is_last = index == len(cut.steps) - 1
            path = pending.path("dense" if is_last else f"ids-{index}", "onnx")
            path.write_bytes(step.model.SerializeToString())
            steps.append(
                OnnxStep(inputs=step.inputs, outputs=step.outputs, file=pending.seal(path))
            )
        else:
            steps.append(_lookup_step(step))
    return tuple(steps)


def _lookup_step(lookup: _OnnxLookup) -> OnnxStep:
    return OnnxStep(
        inputs=(lookup.ids,),
        outputs=(lookup.rows,),
        table=lookup.table,
        padding_id=lookup.padding_id,
        unknown=lookup.unknown,
    )
