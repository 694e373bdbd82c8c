"""Predict with ONNX Runtime, without torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMismatchError, ConfigError, FeedError
from sparsefleet.serving.export.feeds import Arrays, base_of
from sparsefleet.serving.export.keyed_rows import Tables
from sparsefleet.serving.export.manifest import OnnxStep, Schema, Shape
from sparsefleet.serving.export.onnx_file import OnnxFile, onnx_errors

__all__ = [
    "OnnxEngine",
    "is_installed",
]

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
