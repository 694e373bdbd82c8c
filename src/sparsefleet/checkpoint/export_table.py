"""Write a table from a checkpoint to one file for other programs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.folder import OutputFile, open_folder
from sparsefleet.checkpoint.manifest import TableEntry
from sparsefleet.checkpoint.parquet_writer import ParquetWriter
from sparsefleet.checkpoint.row_chunk import COLUMNS, RowChunk, RowLayout
from sparsefleet.checkpoint.row_file_writer import columns_of
from sparsefleet.errors import ConfigError

__all__ = ["EXPORT_FORMATS", "export_table"]

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
