"""Save a program and its variables as files with a common prefix."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.names import MANIFEST
from sparsefleet.fluid.executor.compiler import plain_program
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.framework import Parameter, Program, Variable, default_main_program
from sparsefleet.fluid.framework.scope import global_scope
from sparsefleet.fluid.io.pending_save import drafts_in
from sparsefleet.fluid.io.saving import (
    SavePart,
    is_parameter,
    is_persistable,
    is_saved,
    load_vars,
    put_arrays,
    save_model,
    table_folder,
    writes_model,
)
from sparsefleet.fluid.io.variable_file import FolderRows, VariableFile, arrays_of_rows

__all__ = [
    "get_parameter_value",
    "get_parameter_value_by_name",
    "get_program_parameter",
    "get_program_persistable_vars",
    "load",
    "load_program_state",
    "save",
    "set_program_state",
]

_PARAMETERS, _OTHERS, _PROGRAM = ".pdparams", ".pdopt", ".pdmodel"


def save(program: Program, model_path: str) -> None:
    """Save a program as <model_path>.pdparams, .pdopt and .pdmodel.

    The files hold the parameters, the other persistent variables, and the program itself.

    When training with servers, tables are saved in the folder <model_path>.pdparams.tables, and
    only worker 0 writes files; on other workers, this function only logs a warning.
    """
    program = plain_program(program)
    folder, name = _split(model_path)
    if writes_model(program, model_path):
        parts = [
            SavePart(list(filter(chosen, program.list_vars())), f"{name}{ending}")
            for chosen, ending in ((is_parameter, _PARAMETERS), (_is_other, _OTHERS))
        ]
        save_model(program, folder, parts, documents={f"{name}{_PROGRAM}": program.to_json()})


def load(
    program: Program,
    model_path: str,
    executor: Executor | None = None,
    var_list: Sequence[Variable] | None = None,
) -> None:
    """Load files written by `save`, or by `save_vars` and related functions.

    model_path: the prefix given to `save`, or one of the files that it wrote.

    var_list: the variables in a `save_vars` file; by default, all persistent variables of the
        program.
    """
    del executor
    program = plain_program(program)
    folder, name = _split(_prefix(model_path))
    if (folder / f"{name}{_PARAMETERS}").is_file():
        beside = _kept_beside(folder / f"{name}{_OTHERS}", program)
        load_vars(
            None,
            folder,
            program,
            None,
            lambda one: is_parameter(one) and one.name not in beside,
            f"{name}{_PARAMETERS}",
        )
        others = [one for one in program.list_vars() if _is_other(one) or one.name in beside]
        if others:
            load_vars(None, folder, program, others, None, f"{name}{_OTHERS}")
        return
    path = Path(model_path)
    if path.is_dir():
        known = var_list or list(filter(is_persistable, program.list_vars()))
        load_vars(None, path, program, [one for one in known if is_saved(path, one.name)])
    elif path.is_file():
        load_vars(None, path.parent, program, var_list, None, path.name)
    else:
        raise RuntimeError(f"{model_path}{_PARAMETERS}: no such file; create it with fluid.save")


def _kept_beside(path: Path, program: Program) -> set[str]:
    """Return the parameters that version 0.1 saved with the other variables.

    These are the running statistics of `batch_norm`, which version 0.1 did not treat as parameters.
    """
    stored = set(VariableFile(path).names) if path.is_file() else set()
    return {one.name for one in program.list_vars() if is_parameter(one) and one.name in stored}


def get_parameter_value(para: Variable, executor: Any) -> Any:
    """Return the value of a parameter as an array."""
    del executor
    if not is_parameter(para):
        raise AssertionError(f"para must be a program's parameter, got {para!r}")
    held = global_scope().find_var(para.name)
    if held is None or held.value() is None:
        raise RuntimeError(f"parameter '{para.name}' has no value; run the startup program first")
    return np.array(held.get_tensor())


def get_parameter_value_by_name(name: str, executor: Any, program: Program | None = None) -> Any:
    """Return the value of the parameter with this name as an array."""
    found = (program or default_main_program()).global_block().var(name)
    return get_parameter_value(found, executor)


def get_program_parameter(program: Program) -> list[Parameter]:
    """Return the parameters of a program."""
    return [found for found in plain_program(program).list_vars() if isinstance(found, Parameter)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """Return the persistent variables of a program."""
    return [found for found in plain_program(program).list_vars() if is_persistable(found)]


def load_program_state(
    model_path: str, var_list: Sequence[Variable] | None = None
) -> dict[str, NDArray[Any]]:
    """Return a dict from name to array with everything that `save` or `save_vars` saved.

    A table's rows are stored as the arrays `<name>//keys`, `//values`, `//state`, `//counters` and
    `//optimizer`, which is the kind of optimizer that the state belongs to.
    """
    state: dict[str, NDArray[Any]] = {}
    files, tables = _find_saved(model_path)
    for path in files:
        file = VariableFile(path)
        state |= {name: file.read(name) for name in file.names}
        state |= {name: np.array(note) for name, note in file.notes.items()}
    for path in tables:
        for table in Checkpoint.open(str(path)).manifest.tables:
            rows = FolderRows(str(path), table.name)
            state |= arrays_of_rows(table.name, rows.widths, rows.chunks())
            state[f"{table.name}//optimizer"] = np.array(rows.optimizer)
    if var_list is None:
        return state
    wanted = {variable.name for variable in var_list}
    return {name: array for name, array in state.items() if name.partition("//")[0] in wanted}


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Set the program's variables from arrays by name; warn about unknown names."""
    parts: dict[str, dict[str, Any]] = {}
    for name, array in state_dict.items():
        parts.setdefault(name.partition("//")[0], {})[name] = np.asarray(array)
    for variable in get_program_persistable_vars(program):
        mine = parts.pop(variable.name, None)
        if mine is not None:
            note = f"{variable.name}//optimizer"
            notes = {note: str(mine.pop(note))} if note in mine else {}
            put_arrays(variable, mine, notes)
    if parts:
        warnings.warn(
            f"values not set, because the program has no such variables: {sorted(parts)}",
            stacklevel=2,
        )


def _find_saved(model_path: str) -> tuple[list[Path], list[Path]]:
    """Return the files with variables and the folders with tables."""
    path = Path(model_path)
    start = Path(_prefix(model_path))
    together = [start.with_name(start.name + ending) for ending in (_PARAMETERS, _OTHERS)]
    if together[0].is_file():
        beside = together[0].parent / table_folder("", together[0].name)
        return [file for file in together if file.is_file()], _tables_below(beside)
    if path.is_dir():
        tables = _tables_below(path)
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file()
            and file.name != "__model__"
            and not any(file.is_relative_to(skipped) for skipped in (*tables, *drafts_in(path)))
        ]
        return files, tables
    if path.is_file():
        return [path], _tables_below(path.parent / table_folder("", path.name))
    raise RuntimeError(f"{together[0]}: no such file; create it with fluid.save")


def _tables_below(folder: Path) -> list[Path]:
    return [manifest.parent for manifest in sorted(folder.rglob(MANIFEST))]


def _is_other(variable: Variable) -> bool:
    return variable.persistable and not isinstance(variable, Parameter)


def _prefix(model_path: str) -> str:
    """Return the common prefix of the saved files, given the prefix or any of the files."""
    if Path(f"{model_path}{_PARAMETERS}").is_file():
        return model_path
    for ending in (_PARAMETERS, _OTHERS, _PROGRAM):
        if model_path.endswith(ending):
            return model_path.removesuffix(ending)
    return model_path


def _split(model_path: str) -> tuple[Path, str]:
    folder, name = os.path.split(model_path)
    if not name:
        raise AssertionError(
            "model_path must be folder/prefix, where prefix starts the file names, got "
            f"{model_path!r}"
        )
    return Path(folder or "."), name
