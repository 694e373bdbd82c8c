"""Save a scope's variables, either in one file per variable, named after it, or all in one file.

Files are safetensors. A table (an embedding with `is_sparse=True`) is also a file, or a folder that
the servers write: a checkpoint with a manifest and Parquet files.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from sparsefleet.checkpoint.names import MANIFEST
from sparsefleet.checkpoint.paddle_files import read_paddle_persistables
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor.compiler import plain_program
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.framework import Parameter, Program, Variable, default_main_program
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.scope import Scope, global_scope
from sparsefleet.fluid.framework.sparse_parameter import SparseParameter, empty_table
from sparsefleet.fluid.io.pending_save import PendingSave, path_in
from sparsefleet.fluid.io.variable_file import (
    ArrayRows,
    ArraySource,
    ArrayToWrite,
    FileRows,
    FolderRows,
    MemoryArrays,
    RowsToWrite,
    RowWidths,
    SavedRows,
    VariableFile,
    load_saved_rows,
    write_variables,
)
from sparsefleet.store import RemoteStore, Rows, Store
from sparsefleet.store.row_streams import row_chunks
from sparsefleet.store.table_folders import TableFolders

__all__ = [
    "SavePart",
    "SavedVariable",
    "TableLayout",
    "is_parameter",
    "is_persistable",
    "is_saved",
    "load_params",
    "load_persistables",
    "load_vars",
    "put_arrays",
    "read_saved",
    "save_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "table_folder",
    "writes_model",
]

Arrays = Mapping[str, NDArray[Any]]
Predicate = Callable[[Variable], bool]

TableLayout = Literal["file", "folder"]
"""How a table is saved: as a file written by this process, or a folder written by its store."""

_PADDLE_VERSION = bytes(4)

_log = logging.getLogger("sparsefleet.fluid")


class SavePart(NamedTuple):
    """Variables to be saved together."""

    variables: Sequence[Variable]
    filename: str | None
    """The name of a single file for all variables, or None for one file per variable."""


class SavedVariable:
    """A saved variable, either an array or a table's rows.

    Its data is read only when `rows` or `array` is called.
    """

    def __init__(self, variable: Variable, saved: ArraySource | SavedRows) -> None:
        self.variable = variable
        self._saved = saved
        name, wanted = variable.name, tuple(variable.shape)
        if isinstance(saved, SavedRows):  # rows that were never looked up do not exist
            found = (*wanted[:1], saved.widths.dim)
        else:
            found = saved.shape(name)
        if found != wanted:
            raise RuntimeError(
                f"variable '{name}': saved with shape {found} in {saved.location}, expected "
                f"{wanted}; load files that this program saved, or change the layer to the saved "
                "size"
            )

    @property
    def rows(self) -> SavedRows:
        """Return the rows. Row i of an array has the id i."""
        if isinstance(self._saved, SavedRows):
            return self._saved
        return ArrayRows(self._saved, self.variable.name)

    def array(self) -> NDArray[Any]:
        """Return the array, with zeros for missing rows."""
        if isinstance(self._saved, SavedRows):
            return self._saved.dense(self.variable.name, self.variable.shape)
        return self._saved.read(self.variable.name)


def is_persistable(var: Variable) -> bool:
    """Return whether a variable is persistent."""
    return var.persistable


def is_parameter(var: Variable) -> bool:
    """Return whether a variable is a parameter."""
    return isinstance(var, Parameter)


# -- saving -----------------------------------------------------------------------------------


def save_vars(
    executor: Executor | None,
    dirname: str | os.PathLike[str] | None,
    main_program: Program | None = None,
    vars: Sequence[Variable] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    *,
    table_layout: TableLayout | None = None,
) -> bytes | None:
    """Save the given variables, or the program's variables that the predicate accepts.

    filename: save all variables in one file with this name. If neither a folder nor a filename is
        given, return the file's contents as bytes. table_layout: "file", the default in one
        process, writes a table like any other variable; "folder", the default when training with
        servers, makes the servers write their rows into a folder named after the variable
        (`<filename>.tables/<variable>` with a filename). See docs/fluid_on_servers.md.

    If anything fails, the previous save in the folder is unchanged.
    """
    del executor
    program = plain_program(main_program) or default_main_program()
    chosen = _chosen(program, vars, predicate)
    if dirname is None and filename is None:
        return _saved_bytes(program, chosen)
    part = SavePart(chosen, filename)
    save_model(program, dirname or os.curdir, [part], table_layout=table_layout)
    return None


def save_params(
    executor: Executor,
    dirname: str | os.PathLike[str] | None,
    main_program: Program | None = None,
    filename: str | None = None,
    *,
    table_layout: TableLayout | None = None,
) -> bytes | None:
    """Save only the parameters, which are not enough to resume training with most optimizers.

    When training with servers, only worker 0 writes files; on other workers, this function only
    logs a warning.
    """
    del executor
    return _save_by_one(dirname, main_program, is_parameter, filename, table_layout)


def save_persistables(
    executor: Executor,
    dirname: str | os.PathLike[str] | None,
    main_program: Program | None = None,
    filename: str | None = None,
    *,
    table_layout: TableLayout | None = None,
) -> bytes | None:
    """Save all persistent variables.

    When training with servers, only worker 0 writes files; on other workers, this function only
    logs a warning.
    """
    del executor
    return _save_by_one(dirname, main_program, is_persistable, filename, table_layout)


def _save_by_one(
    dirname: str | os.PathLike[str] | None,
    program: Program | None,
    predicate: Predicate,
    filename: str | None,
    table_layout: TableLayout | None,
) -> bytes | None:
    """Save the variables if this worker writes files.

    Any worker can request the contents as bytes.
    """
    if (dirname, filename) != (None, None) and not writes_model(program, dirname):
        return None
    return save_vars(None, dirname, program, None, predicate, filename, table_layout=table_layout)


def writes_model(program: Program | None, where: object) -> bool:
    """Return whether this process writes a program's files.

    In a job with servers, only worker 0 does.
    """
    role = (plain_program(program) or default_main_program())._distributed
    if role is None or role.writes_model:
        return True
    _log.warning(
        "%s saves nothing to %s, because worker 0 saves the model for all workers", role, where
    )
    return False


def save_model(
    program: Program,
    dirname: str | os.PathLike[str],
    parts: Sequence[SavePart],
    *,
    documents: Mapping[str, str] | None = None,
    table_layout: TableLayout | None = None,
) -> None:
    """Save variables and text files into a folder, either all of them or none; see `save_vars`."""
    values, tables = _values(program, [v for part in parts for v in part.variables])
    layout = _layout(table_layout, tables.values())
    with PendingSave(Path(dirname)) as pending:
        folders: dict[str, Path] = {}
        if layout == "folder":
            for part in parts:
                for name in (v.name for v in part.variables if v.name in tables):
                    folders[name] = pending.folder_of_table(table_folder(name, part.filename))
        for opened, arrays in _open_tables(program, tables, folders):
            values |= arrays
            pending.add_tables(opened)
        for part in parts:
            writes = [
                _to_write(variable, values, tables)
                for variable in part.variables
                if variable.name not in folders
            ]
            if part.filename is not None:
                pending.write_file(part.filename, writes)
            else:
                for write in writes:
                    pending.write_file(write.name, [write])
        for name, text in (documents or {}).items():
            pending.write_text(name, text)
        pending.commit()


def table_folder(name: str, filename: str | None) -> str:
    """Return the path of a table's folder, relative to the folder that is saved into.

    >>> table_folder("ads", None), table_folder("ads", "model.pdparams")
    ('ads', 'model.pdparams.tables/ads')
    """
    return name if filename is None else f"{filename}.tables/{name}"


def _saved_bytes(program: Program, variables: Sequence[Variable]) -> bytes:
    values, tables = _values(program, variables)
    for opened, arrays in _open_tables(program, tables, {}):
        values |= arrays
        opened.abort()
    file = io.BytesIO()
    write_variables(file, [_to_write(variable, values, tables) for variable in variables])
    return file.getvalue()


def _values(
    program: Program, variables: Sequence[Variable]
) -> tuple[dict[str, NDArray[Any]], dict[str, SparseParameter]]:
    """Return the arrays and tables that the scope holds for the variables."""
    scope = global_scope()
    if program._distributed is not None:
        program._distributed.before_saving(scope)
    arrays: dict[str, NDArray[Any]] = {}
    tables: dict[str, SparseParameter] = {}
    for variable in variables:
        value = _value(scope, variable)
        if isinstance(value, SparseParameter):
            tables[variable.name] = value
        elif value is not None:
            arrays[variable.name] = value.detach().cpu().numpy()
    return arrays, tables


def _value(scope: Scope, variable: Variable) -> Any:
    held = scope.find_var(variable.name)
    return None if held is None else held.value()


def _layout(asked: TableLayout | None, tables: Iterable[SparseParameter]) -> TableLayout:
    if asked not in (None, "file", "folder"):
        raise ConfigError(f"table_layout must be 'file', 'folder' or None, got {asked!r}")
    if asked is not None:
        return asked
    return "folder" if any(isinstance(t.store, RemoteStore) for t in tables) else "file"


def _open_tables(
    program: Program, tables: Mapping[str, SparseParameter], folders: Mapping[str, Path]
) -> Iterator[tuple[TableFolders, Arrays]]:
    """Open snapshots of tables; yield them with the servers' other arrays from the same moment."""
    role = program._distributed
    if role is not None and role.holds_values:
        yield from role.open_tables(folders)
        return
    by_store: dict[Store, dict[str, Path]] = {}
    for name, path in folders.items():
        by_store.setdefault(tables[name].store, {})[name] = path
    for store, paths in by_store.items():
        opened = TableFolders(store, paths)
        opened.open()
        yield opened, {}


def _to_write(
    variable: Variable, values: Arrays, tables: Mapping[str, SparseParameter]
) -> ArrayToWrite | RowsToWrite:
    name = variable.name
    if name in tables:
        table = tables[name]
        info = table.store.info(table.name)
        widths = RowWidths(info.dim, info.state_dim, info.counter_dim)
        return RowsToWrite(name, widths, table.optimizer.kind, _chunks(table))
    if name not in values:
        raise RuntimeError(f"variable '{name}' has no value to save; run the startup program first")
    return ArrayToWrite(name, values[name])


def _chunks(table: SparseParameter) -> Iterator[Rows]:
    """Yield the rows of a snapshot taken when the first chunk is requested."""
    yield from row_chunks(table.store, table.name)


# -- loading ----------------------------------------------------------------------------------


def load_vars(
    executor: Executor | None,
    dirname: str | os.PathLike[str],
    main_program: Program | None = None,
    vars: Sequence[Variable] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Load files saved by `save_vars`, in either layout.

    Nothing is changed if a file is missing or does not match.
    """
    del executor
    program = plain_program(main_program) or default_main_program()
    if not isinstance(program, Program):
        raise TypeError(f"main_program must be a Program, got {main_program!r}")
    _put(read_saved(dirname, _chosen(program, vars, predicate), filename))


def load_params(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Load files saved by `save_params`."""
    load_vars(executor, dirname, main_program, None, is_parameter, filename)


def load_persistables(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Load files saved by `save_persistables`.

    For a server's program, they become the initial values of the job.
    """
    role = (plain_program(main_program) or default_main_program())._distributed
    if role is not None and role.holds_values:
        role.load(dirname, filename)
        return
    load_vars(executor, dirname, main_program, None, is_persistable, filename)


def read_saved(
    dirname: str | os.PathLike[str], variables: Sequence[Variable], filename: str | None = None
) -> list[SavedVariable]:
    """Find variables in a folder; raise RuntimeError if one is missing or does not match.

    The files may have been written by PaddlePaddle 1.x.
    """
    folder = Path(dirname)
    source = _paddle_arrays(folder, variables, filename)
    if source is not None:
        return [SavedVariable(v, _in_source(source, v.name)) for v in variables]
    together = None if filename is None else _open_file(path_in(folder, filename))
    return [
        SavedVariable(variable, _find(folder, variable.name, filename, together))
        for variable in variables
    ]


def _paddle_arrays(
    folder: Path, variables: Sequence[Variable], filename: str | None
) -> MemoryArrays | None:
    """Return the variables if PaddlePaddle wrote the files (which start with version 0), else
    None.
    """
    names = sorted(variable.name for variable in variables)
    first = path_in(folder, filename or names[0]) if names else folder
    if not first.is_file():
        return None
    with open(first, "rb") as file:
        if file.read(len(_PADDLE_VERSION)) != _PADDLE_VERSION:
            return None
    found = read_paddle_persistables(str(folder), filename=filename, names=names)
    return MemoryArrays(found, {})


def is_saved(dirname: str | os.PathLike[str], name: str) -> bool:
    """Return whether a folder contains a variable with this name, as a file or a subfolder."""
    path = Path(dirname) / name
    return path.is_file() or (path / MANIFEST).is_file()


def put_arrays(variable: Variable, arrays: Arrays, notes: Mapping[str, str]) -> None:
    """Set a variable in the global scope from these arrays, which must match its shape and type."""
    source = MemoryArrays(arrays, notes)
    _put([SavedVariable(variable, _in_source(source, variable.name))])


def _find(
    folder: Path, name: str, filename: str | None, together: VariableFile | None
) -> ArraySource | SavedRows:
    path = path_in(folder, table_folder(name, filename))
    if (path / MANIFEST).is_file() and not (together is not None and _has(together, name)):
        return FolderRows(str(path), name)
    return _in_source(_open_file(path) if together is None else together, name)


def _has(source: ArraySource, name: str) -> bool:
    return name in source or f"{name}//values" in source


def _in_source(source: ArraySource, name: str) -> ArraySource | SavedRows:
    if name in source:
        return source
    if not _has(source, name):
        raise RuntimeError(
            f"{source.location}: expected a saved value for variable '{name}', found none; load "
            "files that this program saved"
        )
    return FileRows(source, name)


def _open_file(path: Path) -> VariableFile:
    if path.is_dir():
        raise RuntimeError(
            f"{path}: found a folder without {MANIFEST}, expected a saved variable; the save did "
            "not finish, or this is not a folder of saved variables"
        )
    if not path.is_file():
        raise RuntimeError(f"{path}: no such file; expected a saved variable")
    return VariableFile(path)


def _put(found: Sequence[SavedVariable]) -> None:
    """Read all arrays, then set the variables in the global scope; load tables store by store."""
    arrays: list[tuple[Any, NDArray[Any]]] = []
    tables: dict[Store, dict[str, tuple[SavedRows, str]]] = {}
    for saved in found:
        variable = saved.variable
        place = global_scope().find_var(variable.name) or global_scope().var(variable.name)
        held = place.value()
        if isinstance(held, SparseParameter) and not held.is_open:
            place.share(LoDTensor())
        if place.value() is None and isinstance(variable, Parameter) and variable.is_table:
            place.hold(empty_table(variable))
        tensor = place.get_tensor()
        if not isinstance(tensor, SparseParameter):
            arrays.append((tensor, saved.array()))
        elif tensor.takes_rows:
            rows = tables.setdefault(tensor.store, {})
            rows[tensor.name] = saved.rows, tensor.optimizer.kind
    for store, group in tables.items():
        load_saved_rows(store, group)
    for tensor, array in arrays:
        tensor.set(array)


def _chosen(
    program: Program, variables: Sequence[Variable] | None, predicate: Predicate | None
) -> list[Variable]:
    if variables is not None:
        return list(variables)
    known = program.list_vars()
    return sorted(filter(predicate or is_persistable, known), key=lambda found: found.name)
