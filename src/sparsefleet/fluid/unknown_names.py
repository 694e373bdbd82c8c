"""Errors for Fluid names that are not supported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from sparsefleet._lazy import lazy_names

__all__ = ["by_name", "known_names", "unknown_names"]


_INSTEAD = {
    "incubate.fleet.base.role_maker.MPISymetricRoleMaker": (
        "processes are started without MPI; use PaddleCloudRoleMaker or GeneralRoleMaker"
    ),
    "load_op_library": "Fluid's C++ operators cannot be loaded; use layers.py_func",
    "optimizer.Dpsgd": "noisy updates are not supported; use SGD with a grad_clip",
    "optimizer.PipelineOptimizer": "a program runs on one machine's CPU; use fleet for several",
}
_INSTEAD["optimizer.DpsgdOptimizer"] = _INSTEAD["optimizer.Dpsgd"]

# Names that most Fluid modules import, so that programs find them in any module: name -> home.
_IMPORTED = {
    "Block": "framework",
    "CompiledProgram": "executor.compiler",
    "Constant": "framework.initializer",
    "Executor": "executor.executor",
    "LayerHelper": "operators.layer_helper",
    "Mode": "fleet.program_fleet",
    "Normal": "framework.initializer",
    "NumpyArrayInitializer": "framework.initializer",
    "Operator": "framework",
    "ParallelExecutor": "executor.executor",
    "ParamAttr": "framework.param_attr",
    "Parameter": "framework",
    "Program": "framework",
    "VarDesc": "framework.core",
    "Variable": "framework.variable",
    "Xavier": "framework.initializer",
    "append_backward": "optimizer.backward",
    "append_gradient_clip_ops": "optimizer.clip",
    "autodoc": "framework.old_helpers",
    "check_dtype": "operators.layer_helper",
    "check_type": "operators.layer_helper",
    "check_variable_and_dtype": "operators.layer_helper",
    "compiler": "executor.compiler",
    "convert_dtype": "operators.layer_helper",
    "convert_np_dtype_to_dtype_": "framework.core",
    "core": "framework.core",
    "cpt": "paddle.compat",
    "default_main_program": "framework",
    "default_startup_program": "framework",
    "deprecated": "framework.old_helpers",
    "device_guard": "framework",
    "error_clip_callback": "optimizer.clip",
    "fluid": "",
    "framework": "framework",
    "get_logger": "framework.old_helpers",
    "global_scope": "framework.scope",
    "in_dygraph_mode": "framework",
    "layers": "layers",
    "name_scope": "framework",
    "program_guard": "framework",
    "templatedoc": "framework.old_helpers",
    "unique_name": "framework.unique_name",
    "wait_server_ready": "fleet.distribute_transpiler",
    "wrap_decorator": "framework.old_helpers",
}
_MODULES = ("compiler", "core", "cpt", "fluid", "framework", "layers", "unique_name")


def unknown_names(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module.

    It raises an error that says what to use instead of an unsupported name.
    """

    def refuse(name: str) -> Any:
        from sparsefleet.fluid.paths import paths

        if f"{module}.{name}".removeprefix("fluid.") in paths():
            return importlib.import_module(f"sparsefleet.{module}.{name}")
        if name in _IMPORTED:
            home = importlib.import_module(f"sparsefleet.fluid.{_IMPORTED[name]}".rstrip("."))
            return home if name in _MODULES else getattr(home, name)
        # Names that Python itself looks up are not API.
        instead = _INSTEAD.get(f"{module}.{name}".removeprefix("fluid."))
        hint = f": {instead}" if instead else ""
        listed = "; docs/coming_from_fluid.md lists what is supported"
        hint = "" if name.startswith("__") else hint + listed
        raise AttributeError(f"{module}.{name} is not supported by sparsefleet{hint}")

    return refuse


def known_names(package: str, module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` that loads known names and calls `unknown_names` for all others."""
    load, refuse = lazy_names(package, homes), unknown_names(module)
    return lambda name: load(name) if name in homes else refuse(name)


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from name to module, given the names in each module, separated by spaces.

    >>> by_name({"math": "floor ceil"})
    {'floor': 'math', 'ceil': 'math'}
    """
    return {name: module for module, listed in names.items() for name in listed.split()}
