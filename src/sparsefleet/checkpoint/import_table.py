"""Vectors from elsewhere, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparsefleet.checkpoint.row_chunk import RowChunk
from sparsefleet.errors import ConfigError

__all__ = ["import_table"]


def import_table(
    path: str,
    *,
    key_column: str | None = None,
    has_header: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[RowChunk]:
    """Rows from a file of keys and vectors: `.parquet`, or `.csv`, which may be compressed.

    The key is `key_column`, else the column `key`, else the first. The vector is one column of
    lists (in CSV of text such as `0.5 0.25` or `[0.5, 0.25]`), or all columns of numbers
    together. A CSV without names of columns needs has_header=False. A negative key stands for
    the same 64 bits without a sign. Rows come without state and counters.

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
        raise ConfigError(f"a file to import must end with .csv or .parquet, got {path!r}")
    from sparsefleet.checkpoint.vector_file import read_vectors  # it loads pyarrow

    yield from read_vectors(
        path,
        is_csv=suffix == "csv",
        key_column=key_column,
        has_header=has_header,
        storage_options=storage_options,
    )
