"""A program and its variables under one prefix: prefix.pdmodel, .pdparams and .pdopt."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.compiler import plain_program
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Parameter, Program, Variable
from sparsefleet.fluid.saving import is_parameter, is_persistable, put_arrays, read_file, save_vars

__all__ = [
    "get_program_parameter",
    "get_program_persistable_vars",
    "load",
    "load_program_state",
    "save",
    "set_program_state",
]


def get_program_parameter(program: Program) -> list[Parameter]:
    """The parameters of a program."""
    return [found for found in plain_program(program).list_vars() if isinstance(found, Parameter)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """All that a program keeps between runs."""
    return [found for found in plain_program(program).list_vars() if is_persistable(found)]


def save(program: Program, model_path: str) -> None:
    """Writes parameters to model_path.pdparams, all else that is kept to .pdopt, the program to
    .pdmodel.

    model_path: folder/prefix; the folder is made. Values are those of the global scope.
    """
    prefix, program = _prefix(model_path), plain_program(program)
    kept = get_program_persistable_vars(program)
    for ending, wanted in ((".pdparams", True), (".pdopt", False)):
        chosen = [found for found in kept if is_parameter(found) is wanted]
        save_vars(None, prefix.parent, program, chosen, filename=prefix.name + ending)
    model = prefix.with_name(prefix.name + ".pdmodel")
    model.write_bytes(program.serialize_to_string())


def load(
    program: Program,
    model_path: str,
    executor: Executor | None = None,
    var_list: Sequence[Variable] | None = None,
) -> None:
    """Gives the variables of the program the values that `save` wrote.

    model_path: the prefix; or a folder of `save_params`, `save_persistables` or `save_vars`; or
        one file of theirs with var_list, the variables in it.
    """
    program = plain_program(program)
    if program._distributed is not None:
        raise ConfigError(
            "fluid.load: this program trains on servers, which load by fleet.init_server(folder) "
            "or fluid.io.load_persistables of the server's program"
        )
    state = load_program_state(model_path, var_list)
    names = {name.partition("//")[0] for name in state}
    missing = [found.name for found in _wanted(program, var_list) if found.name not in names]
    if missing:
        raise RuntimeError(f"{model_path}: nothing is saved for {', '.join(sorted(missing))}")
    (executor or Executor()).make_tables(program)
    _set(program, state)


def load_program_state(
    model_path: str, var_list: Sequence[Variable] | None = None
) -> dict[str, NDArray[Any]]:
    """Name -> array of what `save`, or another function of fluid.io, wrote.

    The rows of a table are the arrays `<name>//keys`, `//values`, `//state`, `//counters` and
    `//optimizer`, the kind of optimizer that the state is of.
    """
    prefix = Path(model_path)
    together = [prefix.with_name(prefix.name + ending) for ending in (".pdparams", ".pdopt")]
    if together[0].is_file():
        files = [file for file in together if file.is_file()]
    elif prefix.is_dir():
        wanted = None if var_list is None else {variable.name for variable in var_list}
        files = [
            file
            for file in sorted(prefix.rglob("*"))
            if file.is_file()
            and file.name != "__model__"
            and (wanted is None or str(file.relative_to(prefix)) in wanted)
        ]
    elif prefix.is_file():
        if var_list is None:
            raise ValueError(
                f"{prefix} is one file of variables: give var_list, the variables that are in it"
            )
        files = [prefix]
    else:
        raise FileNotFoundError(
            f"{together[0]}: no such file, nor is {prefix} a folder or file of saved variables"
        )
    state: dict[str, NDArray[Any]] = {}
    for file in files:
        arrays, notes = read_file(file)
        state.update(arrays)
        state.update((name, np.array(note)) for name, note in notes.items())
    return state


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Gives variables of the program the arrays of their names; warns of names it has not."""
    program = plain_program(program)
    known = {found.name for found in get_program_persistable_vars(program)}
    unused = sorted({name for name in state_dict if name.partition("//")[0] not in known})
    if unused:
        warnings.warn(f"not set, as the program has none of them: {unused}", stacklevel=2)
    Executor().make_tables(program)
    _set(program, state_dict)


def _set(program: Program, state: Mapping[str, Any]) -> None:
    for variable in get_program_persistable_vars(program):
        prefix = f"{variable.name}//"
        mine = {
            name: np.asarray(array)
            for name, array in state.items()
            if name == variable.name or name.startswith(prefix)
        }
        if mine:
            note = f"{prefix}optimizer"
            notes = {note: str(mine.pop(note))} if note in mine else {}
            put_arrays(variable, mine, notes)


def _wanted(program: Program, var_list: Sequence[Variable] | None) -> Sequence[Variable]:
    return get_program_persistable_vars(program) if var_list is None else var_list


def _prefix(model_path: str) -> Path:
    if not str(model_path) or str(model_path).endswith(("/", "\\")):
        raise AssertionError(
            f"model_path must be folder/prefix, got {str(model_path)!r}: add a name for the files"
        )
    return Path(model_path)
