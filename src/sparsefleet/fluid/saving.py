"""Variables of a scope in files: safetensors, one a variable and named after it, or all in one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sparsefleet.errors import CorruptFileError
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Parameter, Program, Variable, default_main_program
from sparsefleet.fluid.scope import global_scope
from sparsefleet.fluid.sparse_parameter import SparseParameter
from sparsefleet.store import Rows

__all__ = [
    "is_parameter",
    "is_persistable",
    "load_params",
    "load_persistables",
    "load_vars",
    "save_params",
    "save_persistables",
    "save_vars",
]

Arrays = dict[str, NDArray[Any]]
Predicate = Callable[[Variable], bool]

# The rows of a table are these arrays, under `<variable>//<part>`.
_PARTS = ("keys", "values", "state", "counters")


def is_persistable(var: Variable) -> bool:
    """Whether a variable is kept between runs."""
    return var.persistable


def is_parameter(var: Variable) -> bool:
    """Whether a variable is trained."""
    return isinstance(var, Parameter)


def save_vars(
    executor: Executor,
    dirname: str | os.PathLike[str] | None,
    main_program: Program | None = None,
    vars: Sequence[Variable] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> bytes | None:
    """Saves variables: those given, or those of the program that the predicate takes.

    filename: all of them in one file of that name. Without a folder and a name the bytes of such a
    file are returned.
    """
    del executor
    found: dict[str, tuple[Arrays, dict[str, str]]] = {}
    for variable in _chosen(main_program, vars, predicate):
        held = global_scope().find_var(variable.name)
        value = None if held is None else held.value()
        if value is None:
            raise RuntimeError(
                f"variable '{variable.name}' has no value to save: run the start-up program first"
            )
        found[variable.name] = _arrays_of(variable.name, value)
    if filename is None and dirname is not None:
        for name, (arrays, notes) in found.items():
            _write(_path_in(Path(dirname), name), save(arrays, notes))
        return None
    together: Arrays = {key: array for arrays, _ in found.values() for key, array in arrays.items()}
    all_notes = {key: note for _, notes in found.values() for key, note in notes.items()}
    content: bytes = save(together, all_notes)
    if filename is None:
        return content
    _write(_path_in(Path(dirname or "."), filename), content)
    return None


def load_vars(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | None = None,
    vars: Sequence[Variable] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Loads what `save_vars` saved. Nothing is changed if a file is missing or does not fit."""
    del executor
    chosen = _chosen(main_program, vars, predicate)
    folder = Path(dirname)
    loaded: list[tuple[Variable, Arrays, Mapping[str, str]]] = []
    one = None if filename is None else _read(_path_in(folder, filename))
    for variable in chosen:
        arrays, notes = one or _read(_path_in(folder, variable.name))
        prefix = f"{variable.name}//"
        mine = {k: v for k, v in arrays.items() if k == variable.name or k.startswith(prefix)}
        _check_shape(variable, mine, folder)
        loaded.append((variable, mine, notes))
    for variable, mine, notes in loaded:
        _put(variable, mine, notes)


def save_params(
    executor: Executor,
    dirname: str | os.PathLike[str] | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> bytes | None:
    """`save_vars` of parameters; not enough to go on training with most optimizers."""
    return save_vars(executor, dirname, main_program, None, is_parameter, filename)


def load_params(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """What `save_params` saved."""
    load_vars(executor, dirname, main_program, None, is_parameter, filename)


def save_persistables(
    executor: Executor,
    dirname: str | os.PathLike[str] | None,
    main_program: Program | None = None,
    filename: str | None = None,
) -> bytes | None:
    """`save_vars` of all that is kept between runs."""
    return save_vars(executor, dirname, main_program, None, is_persistable, filename)


def load_persistables(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """What `save_persistables` saved."""
    load_vars(executor, dirname, main_program, None, is_persistable, filename)


def _chosen(
    program: Program | None, variables: Sequence[Variable] | None, predicate: Predicate | None
) -> list[Variable]:
    if variables is not None:
        return list(variables)
    known = (program or default_main_program()).list_vars()
    return sorted(filter(predicate or is_persistable, known), key=lambda found: found.name)


def _arrays_of(name: str, value: Any) -> tuple[Arrays, dict[str, str]]:
    if not isinstance(value, SparseParameter):
        return {name: np.ascontiguousarray(value.detach().cpu().numpy())}, {}
    rows = value.rows()
    arrays: Arrays = {f"{name}//{part}": getattr(rows, part) for part in _PARTS}
    return arrays, {f"{name}//optimizer": value.optimizer.kind}


def _check_shape(variable: Variable, arrays: Arrays, folder: Path) -> None:
    values = arrays.get(variable.name, arrays.get(f"{variable.name}//values"))
    if values is None:
        raise RuntimeError(f"{folder}: there is nothing saved for variable '{variable.name}'")
    is_rows = variable.name not in arrays
    shape = (*variable.shape[:1], *values.shape[1:]) if is_rows else values.shape
    if shape != variable.shape:
        raise RuntimeError(
            f"variable '{variable.name}': saved with shape {values.shape}, wanted {variable.shape}"
        )


def _put(variable: Variable, arrays: Arrays, notes: Mapping[str, str]) -> None:
    name = variable.name
    place = global_scope().find_var(name) or global_scope().var(name)
    tensor = place.get_tensor()
    if name in arrays:
        tensor.set(arrays[name])
        return
    if not isinstance(tensor, SparseParameter):
        raise RuntimeError(
            f"variable '{name}' was saved as rows of a table, but has none here: run the start-up "
            "program before loading"
        )
    rows = Rows(*(arrays[f"{name}//{part}"] for part in _PARTS))
    tensor.load_rows(rows, notes.get(f"{name}//optimizer", ""))


def _path_in(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"'{name}' leads out of the folder {folder}")
    return path


def _write(path: Path, content: bytes) -> None:
    """Beside, then renamed: no half file has the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    os.replace(beside, path)


def _read(path: Path) -> tuple[Arrays, Mapping[str, str]]:
    if not path.is_file():
        raise RuntimeError(f"{path}: no such file; it is where the variable should be saved")
    try:
        with safe_open(path, framework="numpy") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise CorruptFileError(f"{path}: not a file of saved variables: {error}") from error
