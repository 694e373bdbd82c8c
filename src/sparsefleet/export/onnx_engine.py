"""Predictions by ONNX Runtime; torch is not needed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMismatchError, ConfigError, FeedError
from sparsefleet.export.empty_batch import is_empty, one_example, without_examples
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.manifest import OnnxStep
from sparsefleet.export.onnx_file import OnnxFile, onnx_errors
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
        self._schema = schema
        parts = [(s, None if s.file is None else OnnxFile(directory / s.file)) for s in steps]
        self._steps = [(s, p and p.session(threads)) for s, p in parts]
        self._parts = [part for _, part in parts]
        self._threads = threads

    def with_dense(self, arrays: Mapping[str, NDArray[Any]]) -> OnnxEngine:
        """An engine with other parameters and buffers, by their names in the model.

        Raises CheckpointMismatchError unless they are those of the graph.
        """
        held = [name for part in self._parts if part is not None for name in part.parameters()]
        folded = sorted(arrays.keys() - set(held))
        if folded:
            raise CheckpointMismatchError(
                f"the ONNX files do not hold '{folded[0]}' as the model has it, so it cannot be "
                "updated there: serve with engine='torch'"
            )
        made = copy.copy(self)
        made._steps = [
            (step, part and part.session(self._threads, arrays))
            for (step, _), part in zip(self._steps, self._parts, strict=True)
        ]
        return made

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


def _run(session: Any, step: OnnxStep, given: Arrays) -> Any:
    try:
        return session.run(list(step.outputs), given)
    except onnx_errors() as error:
        raise FeedError(f"the model cannot compute these inputs: {error}") from error
