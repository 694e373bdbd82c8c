"""Variables of a scope in files: safetensors, one a variable and named after it, or all in one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sparsefleet.errors import CorruptFileError
from sparsefleet.fluid.compiler import plain_program
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Parameter, Program, Variable, default_main_program
from sparsefleet.fluid.scope import global_scope
from sparsefleet.fluid.sparse_parameter import SparseParameter, empty_table
from sparsefleet.store import Rows

__all__ = [
    "is_parameter",
    "is_persistable",
    "load_params",
    "load_persistables",
    "load_vars",
    "put_arrays",
    "read_file",
    "read_saved",
    "save_params",
    "save_persistables",
    "save_vars",
]

Arrays = dict[str, NDArray[Any]]
Predicate = Callable[[Variable], bool]

# The rows of a table are these arrays, under `<variable>//<part>`.
_PARTS = ("keys", "values", "state", "counters")


class SavedVariable(NamedTuple):
    """A variable as files have it: one array, or the rows of a table."""

    variable: Variable
    arrays: Arrays
    notes: Mapping[str, str]

    @property
    def whole(self) -> NDArray[Any] | None:
        """The array; None if rows were saved."""
        return self.arrays.get(self.variable.name)

    @property
    def optimizer(self) -> str:
        """The kind of the one whose state the rows have."""
        return self.notes.get(f"{self.variable.name}//optimizer", "")

    def dense(self, shape: Sequence[int]) -> NDArray[Any]:
        """The rows as one array; zeros where there is none."""
        rows = self.rows()
        made = np.zeros(shape, rows.values.dtype)
        made[rows.keys.astype(np.int64)] = rows.values
        return made

    def rows(self) -> Rows:
        return Rows(*(self.arrays[f"{self.variable.name}//{part}"] for part in _PARTS))


def is_persistable(var: Variable) -> bool:
    """Whether a variable is kept between runs."""
    return var.persistable


def is_parameter(var: Variable) -> bool:
    """Whether a variable is trained."""
    return isinstance(var, Parameter)


def save_vars(
    executor: Executor | None,
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
    main_program = plain_program(main_program) or default_main_program()
    role = main_program._distributed
    if role is not None:
        role.before_saving(global_scope())
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
    executor: Executor | None,
    dirname: str | os.PathLike[str],
    main_program: Program | None = None,
    vars: Sequence[Variable] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Loads what `save_vars` saved. Nothing is changed if a file is missing or does not fit."""
    del executor
    for saved in read_saved(dirname, _chosen(main_program, vars, predicate), filename):
        _put(saved)


def read_saved(
    dirname: str | os.PathLike[str], variables: Sequence[Variable], filename: str | None = None
) -> list[SavedVariable]:
    """What a folder has of the variables; RuntimeError if a file is missing or does not fit."""
    folder = Path(dirname)
    found = []
    one = None if filename is None else read_file(_path_in(folder, filename))
    for variable in variables:
        arrays, notes = one or read_file(_path_in(folder, variable.name))
        prefix = f"{variable.name}//"
        mine = {k: v for k, v in arrays.items() if k == variable.name or k.startswith(prefix)}
        _check_shape(variable, mine, folder)
        found.append(SavedVariable(variable, mine, notes))
    return found


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
    """What `save_persistables` saved; for a server's program, what the job is to start from."""
    role = (plain_program(main_program) or default_main_program())._distributed
    if role is not None and role.holds_values:
        role.load(dirname, filename)
        return
    load_vars(executor, dirname, main_program, None, is_persistable, filename)


def _chosen(
    program: Program | None, variables: Sequence[Variable] | None, predicate: Predicate | None
) -> list[Variable]:
    if variables is not None:
        return list(variables)
    known = (plain_program(program) or default_main_program()).list_vars()
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


def put_arrays(variable: Variable, arrays: Arrays, notes: Mapping[str, str]) -> None:
    """Gives a variable of the global scope these arrays, if they fit it."""
    _check_shape(variable, arrays, Path())
    _put(SavedVariable(variable, arrays, notes))


def _put(saved: SavedVariable) -> None:
    variable = saved.variable
    place = global_scope().find_var(variable.name) or global_scope().var(variable.name)
    if place.value() is None and isinstance(variable, Parameter) and variable.is_table:
        place.hold(empty_table(variable))
    tensor = place.get_tensor()
    if saved.whole is not None:
        tensor.set(saved.whole)
    elif isinstance(tensor, SparseParameter):
        tensor.load_rows(saved.rows(), saved.optimizer)
    else:
        tensor.set(saved.dense(variable.shape))


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


def read_file(path: Path) -> tuple[Arrays, Mapping[str, str]]:
    """Arrays and notes of a file of saved variables."""
    if not path.is_file():
        raise RuntimeError(f"{path}: no such file; it is where the variable should be saved")
    try:
        with safe_open(path, framework="numpy") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        hint = ""
        with path.open("rb") as opened_file:
            if opened_file.read(1) == b"\x80":
                hint = "; it looks like a pickle, which can run code when read and is refused"
        raise CorruptFileError(f"{path}: not a file of saved variables: {error}{hint}") from error
