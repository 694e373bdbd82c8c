"""Save parameters and optimizer state, and save layers as programs."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.dygraph.eager import enabled
from sparsefleet.fluid.dygraph.layer import Layer
from sparsefleet.fluid.framework import Parameter, Program, Variable, program_guard, unique_name
from sparsefleet.fluid.framework.scope import Scope, scope_guard

__all__ = ["TracedLayer", "declarative", "load_dygraph", "save_dygraph"]

_NAMES = "StructuredToParameterName@@"


def save_dygraph(state_dict: Mapping[str, Any], model_path: str) -> None:
    """Write `model_path`.pdparams, or .pdopt for optimizer state."""
    if os.path.basename(model_path) == "":
        raise AssertionError(f"model_path must end with a file name, got {model_path!r}")
    if not state_dict:
        raise AssertionError("state_dict is empty; there is nothing to save")
    arrays: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in state_dict.items():
        is_variable = isinstance(value, Variable)
        arrays[key] = value.held().detach().cpu().numpy() if is_variable else value
        if is_variable:
            names[key] = value.name
    is_model = any(isinstance(value, Parameter) for value in state_dict.values())
    arrays[_NAMES] = names
    folder = os.path.dirname(model_path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    with open(model_path + (".pdparams" if is_model else ".pdopt"), "wb") as file:
        pickle.dump(arrays, file, protocol=2)


def load_dygraph(
    model_path: str, keep_name_table: bool = False
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return (parameters, optimizer state) as written by `save_dygraph`.

    If a file is missing, its part is None.
    """
    prefix = model_path
    for ending in (".pdparams", ".pdopt"):
        prefix = prefix.removesuffix(ending)
    found: list[dict[str, Any] | None] = []
    for ending in (".pdparams", ".pdopt"):
        path = prefix + ending
        if not os.path.exists(path):
            found.append(None)
            continue
        with open(path, "rb") as file:
            loaded = _ArraysOnly(file).load()
        if not keep_name_table and isinstance(loaded, dict):
            loaded.pop(_NAMES, None)
        found.append(loaded)
    if found == [None, None]:
        raise RuntimeError(f"{prefix}: expected a .pdparams or .pdopt file, found neither")
    return found[0], found[1]


class _ArraysOnly(pickle.Unpickler):
    """Unpickles only arrays, numbers, strings and containers of these; never runs other code."""

    def find_class(self, module: str, name: str) -> Any:
        is_numpy = module.split(".")[0] == "numpy" and name in (
            "_reconstruct",
            "ndarray",
            "dtype",
            "scalar",
            "_frombuffer",
        )
        if is_numpy or (module, name) in (("collections", "OrderedDict"), ("_codecs", "encode")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"{module}.{name} was not loaded, because it is not an array or a number"
        )


def declarative(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function unchanged, since running it imperatively gives the same result."""
    return function


class TracedLayer:
    """A layer converted to a program, to be run with an Executor and saved for inference."""

    def __init__(self, layer: Layer, inputs: Sequence[Any]) -> None:
        self._layer = layer
        self._scope = Scope()
        self.program, startup = Program(), Program()
        was_training = layer.training
        layer.eval()
        with program_guard(self.program, startup), unique_name.guard(), scope_guard(self._scope):
            self._feeds = [_declared(x, number) for number, x in enumerate(inputs)]
            made = layer(*self._feeds)
        if was_training:
            layer.train()
        self._targets = list(made) if isinstance(made, (list, tuple)) else [made]
        for value in layer.state_dict().values():
            self._scope.var(value.name).get_tensor().set(value.numpy())
        from sparsefleet.fluid.executor.executor import Executor

        self._exe = Executor()

    @staticmethod
    def trace(layer: Layer, inputs: Sequence[Any]) -> tuple[Any, TracedLayer]:
        """Return the layer's outputs for these inputs, and the layer as a program."""
        if not enabled():
            raise AssertionError("TracedLayer.trace must be called within fluid.dygraph.guard()")
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        return layer(*given), TracedLayer(layer, given)

    def set_strategy(self, build_strategy: Any = None, exec_strategy: Any = None) -> None:
        """Accept the strategies of a CompiledProgram; they do not affect results."""
        del build_strategy, exec_strategy

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the program."""
        arrays = [x.numpy() if hasattr(x, "numpy") else np.asarray(x) for x in inputs]
        feed = {known.name: array for known, array in zip(self._feeds, arrays, strict=True)}
        with scope_guard(self._scope):
            return self._exe.run(self.program, feed=feed, fetch_list=self._targets)

    def save_inference_model(
        self, dirname: str, feed: Sequence[int] | None = None, fetch: Sequence[int] | None = None
    ) -> None:
        """Write the program with its parameters; see `fluid.io.save_inference_model`."""
        from sparsefleet.fluid.io.inference_model import save_inference_model

        feeds = self._feeds if feed is None else [self._feeds[number] for number in feed]
        targets = self._targets if fetch is None else [self._targets[number] for number in fetch]
        with scope_guard(self._scope):
            save_inference_model(
                dirname, [x.name for x in feeds], targets, self._exe, self.program.clone()
            )


def _declared(x: Any, number: int) -> Variable:
    from sparsefleet.fluid.framework.variable import data

    return data(f"feed_{number}", [None, *x.shape[1:]], x.dtype)
