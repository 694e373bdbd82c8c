"""One ONNX file of an export, and how ONNX Runtime is made to run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, CorruptFileError
from sparsefleet.export.dense_shapes import MODEL_PREFIX, require_same_shapes

__all__ = ["OnnxFile", "onnx_errors"]


class OnnxFile:
    """A graph, read: its file may go then. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw = path.read_bytes()
        self._parameters: dict[str, tuple[int, ...]] | None = None

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """The parameters of the model that are in it, with their shapes."""
        if self._parameters is None:
            try:
                import onnx
            except ImportError as error:
                raise ConfigError(
                    f"updating a model in ONNX needs {error.name}: pip install sparsefleet[onnx]"
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
        """Runs the graph, with these parameters in place of its own."""
        wanted = {} if arrays is None else self.parameters()
        require_same_shapes(wanted, arrays or {})
        return Session(
            self._path,
            self._raw,
            threads,
            {MODEL_PREFIX + name: (arrays or {})[name] for name in wanted},
        )


class Session:
    """A session of ONNX Runtime, and the arrays that it uses but does not keep alive."""

    def __init__(
        self, path: Path, raw: bytes, threads: int | None, arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
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
                f"{path} is no graph that ONNX Runtime reads: {error}"
            ) from error

    def run(self, outputs: list[str], given: Mapping[str, NDArray[Any]]) -> Any:
        """The outputs of these names."""
        return self._session.run(outputs, given)


def onnx_errors() -> tuple[type[BaseException], ...]:
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
