"""Predict with an export's ONNX files in ONNX Runtime, without torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMismatchError, ConfigError, CorruptFileError, FeedError
from sparsefleet.serving.export.feeds import Arrays, base_of
from sparsefleet.serving.export.keyed_rows import MODEL_PREFIX, Tables, require_same_shapes
from sparsefleet.serving.export.manifest import OnnxStep, Schema, Shape

__all__ = [
    "BadOnnxError",
    "OnnxEngine",
    "OnnxFile",
    "is_installed",
    "onnx_errors",
    "require_own_tensors",
]


class OnnxFile:
    """A graph read into memory. The file may be deleted afterwards. Thread-safe.

    Raises CorruptFileError if the graph refers to tensors in other files, because a graph could
    name any file on the machine.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw = path.read_bytes()
        try:
            require_own_tensors(self._raw)
        except BadOnnxError as error:
            raise CorruptFileError(f"{path} cannot be read as an ONNX model: {error}") from error
        self._parameters: dict[str, tuple[int, ...]] | None = None

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the model parameters in this graph with their shapes."""
        if self._parameters is None:
            try:
                import onnx
            except ImportError as error:
                raise ConfigError(
                    f"updating an ONNX model requires the {error.name} package; run `pip install "
                    "sparsefleet[onnx]`"
                ) from error
            held = onnx.load_from_string(self._raw).graph.initializer
            self._parameters = {
                item.name.removeprefix(MODEL_PREFIX): tuple(item.dims)
                for item in held
                if item.name.startswith(MODEL_PREFIX)
            }
        return self._parameters

    def session(
        self, threads: int | None, arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> Session:
        """Create a session for the graph, with these parameters in place of the stored ones."""
        wanted = {} if arrays is None else self.parameters()
        require_same_shapes(wanted, arrays or {})
        return Session(
            self._path,
            self._raw,
            threads,
            {MODEL_PREFIX + name: (arrays or {})[name] for name in wanted},
        )


class Session:
    """An ONNX Runtime session with the arrays that it uses but does not keep alive."""

    def __init__(
        self, path: Path, raw: bytes, threads: int | None, arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.load_model_format", "ONNX")  # not the ORT format
        if threads is not None:
            options.intra_op_num_threads = threads
        self._kept = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            for name, array in arrays.items()
        }
        for name, value in self._kept.items():
            options.add_initializer(name, value)
        try:
            self._session = onnxruntime.InferenceSession(
                raw, options, providers=["CPUExecutionProvider"]
            )
        except onnx_errors() as error:
            raise CorruptFileError(
                f"{path} is not a graph that ONNX Runtime can read: {error}"
            ) from error

    def run(self, outputs: list[str], given: Mapping[str, NDArray[Any]]) -> Any:
        """Run the graph and return the named outputs."""
        return self._session.run(outputs, given)


def onnx_errors() -> tuple[type[BaseException], ...]:
    """Return ONNX Runtime's exceptions, which have no common base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = [getattr(state, name, RuntimeError) for name in _ERROR_NAMES]
    return (*found, RuntimeError)


_ERROR_NAMES = (
    "EPFail",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
)


# Message fields that can contain tensors, with the message type of each field.
_PARTS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": dict.fromkeys((5, 10), "tensor")
    | dict.fromkeys((6, 11), "graph")
    | dict.fromkeys((22, 23), "sparse tensor"),
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14  # fields of a tensor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadOnnxError(ValueError):
    """Raised for a file that is not an ONNX model or that refers to other files."""


def require_own_tensors(raw: bytes) -> None:
    """Raise BadOnnxError if one of the model's tensors is stored in another file."""
    whole = memoryview(raw)
    waiting = [("model", whole)]
    while waiting:
        kind, message = waiting.pop()
        parts = _PARTS[kind]
        for field, value in _fields(message):
            if field in parts:
                if not isinstance(value, memoryview):
                    raise BadOnnxError(f"field {field} of a {kind} is damaged")
                waiting.append((parts[field], value))
            elif kind == "tensor" and (
                field == _EXTERNAL_DATA or (field == _DATA_LOCATION and value != 0)
            ):
                raise BadOnnxError(
                    f"the tensor '{_name_of(message)}' is stored in another file, which is not "
                    "supported"
                )


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the field numbers of a message with their values."""
    at = 0
    while at < len(message):
        tag, after = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        # Parsers drop bits beyond 32, and some accept overlong encodings of a number.
        shortest = -(-tag.bit_length() // 7)
        if not field or tag >> 32 or after - at != shortest:
            raise BadOnnxError("the data is not an ONNX model: a field has a damaged number")
        value: int | memoryview = 0
        if kind == _VARINT:
            value, at = _varint(message, after)
        elif kind == _BYTES:
            size, start = _varint(message, after)
            at = start + size
            value = message[start:at]
        elif kind in (_FIXED32, _FIXED64):
            at = after + (4 if kind == _FIXED32 else 8)
        else:
            raise BadOnnxError(
                f"the data is not an ONNX model: field {field} has an unknown wire type"
            )
        if at > len(message):
            raise BadOnnxError(f"the data is not an ONNX model: field {field} extends past the end")
        yield field, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number of up to 64 bits at this position, and the position after it."""
    value = 0
    for place, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise BadOnnxError("the data is not an ONNX model: a number is not terminated")


def _name_of(tensor: memoryview) -> str:
    names = [value for field, value in _fields(tensor) if field == _NAME]
    named = names[-1] if names else b""
    return bytes(named).decode(errors="replace")[:80] if not isinstance(named, int) else ""


TARGET_PREFIX = "target."
"""Prefix of output names, so that they do not clash with input names."""


def is_installed() -> bool:
    """Return whether ONNX Runtime can be imported."""
    try:
        import onnxruntime
    except ImportError:
        return False
    del onnxruntime
    return True


class OnnxEngine:
    """Runs the parts of a graph, with lookups in between. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        steps: Sequence[OnnxStep],
        schema: Schema,
        *,
        threads: int | None = None,
    ) -> None:
        if not is_installed():
            raise ConfigError(
                "engine='onnx' needs ONNX Runtime; run `pip install sparsefleet[onnx]`"
            )
        self._schema = schema
        parts = [(s, None if s.file is None else OnnxFile(directory / s.file)) for s in steps]
        self._steps = [(s, p and p.session(threads)) for s, p in parts]
        self._parts = [part for _, part in parts]
        self._threads = threads

    def with_dense(self, arrays: Mapping[str, NDArray[Any]]) -> OnnxEngine:
        """Return an engine with different parameters and buffers, keyed by their model names.

        Raises CheckpointMismatchError unless the tensors match the graph.
        """
        held = [name for part in self._parts if part is not None for name in part.parameters()]
        folded = sorted(arrays.keys() - set(held))
        if folded:
            raise CheckpointMismatchError(
                f"the ONNX files do not contain '{folded[0]}' as a separate tensor, so it cannot "
                "be updated with ONNX; serve with engine='torch'"
            )
        made = copy.copy(self)
        made._steps = [
            (step, part and part.session(self._threads, arrays))
            for (step, _), part in zip(self._steps, self._parts, strict=True)
        ]
        return made

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays:
        """Return the targets for these inputs and rows, keyed by graph name."""
        # ONNX Runtime reductions return the wrong shape for empty arrays.
        for name, array in arrays.items():
            if 0 in array.shape[1:]:
                raise FeedError(
                    f"input '{name}' has the shape {list(array.shape)}; ONNX Runtime cannot "
                    "handle examples without values; use engine='torch', or pad the examples"
                )
        if not _is_empty(self._schema, arrays):
            return self._run(arrays, tables)
        found = self._run(_one_example(self._schema, arrays), tables)
        return _without_examples(self._schema, found)

    def _run(self, arrays: Arrays, tables: Tables) -> Arrays:
        known = dict(arrays)
        for step, session in self._steps:
            given = {name: known[name] for name in step.inputs}
            if session is None:
                assert step.table is not None
                [ids] = given.values()
                rows = tables[step.table].look_up(
                    ids, padding_id=step.padding_id, unknown=step.unknown
                )
                known[step.outputs[0]] = rows
            else:
                known.update(zip(step.outputs, _run(session, step, given), strict=True))
        return {target.name: known[TARGET_PREFIX + target.name] for target in self._schema.targets}


def _run(session: Any, step: OnnxStep, given: Arrays) -> Any:
    try:
        return session.run(list(step.outputs), given)
    except onnx_errors() as error:
        raise FeedError(f"the model cannot process these inputs: {error}") from error


_BATCH = "batch"


def _is_empty(schema: Schema, arrays: Arrays) -> bool:
    """Return whether the batch is empty and every target has a batch dimension."""
    return all(_BATCH in target.shape for target in schema.targets) and any(
        isinstance(wanted, str) and base_of(wanted, size) == (_BATCH, 0)
        for name, shape in _shapes(schema)
        for wanted, size in zip(shape, arrays[name].shape, strict=True)
    )


def _one_example(schema: Schema, arrays: Arrays) -> Arrays:
    """Return all-zero inputs for a batch of one example, as a substitute for an empty batch."""
    made: Arrays = {}
    for name, shape in _shapes(schema):
        array = arrays[name]
        sizes = [
            size + (isinstance(wanted, str) and base_of(wanted, size)[0] == _BATCH)
            for wanted, size in zip(shape, array.shape, strict=True)
        ]
        made[name] = np.zeros(sizes, array.dtype)
    return made


def _without_examples(schema: Schema, targets: Arrays) -> Arrays:
    """Cut the targets of a one-example batch down to the shapes for an empty batch."""
    return {
        target.name: targets[target.name][
            tuple(slice(0 if size == _BATCH else None) for size in target.shape)
        ]
        for target in schema.targets
    }


def _shapes(schema: Schema) -> Iterator[tuple[str, Shape]]:
    """Yield the names of the graph's input arrays with their expected shapes."""
    for item in schema.inputs:
        shapes = (item.shape,) if item.offsets is None else (item.shape, item.offsets)
        yield from zip(item.arrays, shapes, strict=True)
