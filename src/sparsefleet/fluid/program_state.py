"""A program and its variables as the files of one prefix."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.compiler import plain_program
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Parameter, Program, Variable
from sparsefleet.fluid.saving import (
    is_parameter,
    is_persistable,
    load_vars,
    put_arrays,
    read_file,
    save_vars,
)

__all__ = [
    "get_program_parameter",
    "get_program_persistable_vars",
    "load",
    "load_program_state",
    "save",
    "set_program_state",
]

_PARAMETERS, _OTHERS, _PROGRAM = ".pdparams", ".pdopt", ".pdmodel"


def save(program: Program, model_path: str) -> None:
    """Saves parameters, all else that is kept, and the program, as <model_path>.pdparams, .pdopt
    and .pdmodel."""
    program = plain_program(program)
    folder, name = _split(model_path)
    save_vars(None, folder, program, None, is_parameter, f"{name}{_PARAMETERS}")
    save_vars(None, folder, program, None, _is_other, f"{name}{_OTHERS}")
    (folder / f"{name}{_PROGRAM}").write_text(program.to_json(), encoding="utf-8")


def load(
    program: Program,
    model_path: str,
    executor: Executor | None = None,
    var_list: Sequence[Variable] | None = None,
) -> None:
    """Loads what `save` saved; else what `save_vars` and its like saved into that folder or file.

    var_list: the variables in such a file; by default all that the program keeps.
    """
    del executor
    program = plain_program(program)
    folder, name = _split(model_path)
    if (folder / f"{name}{_PARAMETERS}").is_file():
        load_vars(None, folder, program, None, is_parameter, f"{name}{_PARAMETERS}")
        others = list(filter(_is_other, program.list_vars()))
        if others:
            load_vars(None, folder, program, others, None, f"{name}{_OTHERS}")
        return
    path = Path(model_path)
    if path.is_dir():
        known = var_list or list(filter(is_persistable, program.list_vars()))
        load_vars(None, path, program, [one for one in known if (path / one.name).is_file()])
    elif path.is_file():
        load_vars(None, path.parent, program, var_list, None, path.name)
    else:
        raise RuntimeError(f"{model_path}{_PARAMETERS}: no such file; fluid.save makes it")


def get_program_parameter(program: Program) -> list[Parameter]:
    """The parameters of a program."""
    return [found for found in plain_program(program).list_vars() if isinstance(found, Parameter)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """All that a program keeps between runs."""
    return [found for found in plain_program(program).list_vars() if is_persistable(found)]


def load_program_state(
    model_path: str, var_list: Sequence[Variable] | None = None
) -> dict[str, NDArray[Any]]:
    """Name -> array of what `save`, or `save_vars` and its like, saved.

    The rows of a table are the arrays `<name>//keys`, `//values`, `//state`, `//counters` and
    `//optimizer`, the kind of optimizer that the state is of.
    """
    state: dict[str, NDArray[Any]] = {}
    for file in _files(model_path):
        arrays, notes = read_file(file)
        state.update(arrays)
        state.update((name, np.array(note)) for name, note in notes.items())
    if var_list is None:
        return state
    wanted = {variable.name for variable in var_list}
    return {name: array for name, array in state.items() if name.partition("//")[0] in wanted}


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Gives variables of the program the arrays of their names; warns of names it has not."""
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
        warnings.warn(f"not set, as the program has none of them: {sorted(parts)}", stacklevel=2)


def _files(model_path: str) -> list[Path]:
    path = Path(model_path)
    together = [path.with_name(path.name + ending) for ending in (_PARAMETERS, _OTHERS)]
    if together[0].is_file():
        return [file for file in together if file.is_file()]
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*")) if file.is_file())
        return [file for file in files if file.name != "__model__"]
    if path.is_file():
        return [path]
    raise RuntimeError(f"{together[0]}: no such file; fluid.save makes it")


def _is_other(variable: Variable) -> bool:
    return variable.persistable and not isinstance(variable, Parameter)


def _split(model_path: str) -> tuple[Path, str]:
    folder, name = os.path.split(model_path)
    if not name:
        raise AssertionError(
            f"model_path is folder/prefix, with a prefix for the names of files; got {model_path!r}"
        )
    return Path(folder or "."), name
