"""Predictions by ONNX Runtime; torch is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefleet.errors import ConfigError, CorruptFileError, FeedError
from sparsefleet.export.empty_batch import is_empty, one_example, without_examples
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.manifest import OnnxStep
from sparsefleet.export.row_source import Tables
from sparsefleet.export.schema import Schema

__all__ = ["OnnxEngine", "is_installed"]

TARGET_PREFIX = "target."
"""Of the names of outputs, which may be called like inputs."""


def is_installed() -> bool:
    """Whether ONNX Runtime can be imported."""
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
            raise ConfigError("engine='onnx' needs ONNX Runtime: pip install sparsefleet[onnx]")
        self._steps = [
            (step, None if step.file is None else _session(directory / step.file, threads))
            for step in steps
        ]
        self._schema = schema

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays:
        """Targets of inputs, by their names in the graph, with these rows."""
        # Reductions of ONNX Runtime give empty arrays a wrong shape.
        for name, array in arrays.items():
            if 0 in array.shape[1:]:
                raise FeedError(
                    f"input '{name}' has the shape {list(array.shape)}; ONNX Runtime cannot "
                    "compute examples without values: use engine='torch', or pad them"
                )
        if not is_empty(self._schema, arrays):
            return self._run(arrays, tables)
        found = self._run(one_example(self._schema, arrays), tables)
        return without_examples(self._schema, found)

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


def _session(path: Path, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _errors() as error:
        raise CorruptFileError(f"{path} is no graph that ONNX Runtime reads: {error}") from error


def _run(session: Any, step: OnnxStep, given: Arrays) -> Any:
    try:
        return session.run(list(step.outputs), given)
    except _errors() as error:
        raise FeedError(f"the model cannot compute these inputs: {error}") from error


def _errors() -> tuple[type[BaseException], ...]:
    """What ONNX Runtime raises: its classes have no base of their own."""
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
