"""Whole dense tables with their optimizer state, to and from the servers.

Letters: N elements of a dense table, S arrays of optimizer state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection

import numpy as np

from sparsefleet.server.command_body import pack_body
from sparsefleet.store.arrays import Floats
from sparsefleet.store.store import Store
from sparsefleet.store.store_save import DenseTable, StoreSave

__all__ = ["read_dense_tables", "write_dense_table"]

_CHUNK_ELEMENTS = 1 << 20


def read_dense_tables(store: Store, tables: Collection[str]) -> dict[str, DenseTable]:
    """The tables as of one moment."""
    if not tables:
        return {}
    save = StoreSave(store, os.curdir, tables=tables)  # no file is written
    save.open()
    try:
        return {table: save.dense_table(table) for table in tables}
    finally:
        save.abort()


def write_dense_table(store: Store, table: str, values: Floats, state: Floats) -> None:
    """Sets values (float32[N]) and state (float32[S, N]); nobody may push meanwhile."""
    for server in range(store.num_servers):
        asked = json.dumps({"table": table}).encode()
        here = json.loads(store.command(server, "dense_place", asked))
        first, last = here["begin"], here["begin"] + here["size"]
        for begin in range(first, last, _CHUNK_ELEMENTS):
            part = slice(begin, min(begin + _CHUNK_ELEMENTS, last))
            floats = np.concatenate([values[None, part], state[:, part]]).astype("<f4")
            head = {"table": table, "begin": begin, "n": floats.shape[1]}
            store.command(server, "dense_write", pack_body(head, floats.tobytes()))
