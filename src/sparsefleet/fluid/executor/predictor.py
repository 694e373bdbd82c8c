"""Fluid's Python predictor, which runs a saved inference model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.scope import Scope, scope_guard

__all__ = [
    "AnalysisConfig",
    "AnalysisPredictor",
    "NativeConfig",
    "PaddleBuf",
    "PaddleDType",
    "PaddleTensor",
    "create_paddle_predictor",
]


class PaddleDType(IntEnum):
    """Element types with Fluid's numeric codes."""

    FLOAT32 = 0
    INT64 = 1
    INT32 = 2


_DTYPES = {"float32": PaddleDType.FLOAT32, "int64": PaddleDType.INT64, "int32": PaddleDType.INT32}


class PaddleBuf:
    """The elements of a tensor, flattened."""

    def __init__(self, data: Any = ()) -> None:
        self._array = np.ravel(np.asarray(data))

    def reset(self, data: Any) -> None:
        """Replace the elements with those of `data`."""
        self._array = np.ravel(np.asarray(data))

    def float_data(self) -> list[float]:
        return [float(one) for one in self._array]

    def int64_data(self) -> list[int]:
        return [int(one) for one in self._array]

    int32_data = int64_data

    def tolist(self, dtype: str = "float32") -> list[Any]:
        return self._array.astype(dtype).tolist()  # type: ignore[no-any-return]

    def length(self) -> int:
        """Return the size of all elements in bytes."""
        return int(self._array.nbytes)

    def empty(self) -> bool:
        return self._array.size == 0


class PaddleTensor:
    """An input or output of a predictor: an array with a name and sequence offsets."""

    def __init__(self, data: Any = None, name: str = "", lod: Sequence[Sequence[int]] = ()) -> None:
        array = np.empty(0, "float32") if data is None else np.asarray(data)
        self.name, self.lod = name, [list(level) for level in lod]
        self.shape = list(array.shape)
        self.dtype: Any = _DTYPES.get(array.dtype.name, PaddleDType.FLOAT32)
        self.data = PaddleBuf(array)

    def as_ndarray(self) -> Any:
        """Return the elements as an array of the tensor's shape."""
        name = next(name for name, kind in _DTYPES.items() if kind == self.dtype)
        return self.data._array.astype(name).reshape(self.shape)


def _take_setting(*args: Any, **kwargs: Any) -> None:
    """Accept a setting for Fluid's devices or graph passes; it has no effect on results."""
    del args, kwargs


_ANSWERS = {
    "cpu_math_library_num_threads": 1,
    "glog_info_disabled": False,
    "gpu_device_id": 0,
    "ir_optim": True,
    "mkldnn_enabled": False,
    "specify_input_name": True,
    "tensorrt_engine_enabled": False,
    "use_feed_fetch_ops_enabled": True,
    "use_gpu": False,
}
"""A config's return values for settings that have no effect here."""


class AnalysisConfig:
    """The model that a predictor runs, given as a folder or as program and parameter files.

    Settings for devices and graph passes are accepted but do not affect results.
    """

    def __init__(self, model_dir: str = "", params_file: str | None = None) -> None:
        self._folder = model_dir
        self._program: str | None = None
        self._params = params_file
        if params_file is not None:
            self.set_model(model_dir, params_file)

    def set_model(self, model_dir: str, params_file: str | None = None) -> None:
        """Set the folder, or the program file and parameter file."""
        self._folder, self._program, self._params = model_dir, None, params_file
        if params_file is not None:
            self._folder = os.path.dirname(model_dir)
            self._program = os.path.basename(model_dir)
            self._params = os.path.basename(params_file)

    def model_dir(self) -> str:
        return self._folder

    def prog_file(self) -> str:
        return os.path.join(self._folder, self._program) if self._program else ""

    def params_file(self) -> str:
        return os.path.join(self._folder, self._params) if self._params else ""

    def pass_builder(self) -> Any:
        """Return this object, on which adding and deleting graph passes has no effect."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("enable_", "disable_", "switch_", "set_", "delete_", "append_")):
            return _take_setting
        if name in _ANSWERS:
            return lambda: _ANSWERS[name]
        raise AttributeError(f"AnalysisConfig has no setting {name!r}")


class NativeConfig(AnalysisConfig):
    """Fluid's older class for a predictor's settings, with assignable fields."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "model_dir":
            name = "_folder"
        super().__setattr__(name, value)


class _Held:
    """A predictor's named input or output, which arrays are copied to or from."""

    def __init__(self) -> None:
        self.value: Any = None
        self._announced: list[int] = []
        self._lod: list[list[int]] = []

    def copy_from_cpu(self, array: Any) -> None:
        self.value = np.array(array)

    def copy_to_cpu(self) -> Any:
        return np.array(self.value)

    def reshape(self, shape: Sequence[int]) -> None:
        """Set the expected shape; the shape of the copied array takes precedence."""
        if self.value is None:
            self._announced = list(shape)

    def shape(self) -> list[int]:
        """Return the shape of the copied array or, if there is none yet, the expected shape."""
        return self._announced if self.value is None else list(np.shape(self.value))

    def type(self) -> Any:
        """Return the element type, as a PaddleDType."""
        return _DTYPES.get(np.asarray(self.value).dtype.name, PaddleDType.FLOAT32)

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        self._lod = [list(level) for level in lod]

    def lod(self) -> list[list[int]]:
        return self._lod

    def fed(self) -> Any:
        if not self._lod:
            return self.value
        made = LoDTensor()
        made.set(self.value)
        made.set_lod(self._lod)
        return made


class AnalysisPredictor:
    """Runs an inference model on arrays."""

    def __init__(self, config: AnalysisConfig) -> None:
        from sparsefleet.fluid.io.inference_model import load_inference_model

        self._config, self._scope, self._exe = config, Scope(), Executor()
        with scope_guard(self._scope):
            self._model, self._inputs, self._targets = load_inference_model(
                config._folder, self._exe, config._program, config._params
            )
        self._held = {name: _Held() for name in self._inputs}
        self._made = {target.name: _Held() for target in self._targets}

    def get_input_names(self) -> list[str]:
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        return list(self._made)

    def get_input_tensor_shape(self) -> dict[str, list[int]]:
        """Return the declared shape of each input, with -1 for unknown sizes."""
        block = self._model.global_block()
        return {name: list(block.var(name).shape) for name in self._inputs}

    def get_input_tensor(self, name: str) -> _Held:
        return self._held[name]

    def get_output_tensor(self, name: str) -> _Held:
        return self._made[name]

    def zero_copy_run(self) -> None:
        """Run on the values copied to the inputs."""
        results = self._run({name: held.fed() for name, held in self._held.items()})
        for held, result in zip(self._made.values(), results, strict=True):
            held.value = result.numpy()
            held.set_lod(result.lod())

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:
        """Return the outputs for these inputs, matched by name, or by order if unnamed."""
        if len(inputs) != len(self._inputs):
            raise ConfigError(f"predictor: got {len(inputs)} inputs, expected {len(self._inputs)}")
        feed = {}
        for number, given in enumerate(inputs):
            held = _Held()
            held.copy_from_cpu(given.as_ndarray())
            held.set_lod(given.lod)
            feed[given.name or self._inputs[number]] = held.fed()
        return [
            PaddleTensor(result.numpy(), name, result.lod())
            for name, result in zip(self._made, self._run(feed), strict=True)
        ]

    def clone(self) -> AnalysisPredictor:
        """Create another predictor for the same model, for use in a different thread."""
        return AnalysisPredictor(self._config)

    def _run(self, feed: dict[str, Any]) -> list[Any]:
        return self._exe.run(
            self._model,
            feed=feed,
            fetch_list=self._targets,
            scope=self._scope,
            return_numpy=False,
        )


def create_paddle_predictor(config: AnalysisConfig) -> AnalysisPredictor:
    """Create a predictor for the model in the config."""
    return AnalysisPredictor(config)
