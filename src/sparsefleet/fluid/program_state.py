"""A program and its variables as the files of one prefix."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Parameter, Program, Variable
from sparsefleet.fluid.saving import is_parameter, is_persistable, load_vars, save_vars

__all__ = ["load", "save"]

_PARAMETERS, _OTHERS, _PROGRAM = ".pdparams", ".pdopt", ".pdmodel"


def save(program: Program, model_path: str) -> None:
    """Saves parameters, all else that is kept, and the program, as <model_path>.pdparams, .pdopt
    and .pdmodel."""
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


def _is_other(variable: Variable) -> bool:
    return variable.persistable and not isinstance(variable, Parameter)


def _split(model_path: str) -> tuple[Path, str]:
    folder, name = os.path.split(model_path)
    if not name:
        raise AssertionError(
            f"model_path is folder/prefix, with a prefix for the names of files; got {model_path!r}"
        )
    return Path(folder or "."), name
