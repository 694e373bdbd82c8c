"""Sends and receives tables in chunks, so no process needs memory for a whole table.

In shapes, N is the number of elements of a dense table and S the number of arrays of optimizer
state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from sparsefleet.server.command_loop import pack_body
from sparsefleet.store.arrays import Floats
from sparsefleet.store.rows import Rows
from sparsefleet.store.store import Store

if TYPE_CHECKING:
    from sparsefleet.store.store import Store

__all__ = ["import_chunks", "replace_rows", "row_chunks", "rows_per_chunk", "write_dense_table"]

_CHUNK_BYTES = 4 << 20


def rows_per_chunk(floats: int) -> int:
    """Return the number of rows in a chunk of about 4 MiB.

    floats: width of a row with its state and counters.

    >>> rows_per_chunk(30)
    32768
    """
    return max(1, _CHUNK_BYTES // (8 + 4 * floats))


def row_chunks(store: Store, table: str) -> Iterator[Rows]:
    """Iterate over a snapshot of all rows in chunks of about 4 MiB; pushes may continue."""
    info = store.info(table)
    size = rows_per_chunk(info.dim + info.state_dim + info.counter_dim)
    return store.rows(table, chunk_rows=size)


def import_chunks(store: Store, table: str, chunks: Iterable[Rows]) -> None:
    """Create or overwrite rows; large chunks are sent in several requests."""
    for rows in chunks:
        size = rows_per_chunk(sum(column.shape[1] for column in rows[1:]))
        for begin in range(0, len(rows.keys), size):
            part = slice(begin, begin + size)
            some = Rows(rows.keys[part], rows.values[part], rows.state[part], rows.counters[part])
            store.import_rows(table, some)


def replace_rows(store: Store, table: str, chunks: Iterable[Rows]) -> None:
    """Replace all rows of the table. No pushes may run at the same time."""
    for rows in row_chunks(store, table):
        store.erase(table, rows.keys)
    import_chunks(store, table, chunks)


_CHUNK_ELEMENTS = 1 << 20


def write_dense_table(store: Store, table: str, values: Floats, state: Floats) -> None:
    """Set values (float32[N]) and optimizer state (float32[S, N]).

    No pushes may run at the same time.
    """
    for server in range(store.num_servers):
        asked = json.dumps({"table": table}).encode()
        here = json.loads(store.command(server, "dense_place", asked))
        first, last = here["begin"], here["begin"] + here["size"]
        for begin in range(first, last, _CHUNK_ELEMENTS):
            part = slice(begin, min(begin + _CHUNK_ELEMENTS, last))
            floats = np.concatenate([values[None, part], state[:, part]]).astype("<f4")
            head = {"table": table, "begin": begin, "n": floats.shape[1]}
            store.command(server, "dense_write", pack_body(head, floats.tobytes()))
