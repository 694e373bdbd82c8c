"""Import vectors and models from other formats, and export a table for other programs."""

from __future__ import annotations

import io
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.folder import OutputFile, open_folder
from sparsefleet.checkpoint.manifest import Manifest, TableEntry
from sparsefleet.checkpoint.paddle_files import read_paddle_persistables
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.row_chunk import COLUMNS, RowChunk, RowLayout
from sparsefleet.checkpoint.row_file_writer import ParquetWriter, columns_of
from sparsefleet.errors import ConfigError, InputFileError

__all__ = ["EXPORT_FORMATS", "export_table", "import_paddle", "import_table", "import_vectors"]

_CHUNK_ROWS = 1 << 16


def import_vectors(
    source: str,
    target: str,
    *,
    table: str,
    key_column: str | None = None,
    has_header: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Create a checkpoint with one table from a file of keys and vectors; see `import_table`."""
    chunks = import_table(
        source, key_column=key_column, has_header=has_header, storage_options=storage_options
    )
    first = next(chunks, None)
    if first is None:
        raise InputFileError(f"{source}: expected rows, found none")
    keys: list[NDArray[np.uint64]] = []

    def noted() -> Iterator[RowChunk]:
        for chunk in itertools.chain([first], chunks):
            keys.append(chunk.keys)
            yield chunk

    entry = _values_only(table, first.values.shape[1])
    with PendingCheckpoint.begin(target, storage_options) as pending:
        files = pending.write_rows(entry, 0, 1, noted())
        every = np.sort(np.concatenate(keys))
        twice = every[1:][every[1:] == every[:-1]]
        if len(twice):
            raise InputFileError(
                f"{source}: expected each key once, found {len(twice)} duplicates, "
                f"for example key {int(twice[0])}"
            )
        return pending.commit(step=0, tables=[entry.with_files(files)])


def import_paddle(
    source: str,
    target: str,
    *,
    tables: Collection[str] = (),
    filename: str | None = None,
    names: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Create a checkpoint from a Paddle 1.x directory; see `read_paddle_persistables`.

    The variables named in `tables`, each [V, D], become sparse tables with keys 0 .. V-1; all
    others become dense tensors.
    """
    variables = read_paddle_persistables(
        source, filename=filename, names=names, storage_options=storage_options
    )
    for name in tables:
        if name not in variables:
            raise ConfigError(
                f"table {name!r}: not in the directory, expected one of {sorted(variables)}"
            )
        if variables[name].ndim != 2 or variables[name].dtype != np.float32:
            found = f"{variables[name].dtype}{list(variables[name].shape)}"
            raise ConfigError(f"table {name!r}: expected float32[V, D], found {found}")
    with PendingCheckpoint.begin(target, storage_options) as pending:
        entries = []
        for name in tables:
            entry = _values_only(name, variables[name].shape[1])
            files = pending.write_rows(entry, 0, 1, _rows_of(variables[name]))
            entries.append(entry.with_files(files))
        pending.write_dense({n: array for n, array in variables.items() if n not in tables})
        return pending.commit(step=0, tables=entries)


def _values_only(name: str, dim: int) -> TableEntry:
    return TableEntry(name=name, dim=dim, optimizer={"kind": "none"})


def _rows_of(values: NDArray[np.float32]) -> Iterator[RowChunk]:
    for begin in range(0, len(values), _CHUNK_ROWS):
        part = values[begin : begin + _CHUNK_ROWS]
        count = len(part)
        keys = np.arange(begin, begin + count, dtype=np.uint64)
        empty = np.empty((count, 0), np.float32)
        yield RowChunk(keys, part, empty, empty.astype(np.uint32))


def import_table(
    path: str,
    *,
    key_column: str | None = None,
    has_header: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[RowChunk]:
    """Read rows from a `.parquet` or `.csv` file of keys and vectors; a CSV may be compressed.

    The key column is `key_column` if given, else the column named `key`, else the first column. The
    vector is one column of lists (in CSV: text such as `0.5 0.25` or `[0.5, 0.25]`), or all columns
    of numbers. A CSV without column names needs has_header=False. A negative key is reinterpreted
    as an unsigned 64-bit number. Rows have no state or counters.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".csv") as file:
    ...     _ = file.write(b"key,x,y\\n7,0.5,1\\n9,2,4\\n")
    ...     file.flush()
    ...     [chunk] = import_table(file.name)
    >>> chunk.keys.tolist(), chunk.values.tolist()
    ([7, 9], [[0.5, 1.0], [2.0, 4.0]])
    """
    suffix = path.removesuffix(".gz").removesuffix(".bz2").rpartition(".")[2]
    if suffix not in ("csv", "parquet"):
        raise ConfigError(f"the file to import must end with .csv or .parquet, got {path!r}")
    from sparsefleet.checkpoint.vector_file import read_vectors  # imports pyarrow

    yield from read_vectors(
        path,
        is_csv=suffix == "csv",
        key_column=key_column,
        has_header=has_header,
        storage_options=storage_options,
    )


EXPORT_FORMATS = ("parquet", "csv")


def export_table(
    checkpoint: Checkpoint,
    table: str,
    target: str,
    *,
    columns: Sequence[str] = COLUMNS,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Write all rows of a table, with deltas merged, to a new file; return the number of rows.

    The suffix determines the format: `.parquet` has columns key, values, state, counters; `.csv`
    has one column per number: key, values_0, ..., then one named column per state and counter
    value.
    """
    kind = target.rpartition(".")[2]
    if kind not in EXPORT_FORMATS:
        raise ConfigError(f"export target must end with .parquet or .csv, got {target!r}")
    chunks = checkpoint.rows(table, columns=columns)
    entry = checkpoint.manifest.table(table)
    place, _, name = target.rpartition("/")
    file = open_folder(place or ("." if "/" not in target else "/"), storage_options).create(name)
    try:
        write = _write_parquet if kind == "parquet" else _write_csv
        num_rows = write(file, entry, chunks, columns)
        file.close()
    except BaseException:
        file.discard()
        raise
    return num_rows


def _write_parquet(file: OutputFile, entry: TableEntry, chunks: Any, columns: Sequence[str]) -> int:
    layout = RowLayout.of(entry)
    kept = ("key", *columns)
    parts = [column for column in columns_of(layout) if column.name in kept]
    writer = ParquetWriter(file.write, parts, {"sparsefleet.table": entry.name})
    for chunk in chunks:
        named = {"key": chunk.keys, **chunk._asdict()}
        writer.write([named[column.name] for column in parts])
    writer.close()
    return writer.num_rows


def _write_csv(file: OutputFile, entry: TableEntry, chunks: Any, columns: Sequence[str]) -> int:
    import pyarrow as pa  # 40 MB, needed only here
    import pyarrow.csv

    names = _csv_names(entry, columns)
    file.write((",".join(f'"{name}"' for name in names) + "\n").encode("utf-8"))
    num_rows = 0
    for chunk in chunks:
        text = io.BytesIO()
        options = pa.csv.WriteOptions(include_header=False)
        pa.csv.write_csv(pa.table(_csv_columns(chunk), names=names), text, options)
        file.write(text.getvalue())
        num_rows += len(chunk.keys)
    return num_rows


def _csv_names(entry: TableEntry, columns: Sequence[str]) -> list[str]:
    names = ["key"]
    if "values" in columns:
        names += [f"values_{place}" for place in range(entry.dim)]
    if "state" in columns:
        for state in entry.state:
            names += [f"{state.name}_{place}" for place in range(state.width)]
    return names + (list(entry.counters) if "counters" in columns else [])


def _csv_columns(chunk: RowChunk) -> list[Any]:
    rest = (chunk.values, chunk.state, chunk.counters)
    return [chunk.keys, *(array[:, place] for array in rest for place in range(array.shape[1]))]
